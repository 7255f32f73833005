"""Sees what a script reports and how it trains: fit's epochs, a loop's metrics, and calls that explain much."""

from __future__ import annotations

import itertools
import sys
import time
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

import numpy as np
import tensorflow as tf

from compare.engine.insides_keras import Variable, keras
from compare.patching import Inside, by_name, classes_with, patch
from compare.watch.experiment_file import write_experiment
from compare.watch.observer import Observer
from compare.watch.settings import ORDER, Settings
from compare.watch.trace import ON_BATCHES, FitEpoch, Measured, Reported
from compare.watch.trace_writer import TraceWriter
from compare.watch.weights import value_of

FIT_ARGUMENTS = ("epochs", "initial_epoch", "validation_split")
"""Arguments of ``fit`` that are recorded with their values, which are numbers of Python's or of NumPy's."""
CALLS = ("shuffle", "batch", "take", "skip", "repeat", "padded_batch")
"""Methods of ``tf.data.Dataset`` whose calls are recorded."""

DRAWN = ("normal", "truncated_normal", "uniform", "gamma", "poisson", "categorical", "shuffle")
"""Functions of ``tf.random`` whose numbers depend on more than their seed."""

RECENT = 16
"""How many of the last losses, and values given to means, are kept to be compared with each other."""
SELDOM = 16
"""The number of steps after which metrics are looked at after every 16th only."""


def watch_reports(observer: Observer, writer: TraceWriter, settings: Settings) -> None:
    """Patches Keras and TensorFlow in this process."""
    patch(keras.Model, "fit", partial(_fit, observer, writer, settings))
    patch(keras.Model, "train_on_batch", partial(_on_batch, observer, writer))
    _Metrics(observer, writer)
    for name in CALLS:
        patch(tf.data.Dataset, name, partial(_recorded, name, writer))
    patch(tf.train.ExponentialMovingAverage, "apply", partial(_averaged, writer))
    for name in DRAWN:
        patch(tf.random, name, partial(_drawn, f"tf.random.{name}", observer, writer))


def _fit(
    observer: Observer, writer: TraceWriter, settings: Settings, original: Any, model: Any, *args: Any, **options: Any
) -> Any:
    options = by_name(original, model, args, options)
    given = {name: _number(options.get(name)) for name in FIT_ARGUMENTS}
    facts: dict[str, Any] = {name: number for name, number in given.items() if number is not None}
    facts["class_weight"] = options.get("class_weight") is not None
    ordered = isinstance(options.get("x"), tf.data.Dataset) or hasattr(options.get("x"), "__next__")
    facts["shuffle"] = bool(options.get("shuffle", True)) and not ordered
    data, base = options.get("x"), getattr(keras.utils, "PyDataset", None)
    if base and isinstance(data, base) and type(data).on_epoch_end is not base.on_epoch_end:
        facts["ends_epochs"] = type(data).__name__
    callbacks = options.get("callbacks") or []
    if not isinstance(callbacks, keras.callbacks.CallbackList):
        callbacks = list(callbacks) if isinstance(callbacks, list | tuple) else [callbacks]
        facts["callbacks"] = [type(callback).__name__ for callback in callbacks]
        facts["restores"] = any(getattr(callback, "restore_best_weights", False) for callback in callbacks)
        options["callbacks"] = [*callbacks, _Epochs(observer, writer, model, facts)]
    if ORDER not in settings.own and not isinstance(options.get("x"), tf.data.Dataset):
        options["shuffle"] = False
    with suppress(Exception):  # fit itself says what is wrong
        observer.builds.build_from(model, options.get("x"))
        observer.fits(model)
    observer.trainings.fitted.append(model)
    observer.fitting.append(model)
    try:
        result = original(model, **options)
        observer.leaves(observer.trainings.of_model(model))
        return result
    finally:
        observer.fitting.pop()
        if path := settings.write_experiment:
            write_experiment(Path(path), settings.script, model, options)


