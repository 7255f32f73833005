"""Recomputes the steps and validation of an experiment on one model, outside any strategy."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from functools import cached_property, lru_cache, partial
from typing import Any

import numpy as np
import tensorflow as tf

from compare.check.batches import UserRun
from compare.check.observation import Gradient, OptimizerStep
from compare.check.recipe import Clip, LossKind, Recipe, Span, Split
from compare.check.replay_parts import (
    OPTIONS,
    Batch,
    Broadcast,
    PassResult,
    add_rows,
    batch_spans,
    broadcastable,
    class_weights,
    concatenate,
    dense,
    divide,
    in_inference,
    is_masking,
    length,
    micro_batches,
    pack,
    slice_batch,
    sparse_rows,
    unmasked,
    unrecovered,
    with_other,
)
from compare.engine.building import own_policy, scalars
from compare.engine.fingerprints import distributed
from compare.engine.insides_tensorflow import own_graph
from compare.engine.keras_generation import CONVERTS_STEPS, compiled_loss, fix_dropout, learning_rate
from compare.engine.preflight import split_sizes
from compare.experiment import Experiment
from compare.patching import patch, undone

CACHE_BYTES = 2**30
"""The approximate memory limit of a replay's cached results; results beyond it are recomputed when needed."""
MOST_RESULTS = 1024
"""The largest number of them: predictions may be larger than the weights, and the steps of earlier candidates stay."""


