"""The files that a watched script leaves, one set per training; reading them needs no TensorFlow.

- ``N.trace``: the model's variables, how it was trained, what was reported;
- ``N.steps``: a fingerprint of all weights after every optimizer step, in the layout of a run's records;
- ``N-stages.pkl``: what was seen inside some steps, if that was asked for.
"""

from __future__ import annotations

import pickle
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from compare.records.model import INITIAL, Variable, step_dtype

CLIPPING = ("clipnorm", "clipvalue", "global_clipnorm")
"""The options of an optimizer by which it limits gradients before it uses them."""
EXCLUDED = "exclude_from_weight_decay"
"""The entry of its configuration with the variables that its weight decay leaves out, as a call of that name says."""
BY_HAND = "ByHand"
"""The class of what stands for the optimizer of a script that changes its weights without one."""
ON_BATCHES, BY_OWN_STEP = "train_on_batch", "fit with its own train_step"
"""What trained, where a loop calls it."""
ENOUGH = "enough"
"""The file that says that the trainings have made their steps, so that the script is ended."""
OVER = "over"
"""The file that says that the script's last line has run, whatever goes on after it."""
FAILED = "failed"
"""The file that describes what the script raised."""
UNSEEN = "unseen"
"""The file that says how the script trains where it is not watched."""
UNTRAINED = "untrained"
"""The file with the names of the models whose ``fit`` was called though they have no trainable weights, and of the
optimizers that were applied, but whose ``iterations`` did not change."""
INSIDE, APART, LEFT = "inside", "apart", "left"
"""Where a model is that no optimizer trains: among the weights of a training, or not; or what a training leaves."""
ENVIRONMENT = "environment"
"""The file with what the script ran in, by name."""
MADE_AT, SET_AT = "_made_at", "_set_at"
"""The attributes of an optimizer with the script's line that made it, and of its rate with the one that set it last."""
MADE_WITH = "_made_with"
"""The attribute of an optimizer with the learning rate with which it was made."""
MADE_AFTER = "_made_after"
"""The attribute of an optimizer with the number of steps that the script had made by then."""
IMPORTED = "imported"
"""The file with the digests of what the script has imported from its own folder, by path."""
OTHERS = "others"
"""The file with the names of other libraries that the script has imported, or asked for."""


@dataclass(frozen=True)
class FitEpoch:
    """An epoch of ``fit``.

    Attributes:
        steps: the number of optimizer steps of the training up to its end.
        seconds: its wall time.
        means: of the numbers that are what the step returned for the last batch, the means over all batches.
    """

    steps: int
    logs: Mapping[str, float]
    seconds: float
    means: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Reported:
    """A number that the script read from a metric, or gave to ``compare.report``.

    Attributes:
        steps: the number of optimizer steps made before.
        kind: the metric's class; empty for ``compare.report``.
        epoch: the epoch given to ``compare.report``; 0 if none was.
        metric: the number of the metric object, in the order of use: two may have the same name.
        with_steps: whether the metric is updated between steps, as one of validation is not; None if not known.
        of_loss: whether it is a mean of the loss whose gradient is taken.
        line: the line of the script that reports it: its file, number and text.
        updated: the first line that updates the metric.
        updating: whether the metric was called, which updates it and gives its value whether or not anyone reads it.
        counted: how many values the metric is the mean of; 0 if it does not count them.
    """

    steps: int
    name: str
    kind: str
    value: float
    epoch: int = 0
    metric: int = 0
    with_steps: bool | None = None
    of_loss: bool = False
    line: tuple[str, int, str] | None = None
    updating: bool = False
    counted: float = 0.0
    updated: tuple[str, int, str] | None = None


@dataclass(frozen=True)
class Measured:
    """What a metric of Keras was first given.

    Attributes:
        true: the shape of the labels; None for what may vary.
        predicted: the shape of the predictions.
        by_fit: whether fit, or another method of a model, updates it.
        metric: the number of the metric object, as in ``Reported``.
    """

    name: str
    kind: str
    true: Sequence[int | None]
    predicted: Sequence[int | None]
    by_fit: bool
    metric: int


