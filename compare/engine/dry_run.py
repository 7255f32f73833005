"""Checks before training that model, loss, metrics and data fit together, by tracing one step without running it."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

import tensorflow as tf

from compare.engine import building
from compare.engine.described import described, layers_of, without_long
from compare.engine.input_pipeline import Data
from compare.engine.metrics import metric_objects
from compare.engine.run import TrainingTask
from compare.errors import RequestError
from compare.experiment import nothing
from compare.strategy_specs import CALL_FIT
from compare.user_errors import describe, place_of


@dataclass(frozen=True)
class TriedOut:
    """What was seen of an experiment before training.

    Attributes:
        settings: the classes and configurations of its model's layers, optimizer, loss and metrics, by part.
        shapes: the shapes of the weights of the model, trainable ones first, as recorded.
        reported: the names of the numbers that ``fit`` reports; none if they cannot be known, as with callbacks.
    """

    settings: dict[str, Any] | None = None
    shapes: Sequence[tuple[int, ...]] = ()
    reported: Sequence[str] = ()


def try_out(task: TrainingTask, trainers: Collection[Any]) -> TriedOut:
    """Builds the parts of the experiment and traces a step of ``fit`` with symbolic inputs.

    Args:
        trainers: the trainers, those of the toolkit by name. A step is traced only if one of them calls ``fit``, since
            other trainers may support more than ``fit``.

    Raises:
        RequestError: if ``fit`` could not train this experiment, or if the model has its own steps and ``train-step``
            would replace them; the message names the functions involved.
    """
    experiment = task.experiment
    with building.own_policy():
        model, another = _model(task), _model(task)
        building.refuse_another(another.variables, [variable.shape for variable in model.variables], experiment)
        building.refuse_shared(another, model, experiment, task.strategy)
        with task.strategy.scope():
            optimizer, again = (building.built(experiment, "build_optimizer") for _ in range(2))
        building.refuse_used(optimizer, experiment, task.strategy, made_twice=optimizer is again)
        loss, callbacks = building.built(experiment, "build_loss"), building.built(experiment, "build_callbacks")
        if any(isinstance(each, tf.keras.callbacks.BackupAndRestore) for each in callbacks):
            raise RequestError(
                f"build_callbacks ({place_of(experiment.build_callbacks)}) returned a BackupAndRestore, so a trainer "
                "would go on with what another has left: leave it out; --resume continues an interrupted run"
            )
        metrics, weighted = metric_objects(experiment, model, task.train.spec)
        metric_objects(experiment, model, task.train.spec)  # which refuses the same ones
        variables = *model.trainable_weights, *model.non_trainable_weights
        parts = {"optimizer": optimizer, "loss": loss, "metrics": [metrics, weighted]}
        made = {
            part: [described(each) for each in tf.nest.flatten(own) if each is not None] for part, own in parts.items()
        }
        settings = without_long({"model": layers_of(model), **made})
        tried = TriedOut(settings, [tuple(each.shape) for each in variables])
        for each in tf.nest.flatten(loss) if "loop" in trainers else ():
            if each is not None:
                building.reduction(each, f" (build_loss, {place_of(experiment.build_loss)})")
        if "train-step" in trainers:
            building.refuse_own_steps(model, experiment)
        custom_step = type(model).train_step is not tf.keras.Model.train_step  # it may not use the loss
        if custom_step or not any(name in trainers for name in CALL_FIT):
            return tried
        weights = experiment.loss_weights
        try:
            model.compile(loss=loss, loss_weights=weights, metrics=metrics or None, weighted_metrics=weighted or None)
        except Exception as error:
            raise _mismatch(task, "training", error) from error
        traced = [_trace(task, model, "training", task.train), _trace(task, model, "validation", task.validation)]
        if not model.trainable_weights:
            place = place_of(experiment.build_model)
            raise RequestError(
                f"build_model ({place}) returned a model that has no weights to train: add a layer with weights, "
                "or set trainable = True"
            )
    if experiment.build_callbacks is not nothing:
        return tried
    names = [prefix + name for prefix, named in zip(("", "val_"), traced, strict=True) for name in named]
    return replace(tried, reported=names)


def _model(task: TrainingTask) -> tf.keras.Model:
    """Builds a model as every run does, with the same seed each time."""
    tf.keras.utils.set_random_seed(0)
    model = task.new_model()
    try:
        building.give_inputs(model, task.train.spec[0])
    except Exception as error:
        raise _mismatch(task, "training", error) from error
    return model


def _trace(task: TrainingTask, model: tf.keras.Model, what: str, examples: Data) -> list[str]:
    """Traces a step of ``fit``, or of its validation; returns what its numbers are called, if all are scalars."""
    # Use the static shapes of a replica's first batch: with an unknown batch size, labels [batch] would wrongly seem to
    # match predictions [batch, 3].
    size = max(1, task.global_batch_size // task.strategy.num_replicas_in_sync)
    spec = tf.nest.map_structure(tf.type_spec_from_value, next(iter(examples.in_order(size))))

    def step(batch: Any) -> Any:
        x, y, sample_weight = tf.keras.utils.unpack_x_y_sample_weight(batch)
        predictions = model(x, training=False)
        loss = model.compute_loss(x, y, predictions, sample_weight)
        return loss, model.compute_metrics(x, y, predictions, sample_weight)

    try:
        traced = tf.function(step).get_concrete_function(spec)
    except Exception as error:
        raise _mismatch(task, what, error) from error
    _, results = traced.structured_outputs
    return list(results) if all(value.shape.rank == 0 for value in results.values()) else []  # not yet split


def _mismatch(task: TrainingTask, what: str, error: Exception) -> RequestError:
    examples = task.train if what == "training" else task.validation
    shapes = [tf.nest.map_structure(lambda spec: f"{spec.dtype.name} {spec.shape}", part) for part in examples.spec]
    by_name = dict(zip(("x", "y", "sample weights"), shapes, strict=False))
    data = ", ".join(f"{name} {shape}" for name, shape in by_name.items())
    experiment = task.experiment
    return RequestError(
        f"fit cannot train this model on the {what} data: {describe(error)}; the "
        f"data is {data} (None is the batch), from load_data ({place_of(experiment.load_data)}); see also "
        f"build_model ({place_of(experiment.build_model)}) and build_loss ({place_of(experiment.build_loss)})"
    )


def why_not_resumable(task: TrainingTask) -> str:
    """Returns the reason why a run cannot be resumed exactly from a checkpoint; empty if it can."""
    experiment = task.experiment
    if experiment.build_callbacks is not nothing:
        return "callbacks have their own state, which checkpoints do not contain"
    # Some dropout cannot be traced without a seed; the run sets its own seed later.
    tf.keras.utils.set_random_seed(0)
    with building.own_policy():
        model = building.built(experiment, "build_model")
        forward = tf.function(lambda x: model(x, training=True)).get_concrete_function(task.train.spec[0])
    graph = forward.graph.as_graph_def()
    operations = {node.op for nodes in (graph.node, *(f.node_def for f in graph.library.function)) for node in nodes}
    if random_operations := sorted(operations & RANDOM):
        names = ", ".join(random_operations)
        return f"the model uses random operations whose state checkpoints do not contain ({names})"
    return ""


RANDOM = {
    "Multinomial", "ParameterizedTruncatedNormal", "RandomGamma", "RandomPoissonV2", "RandomShuffle",
    "RandomStandardNormal", "RandomUniform", "RandomUniformInt", "TruncatedNormal",
}  # fmt: skip
"""Stateful random operations, whose kernels keep the state: those of ``tf.random``, which layers may use."""
