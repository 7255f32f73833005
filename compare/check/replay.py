"""An independent recomputation, on one plain model, of what a step or a validation must have given."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import tensorflow as tf

from compare.check.batches import Own
from compare.check.losses import broadcast, broadcastable, class_weights, other_logits
from compare.check.observation import Applied, Gradient, Rows
from compare.check.observe import fix_dropout
from compare.check.recipe import BROADCAST, GIVEN, OTHER_LOGITS, Clip, Parts, Place, Recipe
from compare.engine.run import restore_policy, scalars
from compare.experiment import Experiment

Batch = tuple[Any, ...]
"""(x, y) or (x, y, sample_weight) as NumPy arrays, or nests of them."""

KEPT_BYTES = 2**30
"""About how much memory a replay's results may take; they are made again where they are needed again."""


@dataclass(frozen=True)
class Pieces:
    """One replica's part of one step, in pieces from which recipes are put together.

    Attributes:
        data: ``[weights]``, the gradient of the sum of the examples' losses, in the variables' own type.
        regularization: ``[weights]``, the gradient of the layers' losses; a mere 0 where there are none.
        loss: the sum of the examples' losses.
        penalty: the sum of the layers' losses.
        outputs: of several outputs each one's own mean loss, by the name that it is reported under.
        predictions: what the model made of it.
        masks: the masks of the predictions, flat; None where there is none.
        weights: what the examples counted: sample and class weights together, or None.
        state: all variables after the forward pass.
        rows: of the trainable variables, by index, whose gradient is sparse, that of the data and that of the
            layers' losses; an optimizer may update only the rows of a sparse one.
    """

    data: np.ndarray
    regularization: np.ndarray
    loss: float
    penalty: float
    outputs: dict[str, float]
    predictions: Any
    masks: list[Any]
    weights: Any
    state: list[np.ndarray]
    rows: dict[int, tuple[Rows, Rows | None]]