class Replay:
    """Recomputes steps of one experiment outside any strategy.

    Keras computes losses and metrics as ``compile`` sets them up, on one replica. Everything else, such as shares,
    reduction and clipping, is computed here.

    Args:
        batches: the batches of every epoch, as the run provides them.
        user_run: the size of the user's own run, for evidence; None if unknown.
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
        user_run: UserRun | None = None,
    ) -> None:
        self.experiment = experiment
        self.user_run = user_run
        self.replicas = replicas
        self.global_batch_size = global_batch_size
        self.validation = validation
        self.epochs = {epoch: concatenate(of_epoch) for epoch, of_epoch in batches.items()}
        self.spans = {epoch: batch_spans(epoch, of_epoch) for epoch, of_epoch in batches.items()}
        self._signature = spec
        with own_policy():
            self.model = experiment.build_model()
            optimizer = experiment.build_optimizer()
            half = self.model.dtype_policy.name == "mixed_float16"
            self.scales_losses = half or isinstance(optimizer, tf.keras.mixed_precision.LossScaleOptimizer)
            self._optimizer = getattr(optimizer, "inner_optimizer", optimizer)
            fix_dropout(self.model)
            # Calling a deferred model builds its weights.
            x, y, *_ = next(iter(batches.values()))[0]
            self._first = tf.nest.map_structure(lambda a: tf.constant(a[:1]), (x, y))
            predictions = self.model(self._first[0])
            self.broadcastable = broadcastable(predictions, y)
            trainable = list(self.model.trainable_variables)
            taken = {id(v) for v in trainable}
            self.variables = [*trainable, *(v for v in self.model.variables if id(v) not in taken)]
            self.trainable = len(trainable)
            self.shapes = [tuple(v.shape) for v in trainable]
            of_layers = {metric.name for metric in self.model.metrics}  # which are updated on every call
            losses = experiment.build_loss()
            self._factor = 1.0 if tf.nest.is_nested(losses) else self._sum_factor(losses)
            self._losses: dict[Any, Any] = {LossKind.GIVEN: self._compiled(losses)}
            self.masked = False
        self.output_losses = {metric.name for metric in self._losses[LossKind.GIVEN].metrics} - {"loss"}
        self.metrics = {*self.measure(self._first[1], predictions)} - {"loss", *self.output_losses, *of_layers}
        self.optimizers: dict[bool, Any] = {}
        """Traced optimizers, for ``compare.check.optimizer_replay``."""
        self._functions: dict[Any, Any] = {}
        most = min(MOST_RESULTS, max(4, CACHE_BYTES // (8 * max(self.weights, 1))))
        self._pass = lru_cache(most)(self._compute_pass)
        self.replica_gradients = lru_cache(max(1, most // 2 // replicas))(self._compute_replica_gradients)

    # Facts about the experiment.

    @property
    def weighted(self) -> bool:
        return len(next(iter(self.epochs.values()))) == 3

    def other_losses(self, kind: LossKind) -> tuple[Any, Any] | None:
        """The losses of a kind in ``OPTIONS``, and what the first one is given; None if no loss has that option."""
        option, change = OPTIONS[kind]
        losses = self.experiment.build_loss()
        flat = tf.nest.flatten(losses)
        changed = [with_other(loss, option, change) for loss in flat]
        given = [value for _, value in filter(None, changed)]
        others = [loss if other is None else other[0] for loss, other in zip(flat, changed, strict=True)]
        return (tf.nest.pack_sequence_as(losses, others), given[0]) if given else None

    def squash(self) -> Any:
        """The function that makes probabilities of the logits that the loss takes; None if it takes none."""
        loss = self.experiment.build_loss()
        options = getattr(loss, "_fn_kwargs", {})
        if tf.nest.is_nested(loss) or not getattr(loss, "from_logits", options.get("from_logits")):
            return None
        return tf.nn.sigmoid if "Binary" in type(loss).__name__ else tf.nn.softmax

    @cached_property
    def recovers(self) -> bool:
        """Whether Keras computes the loss from logits that it finds behind the model's probabilities, in a graph."""
        x, y = self._first

        def losses() -> tuple[tf.Tensor, tf.Tensor]:
            predictions = self.model(x, training=False)
            loss = self._losses[LossKind.GIVEN]
            return loss(y, predictions), loss(y, tf.nest.map_structure(unrecovered, predictions))

        given, behind = (float(value) for value in own_graph(losses)())
        return abs(given - behind) > 1e-3 * max(abs(given), abs(behind))

    @property
    def loss_weights(self) -> tuple[tuple[str, ...], tuple[float, ...]] | None:
        """The names of several outputs, and the weights of their losses, in order; None if there is one loss."""
        losses, weights = self.experiment.build_loss(), self.experiment.loss_weights
        if not tf.nest.is_nested(losses):
            return None
        names = sorted(losses) if isinstance(losses, dict) else [str(i + 1) for i in range(len(losses))]
        if isinstance(weights, dict) or weights is None:
            weights = [(weights or {}).get(name, 1.0) for name in names]
        given = weights if tf.nest.is_nested(weights) else [weights] * len(names)
        return tuple(names), tuple(float(weight) for weight in given)

    @property
    def initial_rate(self) -> float:
        """The learning rate that the experiment's optimizer begins with."""
        return float(learning_rate(self._optimizer))

    def scheduled(self, step: int) -> float | None:
        """The learning rate of the experiment's schedule at a step, from 0; None without a schedule."""
        schedule = getattr(self._optimizer, "_learning_rate", None)
        if not isinstance(schedule, tf.keras.optimizers.schedules.LearningRateSchedule):
            return None
        return float(schedule(tf.constant(step, tf.int64)))

    @property
    def masking(self) -> list[int]:
        """The indices, among all layers, of those that make masks."""
        layers = self.model._flatten_layers(include_self=False)
        return [i for i, layer in enumerate(layers) if getattr(layer, "mask_zero", False) or is_masking(layer)]

    @property
    def layers(self) -> list[str]:
        """The names of all layers of this model, which are not those of the observed one."""
        return [layer.name for layer in self.model._flatten_layers(include_self=False)]

    def measure(self, y: Any, predictions: Any, weights: Any = None, masks: Sequence[Any] = ()) -> dict[str, float]:
        """Returns all metrics of these examples, by the names that ``fit`` reports."""
        y, predictions = tf.nest.map_structure(tf.convert_to_tensor, (y, predictions))
        if weights is not None:
            weights = tf.nest.map_structure(tf.convert_to_tensor, weights)
        for tensor, mask in zip(tf.nest.flatten(predictions), masks, strict=False):
            if mask is not None:
                tensor._keras_mask = mask  # where Keras's losses and metrics expect it
        self.model.reset_metrics()
        results = self.model.compute_metrics(None, y, predictions, weights)
        return scalars({name: value for name, value in results.items() if np.ndim(value) <= 1})

    def _compiled(self, losses: Any, loss_weights: Any = None) -> Any:
        """Compiles the model; returns Keras's loss of all outputs, a function of ``(y, predictions, weights)``."""
        if loss_weights is None:
            loss_weights = self.experiment.loss_weights
        if self.replicas > 1 and tf.nest.is_nested(losses):
            # The share divides by the number of replicas, which is right for means but not for sums.
            given = loss_weights if tf.nest.is_nested(loss_weights) else tf.nest.map_structure(lambda _: 1.0, losses)
            factors = tf.nest.map_structure(self._sum_factor, losses)
            if any(factor != 1 for factor in tf.nest.flatten(factors)):
                loss_weights = tf.nest.map_structure(lambda a, b: a * b, given, factors)
        self.model.compile(
            loss=losses,
            loss_weights=loss_weights,
            metrics=self.experiment.build_metrics() or None,
            weighted_metrics=self.experiment.build_weighted_metrics() or None,
            jit_compile=False,
        )
        compiled = compiled_loss(self.model)
        x, y = self._first
        # Creates the metrics' variables, which is not allowed in a graph; from no Softmax, as in _forward_pass.
        compiled(y, tf.nest.map_structure(tf.identity, self.model(x)))
        return compiled

    def _sum_factor(self, loss: Any) -> float:
        """The factor by which a loss is multiplied so that dividing it by the number of replicas is right."""
        return float(self.replicas) if getattr(loss, "reduction", None) == "sum" else 1.0

    # Steps.

    def batch(self, span: Span) -> Batch:
        return slice_batch(self.epochs[span.epoch], span.start, span.stop)

    def divided(self, batch: Batch) -> list[Batch]:
        return [slice_batch(batch, part.start, part.stop) for part in self.parts(Span(0, 0, length(batch)))]

    def parts(self, span: Span) -> list[Span]:
        """Splits a span over the replicas as tf.distribute does: the last replicas may get less, or nothing."""
        edges = itertools.accumulate(split_sizes(span.stop - span.start, self.replicas), initial=span.start)
        return [Span(span.epoch, a, b) for a, b in itertools.pairwise(edges)]

    def _split(self, span: Span) -> Split:
        return Split(tuple(part.stop - part.start for part in self.parts(span)), self.global_batch_size)

    def replica_pass(self, step: OptimizerStep, replica: int, part: Span, recipe: Recipe, nudge: int = 0) -> PassResult:
        """Recomputes one replica's part of one step, from the weights that it had.

        Args:
            recipe: how the step is computed; only its forward pass and loss are used.
            nudge: if not 0, every trainable weight is changed by one unit in the last place, up or down at random;
                also the random seed.
        """
        return self._pass(step, replica, part, recipe.one_pass, nudge)

    def _compute_pass(self, step: OptimizerStep, replica: int, part: Span, recipe: Recipe, nudge: int) -> PassResult:
        state = [*step.state[replica][: self.trainable], *step.before[replica][self.trainable :]]
        if nudge:
            generator = np.random.default_rng([nudge, replica])
            for i, value in enumerate(state[: self.trainable]):
                target = np.where(generator.random(value.shape) < 0.5, np.inf, -np.inf).astype(value.dtype)
                state[i] = np.nextafter(value, target)
        return self.compute(state, self.batch(part), recipe, trains=True)

    def _compute_replica_gradients(
        self, step: OptimizerStep, span: Span, recipe: Recipe, nudge: int = 0
    ) -> list[np.ndarray]:
        """The gradients passed to the optimizer, per replica: float64 ``[weights]``."""
        parts, share = self.parts(span), recipe.share(self._split(span))
        gradients = []
        for replica, part in enumerate(parts):
            gradient = np.zeros(self.weights)
            for piece in micro_batches(part, recipe.micro):
                result = self.replica_pass(step, replica, piece, recipe, nudge)
                of_layers = recipe.regularization / self.replicas * result.regularization.astype(np.float64)
                weight = share[replica]
                if recipe.micro:
                    weight = recipe.micro_factor / (self.replicas * (piece.stop - piece.start))
                    of_layers = recipe.micro_factor * of_layers
                gradient += weight * result.data.astype(np.float64) + of_layers
            trained = [None if i in recipe.untrained else part for i, part in enumerate(self.unflatten(gradient))]
            gradients.append(self.flatten(trained))
        if recipe.clip is not None and not recipe.clip.reduced:
            gradients = [self.clipped(gradient, recipe.clip) for gradient in gradients]
        return gradients

    def typed_gradients(self, step: OptimizerStep, span: Span, recipe: Recipe, nudge: int = 0) -> list[list[Gradient]]:
        """``[replica][trainable variable]``: as ``replica_gradients``, in the variables' dtypes, sparse as in fit."""
        parts, share = self.parts(span), recipe.share(self._split(span))
        typed: list[list[Gradient]] = []
        for replica, flat in enumerate(self.replica_gradients(step, span, recipe, nudge)):
            state = step.state[replica]
            gradients: list[Gradient] = [
                part.astype(v.dtype) for part, v in zip(self.unflatten(flat), state, strict=False)
            ]
            if recipe.clip is None and not recipe.micro and parts[replica].start < parts[replica].stop:
                rows = self.replica_pass(step, replica, parts[replica], recipe, nudge).rows
                for k, (data, of_layers) in rows.items():
                    if k not in recipe.untrained:
                        gradients[k] = add_rows(data, share[replica], of_layers, recipe.regularization / self.replicas)
            typed.append(gradients)
        return typed

    def gradients(self, step: OptimizerStep, span: Span, recipe: Recipe, nudge: int = 0) -> list[np.ndarray]:
        """float64 ``[weights]`` per replica: what the update is made from, before the optimizer's clipping."""
        gradients = self.replica_gradients(step, span, recipe, nudge)
        if recipe.reduce == "own":
            return gradients
        total = gradients[0] if recipe.reduce == "first" else np.sum(gradients, axis=0)
        if recipe.clip is not None and recipe.clip.reduced:
            total = self.clipped(total, recipe.clip)
        return [total] * self.replicas

    @property
    def weights(self) -> int:
        return sum(int(np.prod(shape)) for shape in self.shapes)

    def flatten(self, arrays: Sequence[Gradient]) -> np.ndarray:
        """Concatenates gradients of all trainable variables into one float64 vector; a missing one is zero."""
        pairs = zip(arrays, self.shapes, strict=True)
        return np.concatenate(
            [np.zeros(int(np.prod(s))) if a is None else np.asarray(a).astype(np.float64).ravel() for a, s in pairs]
        )

    def unflatten(self, flat: np.ndarray) -> list[np.ndarray]:
        """Splits one vector into arrays of the trainable variables' shapes."""
        edges = np.cumsum([int(np.prod(shape)) for shape in self.shapes])[:-1]
        return [part.reshape(shape) for part, shape in zip(np.split(flat, edges), self.shapes, strict=True)]

    def clipped(self, flat: np.ndarray, clip: Clip) -> np.ndarray:
        return self.flatten(clip.of(self.unflatten(flat)))

    def compute(self, state: Sequence[np.ndarray], batch: Batch, recipe: Recipe, *, trains: bool = False) -> PassResult:
        """Evaluates a batch, such as one of validation, or one replica's part of it, with the given weights."""
        for variable, value in zip(self.variables, state, strict=True):
            variable.assign(value)
        x, y = batch[0], batch[1]
        weights = batch[2] if len(batch) == 3 and recipe.sample_weights else None
        if trains and recipe.class_weights and self.experiment.class_weight is not None:
            of_classes = class_weights(y, self.experiment.class_weight)
            weights = of_classes if weights is None else weights * of_classes
        inputs = tf.nest.map_structure(tf.constant, (x, y) if weights is None else (x, y, weights))
        compute = self._function(recipe, inputs, trains)
        numbers = tf.constant(recipe.scale), tf.constant(sorted(recipe.omitted), tf.int32)
        data, regularization, sparse, loss, penalties, outputs, predictions, masks = compute(*numbers, *inputs)
        return PassResult(
            pack(data),
            pack(regularization),
            float(loss),
            [float(penalty) for penalty in penalties],
            {name: float(value) for name, value in outputs.items()},
            predictions,
            masks,
            weights,
            # A forward pass does not change trainable variables.
            [*state[: self.trainable], *(np.array(v.numpy()) for v in self.variables[self.trainable :])],
            {int(k): sparse_rows(self.shapes[int(k)], *parts) for k, parts in sparse.items()},
        )

    def _function(self, recipe: Recipe, inputs: Any, trains: bool) -> Any:
        """The forward pass, and the backward pass if it ``trains``, as a graph that is traced once."""
        key = *recipe.graph, len(inputs), trains
        if key not in self._functions:
            self._loss_of(recipe)
            x, y, *_ = self._signature
            open_sizes = tf.nest.map_structure(lambda t: tf.TensorSpec([None, *t.shape[1:]], t.dtype), inputs[2:])
            signature = [tf.TensorSpec([]), tf.TensorSpec([None], tf.int32), x, y, *open_sizes]
            function = self._training_pass if trains else self._validation_pass

            def traced(scale: tf.Tensor, omitted: tf.Tensor, *inputs: Any) -> Any:
                return function(recipe, scale, omitted, *inputs)

            self._functions[key] = own_graph(
                traced, input_signature=signature, jit_compile=recipe.xla, autograph=CONVERTS_STEPS
            )
        return self._functions[key]

    def _loss_of(self, recipe: Recipe) -> Any:
        """Keras's loss of a recipe, compiled at its first use, which must not be in a graph."""
        key = recipe.loss_weights or (recipe.loss, recipe.output)
        if key not in self._losses:
            losses, weights = self.experiment.build_loss(), None
            flat = tf.nest.flatten(losses)
            if recipe.loss_weights is not None:
                weights = tf.nest.pack_sequence_as(losses, list(recipe.loss_weights))
            elif recipe.loss == LossKind.BROADCAST:
                flat[recipe.output] = Broadcast(flat[recipe.output])
                losses = tf.nest.pack_sequence_as(losses, flat)
            elif recipe.loss in OPTIONS and (others := self.other_losses(recipe.loss)):
                losses = others[0]
            else:
                return self._losses[LossKind.GIVEN]
            self._losses[key] = self._compiled(losses, weights)
        return self._losses[key]

    def _forward_pass(self, recipe: Recipe, omitted: tf.Tensor, x: Any, y: Any, weights: Any = None) -> Any:
        """Returns total loss, losses of layers, losses of outputs, predictions, and masks; traced.

        The total is the sum of the examples' losses.
        """
        kind, loss = recipe.loss_weights or recipe.loss, self._loss_of(recipe)
        with undone():
            for layer in self.model._flatten_layers():
                if layer.name in recipe.inference:
                    patch(layer, "call", in_inference)
                if not recipe.masks:
                    patch(layer, "call", partial(unmasked, layer))
                    patch(layer, "compute_mask", lambda *_, **__: None)
            predictions = self.model(x, training=recipe.training)
        masks = [getattr(tensor, "_keras_mask", None) for tensor in tf.nest.flatten(predictions)]
        self.masked = any(mask is not None for mask in masks)
        if kind == LossKind.UNMASKED:
            for tensor in tf.nest.flatten(predictions):
                tensor._keras_mask = None
        for metric in loss.metrics:
            metric.reset_state()
        if kind == LossKind.SQUASHED:
            squashed = tf.nest.map_structure(self.squash(), predictions)
            value = loss(y, tf.nest.map_structure(tf.identity, squashed), weights)  # see below
        elif kind in (LossKind.OTHER_LOGITS, LossKind.UNRECOVERED):
            # From a Softmax layer's output Keras recovers the logits whatever the flag says, but not through identity.
            value = loss(y, tf.nest.map_structure(unrecovered, predictions), weights)
        else:
            value = loss(y, predictions, weights)
        # Keras gives one replica's mean, to be multiplied by the number of examples; a sum is corrected by the factor.
        examples = tf.cast(tf.shape(tf.nest.flatten(x)[0])[0], value.dtype)
        total = value * examples * self._factor
        kept = [tf.cast(tf.reduce_all(omitted != i), value.dtype) for i in range(len(self.model.losses))]
        losses = zip(kept, self.model.losses, strict=True)
        penalties = [weight * tf.reduce_sum(tf.cast(penalty, value.dtype)) for weight, penalty in losses]
        self._has_penalties = bool(penalties)
        outputs = {metric.name: metric.result() for metric in loss.metrics}
        return total, penalties, outputs, predictions, masks

    def _validation_pass(self, recipe: Recipe, scale: tf.Tensor, omitted: tf.Tensor, *inputs: Any) -> Any:
        return [], [], {}, *self._forward_pass(recipe, omitted, *inputs)

    def _training_pass(self, recipe: Recipe, scale: tf.Tensor, omitted: tf.Tensor, *inputs: Any) -> Any:
        variables = [distributed(variable) for variable in self.variables]
        with tf.GradientTape(persistent=True) as tape:
            total, penalties, *rest = self._forward_pass(recipe, omitted, *inputs)
            penalty = tf.add_n(penalties or [tf.zeros([], total.dtype)])
            scaled = total * tf.cast(scale, total.dtype)
        of_data = tape.gradient(scaled, variables[: self.trainable])
        of_layers = tape.gradient(penalty, variables[: self.trainable])
        of_data = [divide(gradient, scale) for gradient in of_data]
        sparse = {
            str(k): ((a.indices, a.values), [] if b is None else [(b.indices, b.values)])
            for k, (a, b) in enumerate(zip(of_data, of_layers, strict=True))
            if isinstance(a, tf.IndexedSlices) and (b is None or isinstance(b, tf.IndexedSlices))
        }
        data = dense(of_data, variables)
        regularization = dense(of_layers, variables) if self._has_penalties else []
        return data, regularization, sparse, total, penalties, *rest