@dataclass(frozen=True)
class Trace:
    """What was seen of one training.

    Attributes:
        variables: all weights of the model.
        steps: the fingerprints (``compare.records.model.step_dtype``), with the epoch 1 and the step counted over the
            whole training; the first is of the initial weights, step 0, where it was seen.
        trained_by: ``fit``, ``fit with its own train_step``, ``train_on_batch``, or ``loop``.
        optimizers: class and configuration of each optimizer, the line that made it, the learning rate with which it
            ``begins``, and whether its class is the script's ``own``, in the order of use; what a script has set as
            ``lr``, which Keras 3 ignores.
        layers: name, class and configuration of each layer of the model, in order, and the line that made it.
        fit: what ``fit`` was called with: its batch size, callbacks, class weights and the like.
        calls: calls of ``tf.data`` and the like that explain much, in order.
        shuffles: whether each call of ``Dataset.shuffle`` asks for another order in every epoch.
        drawn: the functions of ``tf.random`` that the script calls, each ``eager``, in a ``graph``, or both.
        averages: whether the script keeps averages by ``tf.train.ExponentialMovingAverage``, whose values are not seen.
        whole: whether the script came to its end.
        number: 0 for the script's first training.
        created: the number of the model in the order of creation.
        parts: where it goes on with another optimizer: the steps made before, and the optimizer's iterations then.
        alike: whether its initial weights could be made alike, where that was asked for.
        changed_early: whether the script has changed them once more after its first gradients, before its first step.
        eager: whether its steps are made outside of any ``tf.function``.
        began: the moment of its first step, among all steps of the script.
        trained: the numbers of the variables that optimizers update, in the order of recording.
        reseeded: the steps after which it goes on with other states of its layers' random numbers.
        empty: the steps after which its optimizers count one more, which changes no weights, as fit's do at the end of
            data of unknown size.
        order: for each variable, its number in the order in which it was recorded; empty if that is the same.
        left_out: the variables that are not compared, and whether each changes.
        state: where a model is that no optimizer trains, ``INSIDE`` or ``APART``, of which only the first and the last
            weights are recorded; or ``LEFT`` for what a training leaves: its weights after its last step, when ``fit``
            or the optimizer ended it, and at the end of the script. Empty for a training.
        of: the number of the training that leaves them.
        untaped: the first line that calls the model with ``training=True`` between steps, under no tape, as in
            validation by mistake; None if there is none.
        unsure: the names of variables that were paired only by their order among those of equal shape.
        still: the models that no optimizer trains whose weights come after its own, before these are ordered.
    """

    variables: tuple[Variable, ...]
    replicas: int
    steps: np.ndarray
    trained_by: str = "loop"
    optimizers: Sequence[Mapping[str, Any]] = ()
    layers: Sequence[Mapping[str, Any]] = ()
    fit: Mapping[str, Any] = field(default_factory=dict)
    epochs: Sequence[FitEpoch] = ()
    reported: Sequence[Reported] = ()
    calls: Sequence[str] = ()
    shuffles: Sequence[bool] = ()
    drawn: Mapping[str, Sequence[str]] = field(default_factory=dict)
    measured: Sequence[Measured] = ()
    averages: bool = False
    whole: bool = False
    model: str = ""
    number: int = 0
    created: int = 0
    parts: Sequence[tuple[int, int]] = ()
    alike: bool = True
    changed_early: bool = False
    eager: bool = False
    began: int = 0
    ended: int = 0
    trained: Sequence[int] = ()
    reseeded: Sequence[int] = ()
    empty: Sequence[int] = ()
    order: Sequence[int] = ()
    left_out: Sequence[tuple[Variable, bool]] = ()
    state: str = ""
    of: int = -1
    untaped: tuple[str, int, str] | None = None
    unsure: Sequence[str] = ()
    still: Sequence[Trace] = ()

    def ordered(self, order: Sequence[int]) -> Trace:
        """The same with its variables in another order, or with some of them only."""
        if list(order) == list(range(len(self.variables))) or not order:
            return self
        steps = np.zeros(len(self.steps), step_dtype(len(order), self.replicas))
        steps["epoch"], steps["step"] = self.steps["epoch"], self.steps["step"]
        steps["hashes"], steps["projections"] = self.steps["hashes"][:, order], self.steps["projections"][:, order]
        return replace(
            self,
            variables=tuple(self.variables[i] for i in order),
            steps=steps,
            order=tuple(order),
            trained=[order.index(i) for i in self.trained if i in order],
            left_out=[(each, self.changes(i)) for i, each in enumerate(self.variables) if i not in order],
        )

    def beside(self, still: Sequence[Trace]) -> Trace:
        """The same with the initial weights of other models, on as many replicas, which come after its own."""
        still = [each for each in still if each.replicas == self.replicas]
        if not still:
            return self
        steps = np.zeros(len(self.steps), step_dtype(sum(len(t.variables) for t in (self, *still)), self.replicas))
        for name in ("hashes", "projections"):
            rows = [np.repeat(each.steps[name][:1], len(steps), axis=0) for each in still]
            steps[name] = np.concatenate([self.steps[name], *rows], axis=1)
        steps["epoch"], steps["step"] = self.steps["epoch"], self.steps["step"]
        variables = [variable for each in (self, *still) for variable in each.variables]
        return replace(self, variables=tuple(variables), steps=steps, still=tuple(still))

    def like(self, other: Trace) -> Trace:
        """The same with its variables in the order of another record of its training, and with the same ones beside."""
        return self.beside(other.still).ordered(other.order)

    def up_to(self, step: int) -> Trace:
        """The same without the steps after one."""
        return replace(self, steps=self.steps[self.steps["step"] <= step]) if step < self.last else self

    @property
    def initial(self) -> np.ndarray | None:
        """The hashes of the initial weights; None if these were not seen."""
        rows = self.steps["hashes"][self.steps["step"] == INITIAL]
        return np.asarray(rows[0]) if len(rows) else None

    @property
    def last(self) -> int:
        """The number of optimizer steps that were recorded."""
        return int(self.steps["step"].max(initial=0))

    @property
    def config(self) -> Mapping[str, Any]:
        """The configuration of its first optimizer; empty if it has none."""
        return dict(self.optimizers[0]["config"]) if self.optimizers else {}

    def optimizers_at(self, step: int) -> Sequence[Mapping[str, Any]]:
        """The optimizers that may make a step: one, where each part of the training has one; else all."""
        begun = sum(first < step for first, _ in self.parts)
        one_each = len(self.parts) == len(self.optimizers)
        return self.optimizers[begun - 1 : begun] if one_each and begun else self.optimizers

    def optimizer_at(self, step: int) -> Mapping[str, Any] | None:
        """The first of the optimizers that may make a step; None if there is none."""
        return next(iter(self.optimizers_at(step)), None)

    @property
    def by_fit_alone(self) -> bool:
        """Whether ``fit`` makes all of its steps; a training in several parts may go on by a loop."""
        return self.trained_by.startswith("fit") and len(self.parts) < 2

    @property
    def by_hand(self) -> bool:
        """Whether its steps are made without an optimizer."""
        return any(each["class"] == BY_HAND for each in self.optimizers)

    def is_beside(self, other: Trace) -> bool:
        """Whether some of its steps are made while another training makes its own."""
        return self.began <= other.ended and other.began <= self.ended

    def changes(self, number: int) -> bool:
        """Whether a variable changes between two steps; what state begins with may be that of an earlier training."""
        hashes = self.steps["hashes"][:, number]
        hashes = hashes[1:] if len(hashes) > 2 else hashes
        return bool((hashes != hashes[:1]).any())

    @property
    def never_changes(self) -> bool:
        """Whether no step changes any weight."""
        return len(self.steps) > 1 and not self.changing.any()

    @property
    def changing(self) -> np.ndarray:
        """Which variables some step changes, bool ``[variables]``."""
        hashes = self.steps["hashes"]
        return np.asarray((hashes != hashes[:1]).any(axis=(0, 2)))


