"""Sees inside the steps of a script: examples, inputs, predictions, loss, gradients and the weights they start from.

What is seen goes through ``tf.numpy_function`` where a graph is traced. That changes no number: the hashes of all
weights are the same with and without it.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import tensorflow as tf

from compare.engine.fingerprints import container, described, distributed
from compare.engine.insides_keras import (
    DIVIDES,
    LossFunctionWrapper,
    any_symbolic_tensors,
    is_keras,
    keras,
    named_keras,
)
from compare.engine.insides_tensorflow import Function, in_xla
from compare.engine.keras_generation import HAS_APPLY, learning_rate
from compare.patching import patch
from compare.watch.data_sets import DataSets, operations_of
from compare.watch.initial_weights import InitialWeights
from compare.watch.observer import Observer
from compare.watch.seen import CloseUp, each_once
from compare.watch.settings import Detail
from compare.watch.shapes import are_pairs, of_pairs
from compare.watch.step_events import StepEvents, variable_ids
from compare.watch.trace import CLIPPING
from compare.watch.trace_writer import TraceWriter, pickled
from compare.watch.trainings import Training
from compare.watch.weights import named_seeds_of, rates_of, strategy_of, weights_of

OF_TENSORFLOW = (
    "sigmoid_cross_entropy_with_logits",
    "softmax_cross_entropy_with_logits",
    "sparse_softmax_cross_entropy_with_logits",
)
"""Loss functions of ``tf.nn``, which take labels and logits."""
CLIPS = ("clip_by_global_norm", "clip_by_norm", "clip_by_value")
"""Functions of ``tf`` that limit gradients."""
LOSS_FUNCTIONS = tuple(
    name for name in dir(keras.losses) if name.islower() and callable(getattr(keras.losses, name)) and "_" in name
)


REPEATING = keras.layers.RNN, keras.layers.TimeDistributed
"""Layers that call another one for each position: in a loop of the graph, whose events come in any order."""


class StageObserver(Observer):
    """An observer that also records the stages of some steps; ``seen.py`` describes what it writes."""

    def __init__(self, settings: Detail, initial: InitialWeights, writer: TraceWriter | None) -> None:
        super().__init__(settings, initial, writer)
        self._without_xla = False
        of_script = writer is not None and not settings.losses_only  # only there lines of data sets are asked for
        self._data_sets = DataSets(self, self._here) if of_script else None
        self._events = StepEvents(settings, self.trainings, self._data_sets)
        self._divided: dict[str, tuple[str, int, str] | None] = {}
        patch(Function, "__init__", self._make_function)
        patch(tf.GradientTape, "gradient", self._gradient)
        patch(keras.layers.Layer, "__call__", self._call_layer)
        for owner, method in ((keras.losses.Loss, "__call__"), (LossFunctionWrapper, "call")):
            patch(owner, method, partial(self._call_loss, method == "__call__"))
        if HAS_APPLY:
            patch(keras.optimizers.LossScaleOptimizer, "apply", self._apply_scaled)
            patch(keras.optimizers.LossScaleOptimizer, "scale_loss", self._scale_loss)
        for name in LOSS_FUNCTIONS:
            function = getattr(keras.losses, name)
            for module in (keras.losses, tf.keras.losses, keras.metrics, tf.keras.metrics):
                if getattr(module, name, None) is function:
                    patch(module, name, partial(self._call_loss_function, name))
        for name in OF_TENSORFLOW:
            patch(tf.nn, name, partial(self._call_loss_function, name))
        for name in CLIPS:
            patch(tf, name, self._clip)
        for name in ("__sub__", "__rsub__"):
            patch(tf.Tensor, name, self._subtract)
        patch(tf.math, "squared_difference", self._subtract)
        for module, name in DIVIDES:
            patch(module, name, self._divide)
        if settings.losses_only:
            patch(tf.distribute.Strategy, "reduce", self._reduce)

    # What is seen while a step is computed, or its graph is traced.

    def _make_function(self, original: Any, function: Any, *args: Any, **options: Any) -> None:
        """Makes a function that XLA does not compile, since nothing can be seen inside one that it does."""
        python = args[0] if args else options.get("python_function")
        own = str(getattr(python, "__module__", "")).endswith("tensorflow.nn")  # Keras's, for a convolution
        self._without_xla |= bool(options.get("jit_compile")) and not own
        original(function, *args, **{**options, "jit_compile": None})

    def _call(self, original: Any, *args: Any, **options: Any) -> Any:
        if self._data_sets is None or not self.outermost:
            return super()._call(original, *args, **options)
        self._data_sets.given = args, options
        try:
            return super()._call(original, *args, **options)
        finally:
            self._data_sets.given = ()

    def _begin_tape(self, tape: Any) -> None:
        if not self._here.tapes:
            self._here.models = self._here.losses = ()
            self._here.pairs = False
        super()._begin_tape(tape)

    def _taped(self, *values: Any) -> bool:
        return self._here.tapes > 0 and not any_symbolic_tensors(values)

    def _watches_loss(self, *values: Any) -> bool:
        """Whether a loss is recorded: one that may be differentiated, and any if only losses are."""
        if self._here.in_loss or any_symbolic_tensors(values):
            return False
        return self._taped() or self.settings.losses_only

    def _call_model(self, original: Any, model: Any, *args: Any, **options: Any) -> Any:
        if self._here.model is not None or not self._taped(args, options):
            if self.settings.losses_only and not self._taped() and not any_symbolic_tensors(args, options):
                self._record("again", {}, _inputs_among(args, options))
            return super()._call_model(original, model, *args, **options)
        with self._here.set(model=model, known={}):
            self.prepare(model, args, options)
            given = options.get("training", "not given")
            if isinstance(given, tf.Tensor):
                given = "a tensor"
            info = {"model": model.name, "operations": operations_of(self._here.data_set)}
            info["masked"] = _masked(args, options)
            self._record("inputs", info, _inputs_among(args, options))
            if model.built:
                own = weights_of(model)
                info = {"model": model.name, "of": variable_ids(own)}
                self._record("weights", info, [tf.convert_to_tensor(each) for each in own])
            if seeds := named_seeds_of(model):
                info = {"model": model.name, "layers": [name for name, _ in seeds]}
                self._record("seeds", info, [tf.convert_to_tensor(state) for _, state in seeds])
            outputs = original(model, *args, **options)
            self._here.models += (model,)
            info = {"model": model.name, "training": given, "takes_training": _takes_training(model)}
            self._record("predictions", info, tf.nest.flatten(outputs))
            return outputs

    def _call_layer(self, original: Any, layer: Any, *args: Any, **options: Any) -> Any:
        known = self._here.known
        if self._here.model is None or known is None or not self._taped(args, options):
            return original(layer, *args, **options)
        info = {"name": layer.name, "model": self._here.model.name}
        given = [each for each in _inputs_among(args, options) if isinstance(each, tf.Tensor)]
        if known and not all(id(each) in known for each in given):
            self._record("given", {**info}, given)  # a function has made it of what a layer gave
        known.update((id(each), each) for each in given)
        if isinstance(layer, REPEATING):
            with self._here.set(known=None, last=self._here.last):
                outputs = original(layer, *args, **options)
        else:
            outputs = original(layer, *args, **options)
        tensors = [each for each in tf.nest.flatten(outputs) if isinstance(each, tf.Tensor)]
        known.update((id(each), each) for each in tensors)
        more = {"class": type(layer).__name__, "flagged": _depends_on_training(layer)}
        more["masked"] = _masked(args, options)
        self._record("layer", {**info, **more, "training": options.get("training")}, tensors)
        return outputs

    def _call_loss(
        self, masked: bool, original: Any, loss: Any, y_true: Any, y_pred: Any, *weight: Any, **options: Any
    ) -> Any:
        """Records a loss and what it is given; calling it, Keras leaves out what the predictions' mask does."""
        watched = self._watches_loss(y_pred)
        with self._here.set(in_loss=watched or self._here.in_loss, divided=1):
            value = original(loss, y_true, y_pred, *weight, **options)
            divided = self._here.divided
        if divided > 1 and not tf.distribute.in_cross_replica_context():
            part = "train" if self._taped() else "validation"
            # The caller, before patch's own frame.
            if part not in self._divided and not named_keras(sys._getframe(2).f_globals["__name__"]):
                self._divided[part] = self.line()
        if not watched:
            return value
        weights = weight[0] if weight else options.get("sample_weight")
        mask = getattr(y_pred, "_keras_mask", None)
        if masked and mask is not None and self._taped():
            self._record("mask", {}, [mask])
        whole = value if divided == 1 or self._taped() else value * divided
        self._record_targets(type(loss).__name__, _configuration(loss), y_true, y_pred, weights, whole)
        return value

    def _divide(self, original: Any, value: Any) -> Any:
        """Notes by what Keras divides the loss that is being computed."""
        self._here.divided = tf.distribute.get_strategy().num_replicas_in_sync
        return original(value)

    def _subtract(self, original: Any, *args: Any, **options: Any) -> Any:
        """Notes an eager difference of all pairs under a tape; a graph tells which differences go into a loss."""
        self._here.pairs |= tf.executing_eagerly() and self._taped() and are_pairs(*(*args, *options.values())[:2])
        return original(*args, **options)

    def _reduce(self, original: Any, strategy: Any, *args: Any, **options: Any) -> Any:
        """Records what is summed over replicas, if it is one number."""
        reduced = original(strategy, *args, **options)
        op = args[0] if args else options["reduce_op"]
        if "SUM" in str(op).upper() and tf.is_tensor(reduced) and reduced.shape == ():
            self._record("summed", {}, [reduced])
        return reduced

    def _call_loss_function(self, name: str, original: Any, /, *args: Any, **options: Any) -> Any:
        both = args[:2] if len(args) > 1 else (options.get("labels"), options.get("logits"))
        unknown = any(each is None for each in both)
        if unknown or not self._watches_loss(both):
            return original(*args, **options)
        with self._here.set(in_loss=True):
            value = original(*args, **options)
        plain = {key: each for key, each in options.items() if isinstance(each, bool | int | float | str)}
        self._record_targets(name, plain, both[0], both[1], None, value)
        return value

    def _record_targets(self, name: str, configuration: Any, y_true: Any, y_pred: Any, weight: Any, value: Any) -> None:
        true, predicted = tf.nest.flatten(y_true), tf.nest.flatten(y_pred)
        if not self._taped():
            self._record("untaped", {}, [predicted[0], *tf.nest.flatten(value)])
            return
        weights = [each for each in tf.nest.flatten(weight) if each is not None]
        info = {
            "loss": name,
            "configuration": configuration,
            "true": len(true),
            "predicted": len(predicted),
            "weights": len(weights),
        }
        self._record("targets", info, [*true, *predicted, *weights, *tf.nest.flatten(value)])

    def _gradient(self, original: Any, tape: Any, target: Any, sources: Any, *args: Any, **options: Any) -> Any:
        models, losses = self._here.models, self._here.losses
        of = variable_ids(tf.nest.flatten(sources))
        watched = bool(models or of)  # models, or variables without one
        if watched and not any(each is target for each in losses):  # one loss may have gradients of several models
            self._here.losses += (target,)
            penalties = [tf.convert_to_tensor(each) for model in dict.fromkeys(models) for each in model.losses]
            targets = [tf.convert_to_tensor(each) for each in tf.nest.flatten(target)]
            info = {"targets": len(targets), "penalties": len(penalties), "of": of, "calls": len(models)}
            info["pairs"] = self._here.pairs if tf.executing_eagerly() else of_pairs(targets)
            info["made"] = self.line(_of_examples(targets[0]) if penalties else targets[0])
            self._record("loss", info, [*targets, *penalties])
        gradients = original(tape, target, sources, *args, **options)
        self._here.clip = None
        return self._in_order(gradients) if watched else gradients

    def _clip(self, original: Any, *args: Any, **options: Any) -> Any:
        """Remembers the line that limits gradients, if that is what comes between a tape and an optimizer."""
        if not self._here.applying:
            self._here.clip = self.line() or self._here.clip
        return original(*args, **options)

    def on_apply(self, training: Training, optimizer: Any, grads: list[Any], variables: list[Any]) -> None:
        """Records the gradients that an optimizer is given, and completes the step."""
        if self._here.clip:
            self._record("clip", {"line": self._here.clip}, [])
        context, replicas = tf.distribute.get_replica_context(), strategy_of(training.variables).num_replicas_in_sync
        places = {id(distributed(variable)): i for i, variable in enumerate(training.variables)}
        positions, tensors, in_rows = [], [], []
        for gradient, variable in zip(grads, variables, strict=False):
            place = places.get(id(container(variable)))
            if gradient is not None and place is not None:
                positions.append(place)
                tensors.append(tf.convert_to_tensor(gradient))
                in_rows += [place] if isinstance(gradient, tf.IndexedSlices) else []
        info = {
            "training": training.number,
            "positions": positions,
            "in_rows": in_rows,
            "times": getattr(optimizer, "gradient_accumulation_steps", None) or 1,
            # Outside of strategy.run, one call stands for all replicas.
            "alone": (1 if context is None else context.num_replicas_in_sync) < replicas,
            "given": [getattr(optimizer, name, None) for name in CLIPPING] + [hasattr(optimizer, "dynamic_scale")],
        }
        self._record("gradients", info, [tf.cast(learning_rate(optimizer), tf.float64), *tensors])

    def on_applied(self, training: Training) -> None:
        """Records the weights that the optimizer has made, before anything else may change them."""
        values = [tf.convert_to_tensor(variable) for variable in training.variables]
        self._record("updated", {"training": training.number}, values)

    def on_drawn(self, name: str, numbers: Any) -> None:
        """Records random numbers that a step may use; a data set draws its own elsewhere, and in no order."""
        if self.inside or self.outermost:
            self._record("drawn", {"name": name}, [numbers])

    def on_step(self, training: Training) -> None:
        """Keeps the weights after a step of the close-up."""
        assert training.fingerprint is not None
        if self.settings.losses_only:
            # Layers' other losses depend on a batch.
            regularized = [each for each in training.variables if each.trainable and getattr(each, "regularizer", None)]
            penalty = float(sum(np.asarray(each.regularizer(each), np.float64) for each in regularized))
            self._events.seen[training.number].penalties[training.steps] = penalty
            return
        after = self._events.seen[training.number].after
        if self._events.watches(0) and training.initial is not None:
            after.setdefault(0, training.initial)
        if self._events.watches(training.steps):
            after[training.steps] = training.fingerprint.weights()

    # What was seen, when it is computed.

    def _record(self, kind: str, info: dict[str, Any], tensors: Sequence[Any]) -> None:
        if kind in WITH_LINE and (not tf.executing_eagerly() or self._events.near(0)):
            info["line"] = self.line()
        self.tell(partial(self._events.add, kind, info), [_dense(each) for each in tensors if each is not None])

    def tell(self, function: Callable[..., None], tensors: Sequence[Any]) -> None:
        """Calls a function with the replica's number, and with the values of tensors, as soon as they have any.

        Inside a function that XLA compiles, nothing can be told.
        """
        context = tf.distribute.get_replica_context()
        replica: Any = 0 if context is None else context.replica_id_in_sync_group
        if tf.executing_eagerly():
            # NumPy itself makes no array of a bfloat16 scalar.
            values = [each.numpy() if tf.is_tensor(each) else each for each in tensors]
            function(np.asarray(replica), *map(np.asarray, values))
        elif not in_xla(tf.compat.v1.get_default_graph()):
            values = [tf.cast(replica, tf.int64), *(tf.convert_to_tensor(tensor) for tensor in tensors)]
            with self._after_earlier_events():
                event = tf.numpy_function(function, values, [])
            self._here.last = event

    def _after_earlier_events(self) -> Any:
        """Operations without data in common run in any order, unless they are told to."""
        last = self._here.last
        same = last is not None and last.graph is tf.compat.v1.get_default_graph()
        return tf.control_dependencies([last] if same else [])

    def _scale_loss(self, original: Any, *args: Any, **options: Any) -> Any:
        self._record("scaled-loss", {}, [])
        return original(*args, **options)

    def _apply_scaled(self, original: Any, optimizer: Any, grads: Any, *args: Any, **options: Any) -> Any:
        self._record("scaled", {"optimizer": id(optimizer)}, [])
        return original(optimizer, self._in_order(list(grads)), *args, **options)

    def _in_order(self, gradients: Any) -> Any:
        """Gradients for an optimizer that may apply them in a condition, whose events come after those outside."""
        if tf.executing_eagerly():
            return gradients
        with self._after_earlier_events():
            return tf.nest.map_structure(lambda each: None if each is None else tf.identity(each), gradients)

    def seen(self, number: int) -> CloseUp | None:
        """What was seen of a training; None if nothing was."""
        known = self._events.seen
        if number not in known or not known[number].steps:
            return None
        names = [described(each).name for each in self.trainings[number].variables]
        # Of several trainings, which one calls the loss is not known.
        divided = dict(self._divided) if len(known) == 1 else dict.fromkeys(self._divided)
        steps = {step: each_once(events) for step, events in known[number].steps.items()}
        return replace(known[number], steps=steps, names=names, without_xla=self._without_xla, divided=divided)

    def end_early(self) -> NoReturn:
        """Writes everything first: TensorFlow may take longer to end a distributed dataset than the script is given."""
        assert self.writer is not None
        self.write(self.writer.folder)
        super().end_early()

    def write(self, folder: Path) -> None:
        """Writes what was seen of each training."""
        for number in self._events.seen:
            if (seen := self.seen(number)) is not None:
                (folder / f"{number}-stages.pkl").write_bytes(pickled(seen))