def _on_batch(observer: Observer, writer: TraceWriter, original: Any, model: Any, /, *args: Any, **options: Any) -> Any:
    logs = original(model, *args, **options)
    for part in observer.trainings.of_model(model):
        writer.content(part.number)["trained_by"] = ON_BATCHES
    return logs


@dataclass
class _Used:
    """What is known of a metric.

    Attributes:
        made: the number of steps made before it.
        number: its number in the order of use; -1 as long as it is not used.
        at: the step after which it was last there; its state is looked at after most steps.
        states: how many of its states were looked at.
        state: the last of them.
        with_steps: whether it is updated between steps; None if that is not known.
        of_loss: whether it is given the loss whose gradient is taken.
        line: the first line of the script that updates it.
    """

    made: int
    number: int = -1
    at: int = 0
    states: int = 0
    state: bytes = b""
    with_steps: bool | None = None
    of_loss: bool = False
    line: tuple[str, int, str] | None = None


class _Metrics:
    """The metrics of a script: their numbers, in the order of use, when they are updated, and what they measure."""

    def __init__(self, observer: Observer, writer: TraceWriter) -> None:
        self._observer, self._writer = observer, writer
        self._used: WeakKeyDictionary[Any, _Used] = WeakKeyDictionary()
        self._numbers = itertools.count()
        self._looked_at: WeakSet[Any] = WeakSet()
        self._averaged: deque[tuple[Any, Any]] = deque(maxlen=RECENT)
        self._minimized: deque[Any] = deque(maxlen=RECENT)
        self._first_epoch = 1
        self._inside_keras = Inside()  # calls of Keras's own methods that use metrics
        self._called = Inside()  # calls of a metric, which update it and give its value
        self._reading = Inside()
        self._read_in_graphs: WeakKeyDictionary[Any, None] = WeakKeyDictionary()  # in the order of use
        observer.after_steps, observer.after_call = self._look, self._returned
        patch(keras.metrics.Metric, "__init__", self._init)
        patch(keras.metrics.Metric, "__call__", self._called.call)
        patch(keras.metrics.Mean, "update_state", self._average)
        patch(tf.GradientTape, "gradient", self._gradient)
        for name in ("fit", "evaluate", "train_on_batch", "test_on_batch"):
            patch(keras.Model, name, self._inside_keras.call)
        patch(keras.metrics.MeanMetricWrapper, "update_state", self._update_state)
        for owner in classes_with(keras.metrics.Metric, "result"):
            patch(owner, "result", self._result)
        patch(sys.modules["compare"], "report", self._given)

    def _init(self, original: Any, metric: Any, *args: Any, **options: Any) -> None:
        """Begins to look at a metric, until it is read for the first time."""
        original(metric, *args, **options)
        training = self._observer.reporting
        self._used[metric] = _Used(0 if training is None else training.steps)
        self._looked_at.add(metric)

    def _look(self, steps: int) -> None:
        """Sees whether the state of metrics changes from step to step: that of a metric of validation does not."""
        for metric in [] if self._observer.fitting else list(self._looked_at):
            used = self._used[metric]
            at, used.at = max(used.at, used.made), steps
            if steps == at + 1 and steps - used.made > SELDOM and steps % SELDOM:
                continue
            try:
                state = b"".join(value_of(each).tobytes() for each in metric.variables)
            except tf.errors.FailedPreconditionError:  # made in a graph that has not run yet
                continue
            changed = used.states > 0 and state != used.state
            used.state, used.states = state, used.states + 1
            if changed or steps != at + 1:  # of several steps in one call, only the end is seen
                used.with_steps = changed if steps == at + 1 else None
                self._looked_at.discard(metric)

    def _number_of(self, metric: Any) -> int:
        """The number of a metric."""
        used = self._used.setdefault(metric, _Used(0))
        if used.number < 0:
            used.number = next(self._numbers)
        return used.number

    def _read(self, metric: Any) -> dict[str, Any]:
        """What is known of a metric that is read, as of ``Reported``."""
        number, used, training = self._number_of(metric), self._used[metric], self._observer.reporting
        if metric in self._looked_at:
            self._looked_at.discard(metric)
            # One that is made after several steps, and read before the next one, belongs to none of them.
            if used.states > 1 or (training is not None and used.made == training.steps > 1):
                used.with_steps = False
        of_metric = {"metric": number, "with_steps": used.with_steps, "of_loss": used.of_loss}
        count = getattr(metric, "count", None)
        counted = _number(count) or 0.0 if isinstance(count, Variable) else 0.0
        return {**of_metric, "updating": bool(self._called), "counted": counted, "updated": used.line}

    def _average(self, original: Any, metric: Any, values: Any, *args: Any, **options: Any) -> Any:
        """Sees what a mean is given, before or after its gradient is taken."""
        self._averaged.append((metric, values))
        self._find_losses()
        used = self._used.setdefault(metric, _Used(0))
        if used.line is None and not self._inside_keras:
            used.line = self._observer.line()
        return original(metric, values, *args, **options)

    def _gradient(self, original: Any, tape: Any, target: Any, *args: Any, **options: Any) -> Any:
        """Sees of which loss a gradient is taken."""
        self._minimized.append(target)
        self._find_losses()
        return original(tape, target, *args, **options)

    def _find_losses(self) -> None:
        for metric, values in self._averaged:
            if any(values is each for each in self._minimized):
                self._used.setdefault(metric, _Used(0)).of_loss = True

    def _update_state(self, original: Any, metric: Any, y_true: Any, y_pred: Any, *args: Any, **options: Any) -> Any:
        """Records what a metric is given for the first time."""
        if metric not in self._used or self._used[metric].number < 0:
            true, predicted = ([*getattr(each, "shape", ())] for each in (y_true, y_pred))
            kind, by_fit = _kind_of(metric), bool(self._inside_keras)
            number = self._number_of(metric)
            self._writer.measured.append(Measured(str(metric.name), kind, true, predicted, by_fit, number))
        return original(metric, y_true, y_pred, *args, **options)

    def _result(self, original: Any, metric: Any) -> Any:
        """Records what is read from a metric; in a graph, that it is."""
        value = self._reading.call(original, metric)
        # Keras's own, of data that the script chose for something else; or of squares, whose root is what is read
        if self._inside_keras or self._reading:
            return value
        if not tf.executing_eagerly():
            self._read_in_graphs[metric] = None
        elif not self._observer.inside:
            self._report_metric(metric, value)
        return value

    def _returned(self, result: Any) -> None:
        """Records what a function with a graph has read from metrics, where it returns their values."""
        if not self._read_in_graphs or self._inside_keras or self._observer.reporting is None:
            return
        numbers = {_number(each) for each in tf.nest.flatten(result) if getattr(each, "shape", None) == ()}
        for metric in list(self._read_in_graphs) if numbers else ():
            value = self._reading.call(metric.result)
            if _number(value) in numbers:
                self._report_metric(metric, value)

    def _given(self, original: Any, *args: Any, **numbers: Any) -> None:
        """Records what is given to ``compare.report``."""
        original(*args, **numbers)  # says itself what is wrong with the call
        epoch = args[0] if args else numbers.pop("epoch", None)
        for name, value in numbers.items():
            if _number(value) is None:
                raise TypeError(f"compare.report was given {type(value).__name__} as {name}: give one number")
        self._first_epoch = self._first_epoch if epoch is None else min(self._first_epoch, int(epoch))  # may be 0
        for name, value in numbers.items():
            self._report(name, "", value, epoch=0 if epoch is None else int(epoch) + 1 - self._first_epoch)

    def _report_metric(self, metric: Any, value: Any) -> None:
        if self._observer.reporting is not None:
            self._report(str(metric.name), type(metric).__name__, value, **self._read(metric))

    def _report(self, name: str, kind: str, value: Any, **more: Any) -> None:
        number, training = _number(value), self._observer.reporting
        if number is not None and training is not None:
            entry = Reported(training.steps, name, kind, number, **more, line=self._observer.line())
            self._writer.content(training.number)["reported"].append(entry)


