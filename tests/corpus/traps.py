"""Where the page of traps (``scripts/traps.py``) shows each cause; needs no TensorFlow."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Stage:
    """A wrong loop, and a small task on which its cause shows.

    The last batch of 1,000 examples in batches of 64 has 40, which splits evenly over two replicas.
    """

    loop: str
    experiment: str = "fashion-mnist-sample"
    replicas: int = 2
    examples: int = 1000
    epochs: int = 8


STAGES = {
    "not-finite": Stage("LogOfLogits", epochs=2),
    "loss-not-divided-by-replicas": Stage("NotDivided", "regularized"),
    "loss-divided-twice": Stage("KerasDividesToo", "trap_tasks:mlp"),
    "loss-summed": Stage("Summed", "trap_tasks:mlp"),
    "loss-constant-denominator": Stage("ConstantDenominator"),
    "loss-scaled": Stage("LossTimesFive"),
    "loss-scale-missing": Stage("NoLossScale", "mixed-precision-float16", replicas=1),
    "label-smoothing-missing": Stage("SmoothingDropped", "trap_tasks:smoothed"),
    "mask-missing": Stage("MaskIgnored", "trap_tasks:masked", replicas=1, examples=200),
    "uneven-replica-batches": Stage("TrueCount", "trap_tasks:mlp", examples=963),
    "regularization-missing": Stage("NoPenaltyInTraining", "regularized"),
    "regularization-scaled": Stage("PenaltyTripled", "regularized", replicas=1),
    "regularization-not-divided-by-replicas": Stage("PenaltyNotDivided", "regularized"),
    "logits-mismatch": Stage("LogitsAsProbabilities"),
    "label-shape-broadcast": Stage("LabelBroadcast", "regression"),
    "sample-weights-dropped": Stage("WeightsDroppedEverywhere", "weighted"),
    "training-flag-missing": Stage("NoTrainingFlag", "trap_tasks:mlp_batchnorm"),
    "layer-differs": Stage("OtherMomentum", "trap_tasks:mlp_batchnorm"),
    "clipping-differs": Stage("ClippedByHand", "trap_tasks:mlp"),
    "gradients-not-reduced": Stage("EachItsOwn", "trap_tasks:mlp"),
    "variables-not-trained": Stage("LastLayerOnly"),
    "optimizer-differs": Stage("OtherRate"),
    "learning-rate-schedule-missing": Stage("NoSchedule", "trap_tasks:scheduled"),
    "callbacks-missing": Stage("NoCallbacks", "trap_tasks:plateau"),
    "labels-shuffled-apart": Stage("LabelsApart"),
    "not-reshuffled": Stage("NeverReshuffled"),
    "examples-dropped": Stage("TailDropped"),
    "examples-repeated": Stage("EpochTwice"),
    "batch-size-differs": Stage("LargerBatches"),
    "weights-not-shared": Stage("WeightsAnew"),
    "validation-changes-state": Stage("ValidationInTrainingMode", "trap_tasks:mlp_batchnorm"),
    "empty-replica-batch": Stage("MeanOfNothing", "trap_tasks:mlp", examples=897),
    "metrics-not-reset": Stage("NeverReset"),
    "metric-differs": Stage("OtherAccuracy", "trap_tasks:mlp"),
    "loss-averaged-over-batches": Stage("MeanOfBatches", examples=964),
    "last-batch-only": Stage("LastBatch"),
    "metrics-after-update": Stage("NumbersAfterUpdate"),
    "loss-without-regularization": Stage("PenaltyNotReported", "regularized"),
    "loss-not-reduced": Stage("SharesReported"),
    "validation-loss-without-regularization": Stage("ValidationWithoutPenalty", "regularized"),
    "validation-in-training-mode": Stage("ValidationInTrainingMode", "dropout"),
    "validation-examples-dropped": Stage("ThreeValidationSteps"),
    "metrics-from-one-replica": Stage("FromOneReplica"),
    "validation-sample-weights-dropped": Stage("ValidationWithoutWeights", "weighted"),
}
"""By cause, the loop of the corpus that has it, and its experiment: built-in, or in ``trap_tasks``."""


def tutorials_example() -> dict[str, float]:
    """Averages the losses [2, 3] and [4, 5] of two replicas in the tutorial's ways."""
    import tensorflow as tf

    from compare.engine import strategies

    strategy = strategies.make("mirrored", 2)
    losses = [[2.0, 3.0], [4.0, 5.0]]
    with strategy.scope():
        metric = tf.keras.metrics.Mean()

    def of_replica(context: Any) -> Any:
        return tf.constant(losses[context.replica_id_in_sync_group])

    @tf.function
    def step(per_example: Any) -> Any:
        scaled = tf.nn.compute_average_loss(per_example, global_batch_size=4)
        metric.update_state(scaled)
        return scaled

    values = strategy.experimental_distribute_values_from_function(of_replica)
    shares = strategy.run(step, args=(values,))
    first, second = (float(share) for share in strategy.experimental_local_results(shares))
    return {
        "first": first,
        "second": second,
        "metric": float(metric.result()),
        "sum": float(strategy.reduce(tf.distribute.ReduceOp.SUM, shares, axis=None)),
        "mean": sum(map(sum, losses)) / 4,
    }
