"""What can be known of model, loss, metrics and data before any training: traced once, and not run."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from compare.engine.input_pipeline import Examples, Stream
from compare.engine.run import Task, built, refuse_used, restore_policy
from compare.errors import RequestError
from compare.experiment import nothing
from compare.user_errors import describe, place_of


def try_out(task: Task, *, fit: bool = True) -> None:
    """Build what the experiment gives, and trace what ``fit`` does with a batch, on symbols.

    Args:
        task: what is to be trained.
        fit: whether ``fit`` is among the trainers; what others can train is not known.

    Raises:
        RequestError: when ``fit`` could not train this; it names the functions that do not fit.
    """
    experiment = task.experiment
    policy = tf.keras.mixed_precision.global_policy()
    try:
        model = built(experiment, "build_model")
        with task.strategy.scope():
            optimizers = [built(experiment, "build_optimizer") for _ in range(2)]
        refuse_used(optimizers[0], experiment, task.strategy, made_twice=optimizers[0] is optimizers[1])
        loss, metrics = built(experiment, "build_loss"), built(experiment, "build_metrics")
        weighted = built(experiment, "build_weighted_metrics")
        own_step = type(model).train_step is not tf.keras.Model.train_step  # which may do without the loss
        if own_step or not fit:
            return
        model.compile(
            loss=loss,
            loss_weights=experiment.loss_weights,
            metrics=metrics or None,
            weighted_metrics=weighted or None,
        )
        for what, examples in {"training": task.train, "validation": task.validation}.items():
            _trace(task, model, what, examples)
        if not model.weights:
            place = place_of(experiment.build_model)
            raise RequestError(
                f"build_model ({place}) gave a model that has no weights to train: give it a layer with some"
            )
    finally:
        restore_policy(policy)


def _trace(task: Task, model: tf.keras.Model, what: str, examples: Examples | Stream) -> None:
    # The shapes of a replica's first batch: with an open batch size, labels [batch] and predictions [batch, 3] fit.
    size = max(1, task.global_batch_size // task.strategy.num_replicas_in_sync)
    spec = tf.nest.map_structure(tf.type_spec_from_value, next(iter(examples.in_order(size))))

    def step(batch: Any) -> Any:
        x, y, sample_weight = tf.keras.utils.unpack_x_y_sample_weight(batch)
        predictions = model(x, training=False)
        loss = model.compute_loss(x, y, predictions, sample_weight)
        return loss, model.compute_metrics(x, y, predictions, sample_weight)

    try:
        tf.function(step).get_concrete_function(spec)
    except Exception as error:
        shapes = [tf.nest.map_structure(lambda part: f"{part.dtype.name} {part.shape}", each) for each in examples.spec]
        named = dict(zip(("x", "y", "sample weights"), shapes, strict=False))
        given = ", ".join(f"{name} {shape}" for name, shape in named.items())
        experiment = task.experiment
        raise RequestError(
            f"the model does not fit the {what} data or its loss, so that fit cannot train it: {describe(error)}; the "
            f"data are {given} (None is the batch), from load_data ({place_of(experiment.load_data)}); see also "
            f"build_model ({place_of(experiment.build_model)}) and build_loss ({place_of(experiment.build_loss)})"
        ) from error


def why_not_resumable(task: Task) -> str:
    """Why a run would not go on from a checkpoint as if it had never stopped; empty where it would."""
    experiment = task.experiment
    if experiment.build_callbacks is not nothing:
        return "callbacks keep a state of their own, which is in no checkpoint"
    policy = tf.keras.mixed_precision.global_policy()
    tf.keras.utils.set_random_seed(0)  # without one Keras 2's dropout cannot be traced; a run sets its own
    try:
        model = built(experiment, "build_model")
        forward = tf.function(lambda x: model(x, training=True)).get_concrete_function(task.train.spec[0])
    finally:
        restore_policy(policy)
    graph = forward.graph.as_graph_def()
    operations = {node.op for nodes in (graph.node, *(f.node_def for f in graph.library.function)) for node in nodes}
    if drawn := sorted(operations & RANDOM):
        return f"the model draws random numbers whose generator is in no checkpoint ({', '.join(drawn)})"
    return ""


RANDOM = {
    "Multinomial", "ParameterizedTruncatedNormal", "RandomGamma", "RandomPoissonV2", "RandomShuffle",
    "RandomStandardNormal", "RandomUniform", "RandomUniformInt", "TruncatedNormal",
}  # fmt: skip
"""Operations that count in their kernel what they have drawn: ``tf.random``'s, and Keras 2's layers'."""
