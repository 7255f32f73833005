"""How Keras 2 and Keras 3 differ: the only module that asks which of them ``tf.keras`` is in this process.

Every function here does what ``fit``, or an object of the generation in use, does; its docstring says how that depends
on the generation.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from importlib import import_module
from typing import Any

import tensorflow as tf

from compare.engine.insides_tensorflow import called_as_it_is


def keras_version() -> str:
    """Returns the version of ``tf.keras`` in this process: that of Keras 3, or of Keras 2, such as tf-keras."""
    return str(import_module(tf.keras.Model.__module__.partition(".")[0]).__version__)


_KERAS_3 = keras_version().startswith("3")

HAS_APPLY = _KERAS_3
"""Whether optimizers have a method ``apply``, which takes gradients alone."""
CLIPS_EACH_REPLICA = _KERAS_3
"""Whether optimizers clip the gradients of each replica before they are added; if not, their sum."""
CONVERTS_STEPS = not _KERAS_3
"""Whether ``fit`` converts the Python code of a step by AutoGraph, a model's and a loss's included."""
UPDATES_LOSS = not _KERAS_3
"""Whether ``model.compute_loss`` updates the loss that ``fit`` reports; if not, a step has to."""
WEIGHTS_ONCE = _KERAS_3
"""Whether ``fit`` takes either class weights or sample weights, and not both."""
LOSS_SCOPE = "compile_loss/" if _KERAS_3 else ""
"""The name scope in which ``fit`` computes losses."""
AVERAGES_OUTPUT_LOSSES = _KERAS_3
"""Whether the reported loss of one of several outputs is the mean over the replicas' parts of all batches."""
METRICS_BY_SHAPE = {"accuracy": "accuracy", "acc": "accuracy"} | (
    {} if _KERAS_3 else {"crossentropy": "crossentropy", "ce": "crossentropy"}
)
"""Names that stand for one metric of a family, chosen by the shapes of labels and predictions."""
KEEPS_METRIC_NAMES = _KERAS_3
"""Whether a metric that was given by name is reported under that name."""
BUILDS_METRICS_FIRST = _KERAS_3
"""Whether all metrics of ``fit`` have their variables when an epoch begins; if not, after its first step."""
SHARES_METRICS = not _KERAS_3
"""Whether each metric of a flat list is copied for every output; if not, it belongs to one."""


# Optimizers


def step_counter(optimizer: Any) -> Any:
    """Returns the variable that counts the steps; with gradient accumulation, ``optimizer.iterations`` is none."""
    return getattr(optimizer, "_iterations", optimizer.iterations)


def learning_rate(optimizer: Any) -> tf.Tensor:
    """Returns the learning rate of the next step; ``optimizer.learning_rate`` is that of the last step in Keras 2."""
    schedule = getattr(optimizer, "_learning_rate", None)
    if isinstance(schedule, tf.keras.optimizers.schedules.LearningRateSchedule):
        # Of one that accumulates gradients, Keras gives it the number of all calls, and not that of updates.
        return schedule(optimizer._iterations if _KERAS_3 else optimizer.iterations)
    return tf.convert_to_tensor(optimizer.learning_rate)


def settable_rate(optimizer: Any) -> tf.Variable:
    """Returns a variable that is the optimizer's learning rate from now on, also in place of a schedule."""
    rate = tf.Variable(0.0)
    if _KERAS_3:
        optimizer.learning_rate = rate.read_value  # a function is accepted, whether or not there is a schedule
    else:
        optimizer._learning_rate = rate
    return rate


def build_optimizer(optimizer: Any, variables: Sequence[Any]) -> None:
    """Builds an optimizer's slots as ``fit`` does; call it under the strategy's scope.

    Under a strategy, Keras 3 builds the optimizer before the first step, and so does Keras 2. Without one, it is built
    while the first step is traced. TensorFlow then runs the initial values of the slots and traces the step again: what
    the ``build`` of a user's optimizer assigns, such as the slow weights of a Lookahead, has no effect.
    """
    by_keras = type(getattr(optimizer, "inner_optimizer", optimizer)).build.__module__.startswith("keras.")
    if by_keras or not _KERAS_3 or tf.distribute.has_strategy():
        optimizer.build(variables)
    else:
        tf.function(lambda: optimizer.build(variables))()


def scale_loss(optimizer: tf.keras.optimizers.Optimizer, loss: tf.Tensor) -> tf.Tensor:
    """Multiplies the loss by the optimizer's loss scale, if it has one."""
    scale = getattr(optimizer, "scale_loss" if _KERAS_3 else "get_scaled_loss", None)
    return scale(loss) if scale else loss