class Replay:
    """Recomputes steps of one experiment outside of any strategy.

    What the losses of a part's examples come to, and its metrics, Keras itself computes: as ``compile``
    sets it up, on one replica, eagerly or in a graph of its own. All else is done by hand here.

    Args:
        experiment: what is trained.
        batches: the batches of every epoch, as the run hands them out.
        validation: the validation batches.
        replicas: how many replicas the observed runs have.
        global_batch_size: of a full batch.
        spec: of a batch, as tensor specs.
        own: the user's own run, for evidence in its numbers; None where they are not known.
    """

    def __init__(
        self,
        experiment: Experiment,
        batches: dict[int, list[Batch]],
        validation: list[Batch],
        *,
        replicas: int,
        global_batch_size: int,
        spec: Any,
        own: Own | None = None,
    ) -> None:
        self.experiment = experiment
        self.own = own
        self.replicas = replicas
        self.global_batch_size = global_batch_size
        self.validation = validation
        self.epochs = {epoch: _joined(each) for epoch, each in batches.items()}
        self.places = {epoch: _places(epoch, each) for epoch, each in batches.items()}
        self._signature = spec
        policy = tf.keras.mixed_precision.global_policy()
        self.model = experiment.build_model()
        self.scales_losses = self.model.dtype_policy.name == "mixed_float16"
        fix_dropout(self.model)
        # A call makes the weights of a model that waits for its input.
        x, y, *_ = next(iter(batches.values()))[0]
        self._first = tf.nest.map_structure(lambda a: tf.constant(a[:1]), (x, y))
        predictions = self.model(self._first[0])
        self.broadcastable = broadcastable(predictions, y)
        trainable = list(self.model.trainable_variables)
        taken = {id(v) for v in trainable}
        self.variables = [*trainable, *(v for v in self.model.variables if id(v) not in taken)]
        self.trainable = len(trainable)
        self.shapes = [tuple(v.shape) for v in trainable]
        of_layers = {metric.name for metric in self.model.metrics}  # of layers, which count whenever they are called
        losses = experiment.build_loss()
        self._factor = 1.0 if tf.nest.is_nested(losses) else self._times(losses)
        self._losses = {GIVEN: self._compiled(losses)}
        restore_policy(policy)
        self.output_losses = {metric.name for metric in self._losses[GIVEN].metrics} - {"loss"}
        self.metrics = {*self.measure(self._first[1], predictions)} - {"loss", *self.output_losses, *of_layers}
        self.rules: dict[bool, Any] = {}
        """Optimizers that were traced, for ``compare.check.optimizer_replay``."""
        self._functions: dict[Any, Any] = {}
        # By the step itself: a Checker's candidates come and go, and an id would be another's before long.
        self._kept: WeakKeyDictionary[Applied, dict[Any, Pieces]] = WeakKeyDictionary()
        self._handed: WeakKeyDictionary[Applied, dict[Any, list[np.ndarray]]] = WeakKeyDictionary()
        self._most, self._count = max(4, KEPT_BYTES // (8 * max(self.weights, 1))), 0

    # Facts about the experiment.

    @property
    def weighted(self) -> bool:
        """Whether training examples have weights."""
        return len(next(iter(self.epochs.values()))) == 3

    @property
    def class_weighted(self) -> bool:
        """Whether they have class weights."""
        return self.experiment.class_weight is not None

    def other_logits(self) -> tuple[Any, bool] | None:
        """The losses with the opposite ``from_logits``, and that flag of the first; None if none has it."""
        losses = self.experiment.build_loss()
        others = tf.nest.map_structure(other_logits, losses)
        flags = [each.get_config().get("from_logits", getattr(each, "from_logits", None)) for each in _present(others)]
        if not flags:
            return None
        return tf.nest.map_structure(lambda loss, other: other or loss, losses, others), flags[0]

    def measure(self, y: Any, predictions: Any, weights: Any = None, masks: Sequence[Any] = ()) -> dict[str, float]:
        """All metrics of these examples, by the names that ``fit`` reports them under."""
        y, predictions = tf.nest.map_structure(tf.convert_to_tensor, (y, predictions))
        if weights is not None:
            weights = tf.nest.map_structure(tf.convert_to_tensor, weights)  # Keras 2 takes no arrays here
        for tensor, mask in zip(tf.nest.flatten(predictions), masks, strict=False):
            if mask is not None:
                tensor._keras_mask = mask  # where Keras's own losses and metrics look for it
        self.model.reset_metrics()
        results = self.model.compute_metrics(None, y, predictions, weights)
        return scalars({name: value for name, value in results.items() if np.ndim(value) <= 1})

    def _compiled(self, losses: Any) -> Any:
        """Keras's own sum of all outputs' losses, as ``compile`` understands them: ``(y, predictions, weights)``."""
        of_outputs = self.experiment.loss_weights
        if self.replicas > 1 and tf.nest.is_nested(losses):
            # Means are divided by the number of replicas, sums are not: see _compute, which does so with all.
            given = of_outputs if tf.nest.is_nested(of_outputs) else tf.nest.map_structure(lambda _: 1.0, losses)
            factors = tf.nest.map_structure(self._times, losses)
            if any(factor != 1 for factor in tf.nest.flatten(factors)):
                of_outputs = tf.nest.map_structure(lambda a, b: a * b, given, factors)
        self.model.compile(
            loss=losses,
            loss_weights=of_outputs,
            metrics=self.experiment.build_metrics() or None,
            weighted_metrics=self.experiment.build_weighted_metrics() or None,
            jit_compile=False,
        )
        compiled = self.model._compile_loss if hasattr(self.model, "_compile_loss") else self.model.compiled_loss
        x, y = self._first
        compiled(y, self.model(x))  # makes its metrics' variables, which must not be made in a graph
        return compiled

    def _times(self, loss: Any) -> float:
        """What a loss counts next to a mean over the part of one replica."""
        return float(self.replicas) if getattr(loss, "reduction", None) == "sum" else 1.0

    # Steps.

    def batch(self, place: Place) -> Batch:
        """The examples at a place."""
        return _slice(self.epochs[place.epoch], place.start, place.stop)

    def divided(self, batch: Batch) -> list[Batch]:
        """A batch in the parts that the replicas get of it."""
        return [_slice(batch, part.start, part.stop) for part in self.parts(Place(0, 0, length(batch)))]

    def parts(self, place: Place) -> list[Place]:
        """What each replica gets of a batch: as tf.distribute splits it, the last ones less, or nothing."""
        size = -(-(place.stop - place.start) // self.replicas)
        edges = [min(place.start + i * size, place.stop) for i in range(self.replicas + 1)]
        return [Place(place.epoch, a, b) for a, b in itertools.pairwise(edges)]

    def pieces(self, step: Applied, replica: int, part: Place, recipe: Recipe, nudge: int = 0) -> Pieces:
        """One replica's part of one step, from the weights that it had.

        Args:
            step: the step.
            replica: the replica.
            part: its part of the batch.
            recipe: how; its forward pass counts here, and the loss.
            nudge: other than 0, every trainable weight is moved by one unit in the last place, up or
                down, another way for every number.
        """
        forward = recipe.training, recipe.loss, recipe.sample_weights, recipe.class_weights, recipe.xla, recipe.scale
        key = replica, part, forward, nudge
        kept = self._kept.setdefault(step, {})
        if key not in kept:
            state = [*step.state[replica][: self.trainable], *step.before[replica][self.trainable :]]
            if nudge:
                generator = np.random.default_rng([nudge, replica])
                for i, value in enumerate(state[: self.trainable]):
                    away = np.where(generator.random(value.shape) < 0.5, np.inf, -np.inf).astype(value.dtype)
                    state[i] = np.nextafter(value, away)
            if self._count >= self._most:
                self._kept.clear()
                self._count, kept = 0, self._kept.setdefault(step, {})
            self._count += 1
            kept[key] = self._compute(state, self.batch(part), recipe, trains=True)
        return kept[key]

    def handed(self, step: Applied, place: Place, recipe: Recipe, nudge: int = 0) -> list[np.ndarray]:
        """float64 ``[weights]`` per replica: what its optimizer is handed."""
        kept = self._handed.setdefault(step, {})
        if (place, recipe, nudge) not in kept:
            if sum(map(len, self._handed.values())) * self.replicas >= self._most // 2:
                self._handed.clear()
                kept = self._handed.setdefault(step, {})
            kept[place, recipe, nudge] = self._handed_now(step, place, recipe, nudge)
        return kept[place, recipe, nudge]

    def _handed_now(self, step: Applied, place: Place, recipe: Recipe, nudge: int) -> list[np.ndarray]:
        parts = self.parts(place)
        split = Parts(tuple(part.stop - part.start for part in parts), self.global_batch_size)
        share = recipe.share(split)
        handed = []
        for replica, part in enumerate(parts):
            if part.start == part.stop:
                handed.append(np.zeros(self.weights))
                continue
            pieces = self.pieces(step, replica, part, recipe, nudge)
            layers = recipe.regularization / self.replicas * pieces.regularization.astype(np.float64)
            gradient = share[replica] * pieces.data.astype(np.float64) + layers
            handed.append(self._without(gradient, recipe.untrained))
        if recipe.clip is not None and not recipe.clip.reduced:
            handed = [self.clipped(each, recipe.clip) for each in handed]
        return handed

    def given(self, step: Applied, place: Place, recipe: Recipe, nudge: int = 0) -> list[list[Gradient]]:
        """``[replica][trainable variable]``: as ``handed``, in the variables' own types and sparse where fit's are."""
        parts = self.parts(place)
        share = recipe.share(Parts(tuple(part.stop - part.start for part in parts), self.global_batch_size))
        given: list[list[Gradient]] = []
        for replica, flat in enumerate(self.handed(step, place, recipe, nudge)):
            like = step.state[replica]
            gradients: list[Gradient] = [part.astype(v.dtype) for part, v in zip(self.split(flat), like, strict=False)]
            if recipe.clip is None and parts[replica].start < parts[replica].stop:
                rows = self.pieces(step, replica, parts[replica], recipe, nudge).rows
                for k, (data, own) in rows.items():
                    if k not in recipe.untrained:
                        gradients[k] = _weighed(data, share[replica], own, recipe.regularization / self.replicas)
            given.append(gradients)
        return given

    def gradients(self, step: Applied, place: Place, recipe: Recipe, nudge: int = 0) -> list[np.ndarray]:
        """float64 ``[weights]`` per replica: what its update is made from, the optimizer's clipping aside."""
        handed = self.handed(step, place, recipe, nudge)
        if recipe.reduce == "own":
            return handed
        total = handed[0] if recipe.reduce == "first" else np.sum(handed, axis=0)
        if recipe.clip is not None and recipe.clip.reduced:
            total = self.clipped(total, recipe.clip)
        return [total] * self.replicas

    @property
    def weights(self) -> int:
        """How many trainable weights there are."""
        return sum(int(np.prod(shape)) for shape in self.shapes)

    def flat(self, arrays: Sequence[Gradient]) -> np.ndarray:
        """Gradients of all trainable variables in one float64 vector; a missing one is zero."""
        given = zip(arrays, self.shapes, strict=True)
        return np.concatenate(
            [np.zeros(int(np.prod(s))) if a is None else np.asarray(a).astype(np.float64).ravel() for a, s in given]
        )

    def split(self, flat: np.ndarray) -> list[np.ndarray]:
        """The reverse of ``flat``."""
        edges = np.cumsum([int(np.prod(shape)) for shape in self.shapes])[:-1]
        return [part.reshape(shape) for part, shape in zip(np.split(flat, edges), self.shapes, strict=True)]

    def clipped(self, flat: np.ndarray, clip: Clip) -> np.ndarray:
        """A gradient after clipping."""
        if clip.kind == "value":
            return np.asarray(np.clip(flat, -clip.limit, clip.limit))
        if clip.kind == "global":
            return np.asarray(flat * min(1.0, clip.limit / (np.linalg.norm(flat) or 1.0)))
        each = self.split(flat)
        return self.flat([part * min(1.0, clip.limit / (np.linalg.norm(part) or 1.0)) for part in each])

    def forward(self, state: Sequence[np.ndarray], batch: Batch, recipe: Recipe) -> Pieces:
        """A validation batch, or one replica's part of it, through the model with the given weights."""
        return self._compute(state, batch, recipe, trains=False)

    def assign(self, state: Sequence[np.ndarray]) -> None:
        """Give the model weights."""
        for variable, value in zip(self.variables, state, strict=True):
            variable.assign(value)

    def _without(self, flat: np.ndarray, untrained: frozenset[int]) -> np.ndarray:
        if not untrained:
            return flat
        return self.flat([None if i in untrained else part for i, part in enumerate(self.split(flat))])

    def _compute(self, state: Sequence[np.ndarray], batch: Batch, recipe: Recipe, *, trains: bool) -> Pieces:
        self.assign(state)
        x, y = batch[0], batch[1]
        weights = batch[2] if len(batch) == 3 and recipe.sample_weights else None
        if trains and recipe.class_weights and self.experiment.class_weight is not None:
            of_classes = class_weights(y, self.experiment.class_weight)
            weights = of_classes if weights is None else weights * of_classes
        inputs = tf.nest.map_structure(tf.constant, (x, y) if weights is None else (x, y, weights))
        compute = self._function(recipe, inputs, trains)
        scale = tf.constant(recipe.scale)
        data, regularization, sparse, loss, penalty, outputs, predictions, masks = compute(scale, *inputs)
        return Pieces(
            _packed(data),
            _packed(regularization),
            float(loss),
            float(penalty),
            {name: float(value) for name, value in outputs.items()},
            predictions,
            masks,
            weights,
            # A forward pass leaves what is trained as it is.
            [*state[: self.trainable], *(np.array(v.numpy()) for v in self.variables[self.trainable :])],
            {int(k): self._rows(int(k), *parts) for k, parts in sparse.items()},
        )

    def _rows(self, k: int, data: Any, own: Any) -> tuple[Rows, Rows | None]:
        shape = self.shapes[k]
        of_data, *of_layers = [
            Rows(np.asarray(indices, np.int64), np.asarray(values), shape) for indices, values in (data, *own)
        ]
        return of_data, of_layers[0] if of_layers else None

    def _function(self, recipe: Recipe, inputs: Any, trains: bool) -> Any:
        """The forward pass, and backwards too if it ``trains``, as a graph that is traced once."""
        key = recipe.training, recipe.loss, recipe.xla, len(inputs), trains
        if key in self._functions:
            return self._functions[key]
        if recipe.loss == OTHER_LOGITS and (others := self.other_logits()) and OTHER_LOGITS not in self._losses:
            self._losses[OTHER_LOGITS] = self._compiled(others[0])
        loss = self._losses.get(recipe.loss, self._losses[GIVEN])
        x, y, *_ = self._signature
        open_sizes = tf.nest.map_structure(lambda t: tf.TensorSpec([None, *t.shape[1:]], t.dtype), inputs[2:])

        def forward(x: Any, y: Any, weights: Any = None) -> Any:
            predictions = self.model(x, training=recipe.training)
            for metric in loss.metrics:
                metric.reset_state()
            if recipe.loss == BROADCAST:
                value = broadcast(self.experiment.build_loss(), y, predictions, weights)
            elif recipe.loss == OTHER_LOGITS:
                # Of a Softmax layer's output Keras finds the logits whatever the flag says, but not through this.
                value = loss(y, tf.nest.map_structure(tf.identity, predictions), weights)
            else:
                value = loss(y, predictions, weights)
            # A sum is what it is; of a mean each example's share is known, and Keras's is that of one replica.
            examples = tf.cast(tf.shape(tf.nest.flatten(x)[0])[0], value.dtype)
            total = value * examples * self._factor
            own = [tf.reduce_sum(tf.cast(each, value.dtype)) for each in self.model.losses]
            self._has_own = bool(own)
            outputs = {metric.name: metric.result() for metric in loss.metrics}
            masks = [getattr(each, "_keras_mask", None) for each in tf.nest.flatten(predictions)]
            return total, tf.add_n(own or [tf.zeros([], value.dtype)]), outputs, predictions, masks

        def validate(scale: tf.Tensor, *inputs: Any) -> Any:
            return [], [], {}, *forward(*inputs)

        def train(scale: tf.Tensor, *inputs: Any) -> Any:
            variables = [v.value if hasattr(v, "value") and not callable(v.value) else v for v in self.variables]
            with tf.GradientTape(persistent=True) as tape:
                total, penalty, *rest = forward(*inputs)
                scaled = total * tf.cast(scale, total.dtype)
            data = tape.gradient(scaled, variables[: self.trainable])
            own = tape.gradient(penalty, variables[: self.trainable])
            undone = [_divided(each, scale) for each in data]
            sparse = {
                str(k): ((a.indices, a.values), [] if b is None else [(b.indices, b.values)])
                for k, (a, b) in enumerate(zip(undone, own, strict=True))
                if isinstance(a, tf.IndexedSlices) and (b is None or isinstance(b, tf.IndexedSlices))
            }
            dense = [_dense(each, variables) for each in ((undone, own) if self._has_own else (undone,))]
            return dense[0], dense[1] if self._has_own else [], sparse, total, penalty, *rest

        function, signature = train if trains else validate, [tf.TensorSpec([]), x, y, *open_sizes]
        self._functions[key] = tf.function(function, input_signature=signature, jit_compile=recipe.xla)
        return self._functions[key]


def _present(nest: Any) -> list[Any]:
    return [each for each in tf.nest.flatten(nest) if each is not None]


def _divided(gradient: Any, factor: tf.Tensor) -> Any:
    if isinstance(gradient, tf.IndexedSlices):
        return tf.IndexedSlices(_divided(gradient.values, factor), gradient.indices, gradient.dense_shape)
    return None if gradient is None else gradient / tf.cast(factor, gradient.dtype)


def _dense(gradients: Sequence[Any], variables: Sequence[Any]) -> list[tf.Tensor]:
    """The gradients as plain tensors; zero where there is none."""
    pairs = zip(gradients, variables, strict=False)
    return [tf.zeros_like(variable) if each is None else tf.convert_to_tensor(each) for each, variable in pairs]


def _weighed(data: Rows, share: float, own: Rows | None, weight: float) -> Rows:
    """The rows of a loss: the data's times their share, and the layers' times theirs."""
    indices, values = [data.indices], [data.values * np.asarray(share, data.values.dtype)]
    if own is not None:
        indices.append(own.indices)
        values.append(own.values * np.asarray(weight, own.values.dtype))
    return Rows(np.concatenate(indices), np.concatenate(values), data.shape)


def _packed(gradients: Sequence[tf.Tensor]) -> np.ndarray:
    return np.concatenate([np.asarray(each).ravel() for each in gradients]) if gradients else np.zeros(())


def _joined(batches: Sequence[Batch]) -> Batch:
    return tf.nest.map_structure(lambda *arrays: np.concatenate(arrays), *batches)  # type: ignore[no-any-return]


def _slice(batch: Batch, start: int, stop: int) -> Batch:
    return tf.nest.map_structure(lambda array: array[start:stop], batch)  # type: ignore[no-any-return]


def length(batch: Batch) -> int:
    """How many examples a batch has."""
    return len(tf.nest.flatten(batch)[0])


def _places(epoch: int, batches: Sequence[Batch]) -> list[Place]:
    edges = np.cumsum([0, *map(length, batches)])
    return [Place(epoch, int(a), int(b)) for a, b in itertools.pairwise(edges)]


def effective(step: Applied, replay: Replay) -> list[np.ndarray]:
    """float64 ``[weights]`` per replica: what its update was made from, before the optimizer's clipping."""
    handed = [replay.flat(gradients) for gradients in step.gradients]
    return [np.sum(handed, axis=0)] * len(handed)