class _Epochs(keras.callbacks.Callback):  # type: ignore[misc] # keras is untyped
    """Records the epochs of ``fit``, with what it reports."""

    def __init__(self, observer: Observer, writer: TraceWriter, model: Any, facts: Mapping[str, Any]) -> None:
        super().__init__()
        self._observer, self._writer, self._trained, self._facts = observer, writer, model, facts
        self._began = time.perf_counter()
        self._cut = False
        self._returned: dict[str, list[float]] = {}

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._began, self._returned = time.perf_counter(), {}

    def _returns(self, prefix: str, batch: int, logs: Mapping[str, Any] | None) -> None:
        """Keeps what a step returned, if it is told after each: not with several steps in one call."""
        for name, value in (logs or {}).items():
            values = self._returned.setdefault(f"{prefix}{name}", [])
            if len(values) == batch and (number := _number(value)) is not None:
                values.append(number)

    def on_test_batch_end(self, batch: int, logs: Any = None) -> None:
        self._returns("val_", batch, logs)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self._returns("", batch, logs)
        if self._observer.is_over(self._trained):  # so that the script's second training begins soon
            self._trained.stop_training = True
            self._cut = batch + 1 != (self.params or {}).get("steps")

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        training = self._observer.trainings.of_fit(self._trained)
        if training is None or training.over or self._cut:
            return
        content = self._writer.content(training.number)
        kept = itertools.chain.from_iterable(getattr(each, "metrics", [each]) for each in self._trained.metrics)
        content["fit"] = {**self._facts, "metrics": {str(each.name): type(each).__name__ for each in kept}}
        numbers = {name: number for name, value in (logs or {}).items() if (number := _number(value)) is not None}
        seconds = time.perf_counter() - self._began
        last = {name: values for name, values in self._returned.items() if values[-1:] == [numbers.get(name)]}
        means = {name: float(np.mean(values)) for name, values in last.items()}
        content["epochs"].append(FitEpoch(training.steps, numbers, seconds, means))