def steps_made(folder: Path, number: int) -> int:
    """The number of optimizer steps that a running script has recorded so far."""
    trace = folder / f"{number}.trace"
    try:
        dtype = _dtype_of_steps(trace, trace.stat().st_mtime_ns)
        if dtype is None:
            return 0
        with open(folder / f"{number}.steps", "rb") as file:
            size = file.seek(0, 2) // dtype.itemsize * dtype.itemsize
            file.seek(size - dtype.itemsize)
            return int(np.frombuffer(file.read(dtype.itemsize), dtype)["step"][0])
    except Exception:
        return 0


@lru_cache
def _dtype_of_steps(trace: Path, changed: int) -> np.dtype[Any] | None:
    """How a training's steps are stored, which a trace says that was changed at this time; it may have large settings.

    None for what is no training, but what one leaves, or a model that no optimizer trains.
    """
    content = pickle.loads(trace.read_bytes())
    return None if content["state"] else step_dtype(len(content["variables"]), content["replicas"])


def read_traces(folder: Path) -> list[Trace]:
    """Reads the trainings of a script, in the order in which they began; those without a step are left out."""
    traces = []
    for path in sorted(folder.glob("*.trace"), key=lambda path: int(path.stem)):
        content = pickle.loads(path.read_bytes())
        if not content["variables"]:
            continue
        dtype = step_dtype(len(content["variables"]), content["replicas"])
        data = path.with_suffix(".steps").read_bytes() if path.with_suffix(".steps").exists() else b""
        steps = np.frombuffer(data[: len(data) // dtype.itemsize * dtype.itemsize], dtype)
        steps = steps[np.append(steps["step"][1:] != steps["step"][:-1], [True] * bool(len(steps)))]
        traces.append(Trace(steps=steps, **content))
    return traces