def _of_examples(loss: Any) -> Any:
    """What a loss is before the model's own losses are added to it, as its graph tells; else the loss."""
    while getattr(loss, "op", None) is not None and loss.op.type in ("AddV2", "AddN"):
        loss = loss.op.inputs[0]
    return loss


def _masked(args: Any, options: Mapping[str, Any]) -> bool:
    """Whether a layer that is called so leaves out what a mask says."""
    masks = [getattr(each, "_keras_mask", None) for each in tf.nest.flatten((args, options))]
    return any(each is not None for each in (*masks, options.get("mask")))


def _takes_training(layer: Any) -> bool:
    return not {"training", "kwargs"}.isdisjoint(inspect.signature(layer.call).parameters)


def _depends_on_training(layer: Any) -> bool:
    """Whether a layer's own output may depend on ``training``; that of Keras's models depends on their layers."""
    if not is_keras(type(layer)):
        return _takes_training(layer)
    if isinstance(layer, (keras.layers.BatchNormalization, keras.layers.SpectralNormalization)):
        return True
    rates = rates_of(layer) + rates_of(getattr(layer, "cell", layer))
    generators = [getattr(layer, name, None) for name in ("seed_generator", "generator")]
    return any(rates) if rates else any(each is not None for each in generators)


WITH_LINE = ("inputs", "given", "targets", "loss", "gradients", "drawn")
"""The kinds of events that are calls of the script's: of its model, layers, loss, tape and optimizer."""


def _inputs_among(args: Sequence[Any], options: Mapping[str, Any]) -> list[Any]:
    """What a model is given first, in whatever way; its arguments may have any names."""
    given = [*args, *(each for name, each in options.items() if name not in ("training", "mask"))]
    return list(tf.nest.flatten(given[:1]))


def _dense(tensor: Any) -> Any:
    """A sparse or ragged tensor as a dense one; any other as it is."""
    if isinstance(tensor, tf.SparseTensor):
        return tf.sparse.to_dense(tensor)
    return tensor.to_tensor() if isinstance(tensor, tf.RaggedTensor) else tensor


def _configuration(loss: Any) -> dict[str, Any]:
    compiled: Any = getattr(loss, "_user_loss", None)  # of Keras's CompileLoss
    try:
        config = (compiled if hasattr(compiled, "get_config") else loss).get_config()
    except Exception:
        return {}
    return {key: value for key, value in config.items() if isinstance(value, bool | int | float | str)}