def _averaged(writer: TraceWriter, original: Any, *args: Any, **options: Any) -> Any:
    writer.averages = True
    return original(*args, **options)


def _recorded(name: str, writer: TraceWriter, original: Any, dataset: Any, /, *args: Any, **options: Any) -> Any:
    given = by_name(original, dataset, args, options)
    first, *others = [_plain(value) for value in given.values()] or [""]
    named = (f"{key}={value}" for key, value in zip(list(given)[1:], others, strict=True))
    text = f"{name}({', '.join([first, *named])})"
    script = not str(sys._getframe(2).f_globals.get("__name__", "")).startswith(("keras", "tf_keras", "tensorflow"))
    if script and text not in writer.calls and len(writer.calls) < 50:
        writer.calls.append(text)
        if name == "shuffle":
            writer.shuffles.append(given.get("reshuffle_each_iteration") is not False)
    return original(dataset, *args, **options)


def _drawn(name: str, observer: Observer, writer: TraceWriter, original: Any, /, *args: Any, **options: Any) -> Any:
    ways, way = writer.drawn.setdefault(name, []), "eager" if tf.executing_eagerly() else "graph"
    if way not in ways:
        ways.append(way)
    numbers = original(*args, **options)
    observer.on_drawn(name, numbers)
    return numbers


def _plain(value: Any) -> str:
    """An argument as people write it; one that is no number in short."""
    text = str(value.numpy() if isinstance(value, tf.Tensor) and tf.executing_eagerly() else value)
    return text if len(text) < 20 else "…"


def _number(value: Any) -> float | None:
    """A reported value as a float; None if it is not a single number."""
    try:
        array = np.asarray(value)
        return float(array) if array.size == 1 else None
    except (TypeError, ValueError):
        return None


def _kind_of(metric: Any) -> str:
    """The class of a metric, or that of the function it wraps: the latter is what Keras 2 makes of "accuracy"."""
    kind = type(metric).__name__
    name = getattr(getattr(metric, "_fn", None), "__name__", "") if kind == "MeanMetricWrapper" else ""
    return name.title().replace("_", "") if name.isidentifier() else kind