def unscale_gradients(optimizer: tf.keras.optimizers.Optimizer, gradients: Sequence[Any]) -> Sequence[Any]:
    """Divides the gradients by the optimizer's loss scale; a no-op in Keras 3, whose optimizers do it themselves."""
    unscale = getattr(optimizer, "get_unscaled_gradients", None)
    return unscale(gradients) if unscale else gradients


def without_loss_scale(optimizer: Any) -> Any:
    """Returns the optimizer that is given unscaled gradients; a no-op in Keras 3, where ``apply`` is called of that."""
    return optimizer.inner_optimizer if hasattr(optimizer, "get_scaled_loss") else optimizer


# Models


def forget_compile(model: tf.keras.Model) -> None:
    """Marks a compiled model as not compiled, so that it does not update its own loss and metrics beside the run's."""
    flag = "compiled" if _KERAS_3 else "_is_compiled"
    if getattr(model, flag, False):
        setattr(model, flag, False)


def compiled_loss(model: tf.keras.Model) -> Any:
    """Returns the loss of all outputs that ``compile`` makes, a function of ``(y, predictions, sample_weight)``."""
    return model._compile_loss if _KERAS_3 else model.compiled_loss


def output_names(model: tf.keras.Model, keys: Sequence[str] | Sequence[int]) -> Sequence[str]:
    """Returns the prefixes of the metrics of several outputs.

    In Keras 2 the model's own names go before the keys of a dict, and outputs in a list have numbers without them.

    Args:
        keys: the keys of the outputs in a dict, sorted, or their positions in a list.
    """
    own = getattr(model, "output_names", None)
    if isinstance(keys[0], str):
        return keys if _KERAS_3 else own or keys  # type: ignore[return-value]
    return own or ["" if _KERAS_3 else f"output_{i + 1}" for i in range(len(keys))]


def fix_dropout(model: tf.keras.Model) -> bool:
    """Replaces the dropout of Keras 2 by a fixed mask that drops every other unit; returns whether any layer has it.

    The random numbers of Keras 2's dropout cannot be reproduced. The mask applies in training only, so a call with
    the wrong ``training`` flag is still detected.
    """
    if _KERAS_3:
        return False
    layers = [layer for layer in model._flatten_layers() if "Dropout" in type(layer).__name__ and layer.rate]
    for layer in layers:
        layer.call = _drop_every_other
    return bool(layers)


def _drop_every_other(inputs: tf.Tensor, *, training: Any = None) -> tf.Tensor:
    training = tf.keras.backend.learning_phase() if training is None else training
    kept = 2 * tf.cast(tf.range(tf.shape(inputs)[-1]) % 2, inputs.dtype)
    return tf.where(tf.cast(training, tf.bool), inputs * kept, inputs)


# Steps of fit


def step_in_a_call(step_function: Any) -> Any:
    """Returns a step as ``fit`` repeats it in a call of several steps.

    Keras 2 inlines the steps and returns the result of the last one, for which AutoGraph traces the loop body twice.
    The seeds of its dropout depend on such details.
    """
    return step_function if _KERAS_3 else step_function.python_function


def last_call_spans_epochs(steps: int, steps_per_call: int) -> bool:
    """Whether ``fit`` continues the last call of an epoch into the next: Keras 3 stops only where the dataset ends."""
    return _KERAS_3 and steps % steps_per_call > 0


def training_argument(model: tf.keras.Model, training: bool) -> dict[str, bool]:
    """Returns the argument ``training`` for ``model.compute_loss``, which has it since Keras 3.3."""
    return {"training": training} if "training" in inspect.signature(model.compute_loss).parameters else {}


# Losses


def conform(y: Any, predictions: Any, sample_weight: Any) -> tuple[Any, Any, Any]:
    """Conforms labels and sample weights to the predictions, as ``fit`` does in Keras 2; a no-op in Keras 3.

    For predictions ``[n, k]``, Keras 2 adds a second axis to labels and weights ``[n]``. It casts floating-point
    labels and the weights to the dtype of the predictions.
    """
    if _KERAS_3:
        return y, predictions, sample_weight
    if y.shape.rank == 1 and predictions.shape.rank == 2:
        y = y[:, tf.newaxis]
    if y.dtype.is_floating == predictions.dtype.is_floating:
        y = tf.cast(y, predictions.dtype)
    if sample_weight is not None:
        if sample_weight.shape.rank == 1 and predictions.shape.rank == 2:
            sample_weight = sample_weight[:, tf.newaxis]
        sample_weight = tf.cast(sample_weight, predictions.dtype)
    return y, predictions, sample_weight


@called_as_it_is
def cast_for_loss(loss: tf.keras.losses.Loss, y: tf.Tensor, predictions: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Casts to the dtype of the loss as Keras 3 does: float32 by default, whatever the compute dtype of the model."""
    return (tf.cast(y, loss.dtype), tf.cast(predictions, loss.dtype)) if _KERAS_3 else (y, predictions)


@called_as_it_is
def total(
    losses: Sequence[tuple[Any, tf.Tensor]], model_losses: Sequence[tf.Tensor], examples: tf.Tensor, replicas: int
) -> Any:
    """Returns the weighted sum of the outputs' losses and the model's own losses, rounded as in ``fit``.

    The function also updates the loss metric of each ``Output``, for a model with several. Keras 2 weights it by the
    number of examples. Keras 3 weights it by the static batch size, which is unknown here as in ``fit``; the metric is
    then the plain mean over batches and replicas, unlike the total loss.

    Keras 3 scales every loss to this replica's share, and scales the sum back for the report. On three replicas this
    can change the last bit of the reported loss, here as in ``fit``.

    The order of summation matters from three losses on. TensorFlow's graph optimizer sorts the terms of a sum by
    their names in the graph, whatever their order in the program. So the terms get names here that sort as in
    ``fit``: the names of the losses, or numbers that count the other products that ``fit`` creates in that scope.

    Losses and ``examples``, their number, are scalars of this replica.
    """
    terms = []
    for i, (output, loss) in enumerate(losses):
        if _KERAS_3 and replicas > 1:
            loss = tf.multiply(loss, 1.0 / replicas, f"{LOSS_SCOPE}{output.loss.name}/Mul")
        if output.loss_metric is not None:
            if AVERAGES_OUTPUT_LOSSES:
                output.loss_metric.update_state(loss * replicas if replicas > 1 else loss)
            else:
                output.loss_metric.update_state(loss, sample_weight=examples)
        if output.loss_weight is not None:
            loss = tf.multiply(loss, output.loss_weight, _name_of_product(i, several=replicas > 1))
        terms.append(loss)
    if not _KERAS_3:
        terms += [tf.add_n(_cast_to_widest(model_losses))] if model_losses else []
        return tf.add_n(_cast_to_widest(terms))
    shares = [terms[0] if len(terms) == 1 else sum(terms)] if terms else []
    shares += [tf.reduce_sum(loss) * (1.0 / replicas) for loss in model_losses]
    share = shares[0] if len(shares) == 1 else tf.reduce_sum(tf.stack(shares))
    return share * replicas if replicas > 1 else share


def _name_of_product(output: int, *, several: bool) -> str:
    """Returns the name that ``fit`` gives to the product of an output's loss and its weight.

    The number in the name counts the products that ``fit`` creates in the same scope before this one.
    """
    number = output * (1 + several) + several if _KERAS_3 else output * (3 + several) + 2
    return f"{LOSS_SCOPE}{'Mul' if _KERAS_3 else 'mul'}_{number}"


def _cast_to_widest(losses: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """Casts the losses to the widest floating dtype among them, as Keras 2 does before it adds them."""
    dtypes = {loss.dtype for loss in losses}
    widest = max((dtype for dtype in dtypes if dtype.is_floating), key=lambda dtype: dtype.size)
    if {tf.bfloat16, tf.float16} <= dtypes and not {tf.float32, tf.float64} & dtypes:
        widest = tf.float32
    return [tf.cast(loss, widest) for loss in losses]


# Metrics


def reports_output_losses(outputs: int, trained: int) -> bool:
    """Whether ``fit`` reports the loss of each output: of several that have a loss, or in Keras 2, of several."""
    return (trained if _KERAS_3 else outputs) > 1


def read_masks(metric: tf.keras.metrics.Metric) -> None:
    """Lets a metric leave out what the mask of its predictions hides, in Keras 2 too, where ``fit`` does it instead."""
    if _KERAS_3:
        return
    update = metric.update_state

    def update_state(y: Any, predictions: Any, sample_weight: Any = None) -> Any:
        mask = getattr(predictions, "_keras_mask", None)
        if mask is not None:
            mask = tf.cast(mask, predictions.dtype)
            sample_weight = mask if sample_weight is None else tf.cast(sample_weight, mask.dtype) * mask
        return update(y, predictions, *([] if sample_weight is None else [sample_weight]))

    metric.update_state = update_state


def result_of_replicas(results: Sequence[tf.Tensor]) -> float:
    """Returns what ``fit`` tells callbacks of a metric, given its result on each replica.

    In Keras 3 each replica returns the result of its own batches, and ``fit`` averages them. In Keras 2 every replica
    returns the result over all replicas.
    """
    return float(tf.reduce_mean(results, axis=0) if _KERAS_3 else results[0])
