"""Loops that are right in many styles, and loops with one mistake each, by what the check ought to say of them.

This table needs no TensorFlow. The loops are code as users write it (``faults.py`` and the like), and know nothing of
how the short check recognises a cause; each is an attribute here, so that the command finds it:

    python scripts/compare.py --trainers fit tests/corpus/planted.py:Summed
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import compare

sys.path.append(str(Path(__file__).resolve().parents[1]))

import tasks

import corpus


@dataclasses.dataclass(frozen=True)
class Bug:
    """A loop with a mistake, or a right one: what it ought to be called, and where it can show.

    Attributes:
        name: of the loop's class.
        training, reporting: the causes that ought to be named.
        least: the fewest replicas with which it shows.
        needs: what the experiment has to have: "regularize", "batch_norm", "dropout", "stateful" (one of both),
            "weights", "regression", "schedule", "clipped", "plain" (descent), "adam"; "not-regularize" and so on for
            what it must not have.
        also: causes that may be named too.
    """

    name: str
    training: tuple[str, ...] = ()
    reporting: tuple[str, ...] = ()
    least: int = 1
    needs: tuple[str, ...] = ()
    also: tuple[str, ...] = ()

    @property
    def trainer(self) -> Any:
        return corpus.named(self.name)


def __getattr__(name: str) -> Any:
    try:
        return corpus.named(name)
    except KeyError:
        raise AttributeError(name) from None


def bug(name: str, *training: str, **options: Any) -> Bug:
    return Bug(name, training, **options)


STYLES = [
    *map(Bug, ("CustomLoop", "Signature", "NextInside", "WholeEpoch", "Eager", "RunEagerly", "Retracing")),
    *map(Bug, ("SumOverCount", "TimesShare", "OtherOrder", "ScaledAndBack")),
    Bug("ReducedByHand", needs=("not-clipped",)),  # it clips shares of the sum, Keras 3 what each replica hands in
]

BUGS = [
    bug("NotDivided", "loss-not-divided-by-replicas", least=2),
    bug("LossNotDivided", "loss-not-divided-by-replicas", least=2),
    bug("DividedTwice", "loss-divided-twice", least=2),
    bug("KerasDividesToo", "loss-divided-twice", least=2),
    bug("Summed", "loss-summed"),
    bug("LossSummed", "loss-summed"),
    bug("ConstantDenominator", "loss-constant-denominator"),
    bug("HardCodedBatchSize", "loss-constant-denominator"),
    bug("LossTimesFive", "loss-scaled"),
    # The norm that the optimizer limits is the same again, whatever the factor.
    bug("GradientsScaled", "loss-scaled", needs=("not-clipped",)),
    bug("OnlyDataScaled", "loss-scaled"),
    bug("NoLossScale", "loss-scale-missing", needs=("policy",)),
    bug("NoPenaltyInTraining", "regularization-missing", needs=("regularize",)),
    bug("PenaltyTripled", "regularization-scaled", needs=("regularize",)),
    bug("PenaltyNotDivided", "regularization-not-divided-by-replicas", needs=("regularize",), least=2),
    bug("NoTrainingFlag", "training-flag-missing", needs=("stateful",)),
    bug("LogitsAsProbabilities", "logits-mismatch", needs=("not-regression", "not-weights")),
    bug("LogOfLogits", "not-finite", needs=("not-regression", "not-weights")),
    bug("LabelBroadcast", "label-shape-broadcast", needs=("regression",)),
    bug(
        "WeightsDroppedEverywhere",
        "sample-weights-dropped",
        needs=("weights",),
        also=("validation-sample-weights-dropped",),
    ),
    bug("ClippedByHand", "clipping-differs", needs=("not-clipped",)),
    bug("ClippedByValue", "clipping-differs"),
    bug("ClippedEach", "clipping-differs"),
    bug("ClippingForgotten", "clipping-differs", needs=("clipped",)),
    bug("ClippedAfterwards", "clipping-differs", needs=("clipped",), least=2),
    bug("OptimizerClips", "clipping-differs", needs=("not-clipped",)),
    bug("OnlyFirstReplica", "gradients-not-reduced", least=2),
    bug("UpdatesByHand", "gradients-not-reduced", least=2, needs=("plain",)),
    bug("EachItsOwn", "gradients-not-reduced", least=2, needs=("not-clipped",)),
    bug("LastLayerOnly", "variables-not-trained"),
    bug("StoppedGradient", "variables-not-trained"),
    bug("OtherMomentum", "layer-differs", needs=("batch_norm",)),
    bug("OtherRate", "optimizer-differs", needs=("not-schedule",)),
    bug("RateHalvedLater", "optimizer-differs", needs=("not-schedule",)),
    bug("OtherOptimizer", "optimizer-differs"),
    bug("OtherHyperParameters", "optimizer-differs"),
    bug("IterationsReset", "optimizer-differs", needs=("adam",)),
    bug("NoSchedule", "learning-rate-schedule-missing", needs=("schedule",)),
    bug("NoCallbacks", "callbacks-missing", needs=("build_callbacks",)),
    bug("SmoothingDropped", "label-smoothing-missing", needs=("smoothing",)),
    bug("MaskIgnored", "mask-missing", needs=("mask",)),
    bug("LabelsApart", "labels-shuffled-apart", needs=("not-weights",)),
    bug("NeverReshuffled", "not-reshuffled"),
    bug("TailDropped", "examples-dropped"),
    bug("StepSkipped", "examples-dropped"),
    bug("EachTwice", "examples-repeated"),
    bug("EpochTwice", "examples-repeated"),
    bug("SmallerBatches", "batch-size-differs"),
    bug("LargerBatches", "batch-size-differs"),
    bug("WeightsAnew", "weights-not-shared"),
    bug("ModelCloned", "weights-not-shared", also=("variables-not-trained", "examples-dropped", "optimizer-differs")),
    bug(
        "ValidationInTrainingMode",
        "validation-changes-state",
        reporting=("validation-in-training-mode",),
        needs=("stateful",),
    ),
    bug("TrueCount", "uneven-replica-batches", least=2),
    bug("MeanOfNothing", reporting=("empty-replica-batch",), least=2, needs=("not-batch_norm",)),
    bug("SharedByTheBusy", "empty-replica-batch", least=2, needs=("not-batch_norm",)),
    bug("NeverReset", reporting=("metrics-not-reset",)),
    bug("MeanOfBatches", reporting=("loss-averaged-over-batches",)),
    bug("LastBatch", reporting=("last-batch-only",)),
    bug("NumbersAfterUpdate", reporting=("metrics-after-update",)),
    bug("SharesReported", reporting=("loss-not-reduced",), least=2),
    bug("SharesSummed", reporting=("loss-not-reduced",), least=2),
    bug("PenaltyNotReported", reporting=("loss-without-regularization",), needs=("regularize",)),
    bug("ValidationWithoutPenalty", reporting=("validation-loss-without-regularization",), needs=("regularize",)),
    bug("OtherAccuracy", reporting=("metric-differs",), needs=("classes",)),
    bug("ValidationTailDropped", reporting=("validation-examples-dropped",)),
    bug("ThreeValidationSteps", reporting=("validation-examples-dropped",)),
    bug("FromOneReplica", reporting=("metrics-from-one-replica",), least=2),
    bug("ValidationWithoutWeights", reporting=("validation-sample-weights-dropped",), needs=("weights",)),
]

MADE_UP_FOR = [
    Bug("ScaledAndEpsilon", needs=("adam",)),
    Bug("DividedTwiceAndEpsilon", needs=("adam",), least=2),
    Bug("ScaledAndSlower", needs=("not-adam", "not-schedule", "not-clipped")),
]
"""Two departures that cancel each other exactly: the weights are right, and so is the loop."""

UNKNOWN = [
    *map(Bug, ("GradientNoise", "InputsScaled", "OneVariableScaled", "SignFlipped", "WeightsNudged")),
    *map(Bug, ("GradientsCentralized", "FocalLoss", "HardestExample", "ExamplesReversedInBatch", "RoundedReport")),
    Bug("LabelSmoothing", needs=("not-regression",)),
]
"""Mistakes that no entry of the catalogue describes."""


# Experiments.


def regression(**options: Any) -> compare.Experiment:
    """Labels [n] and predictions [n, 1]."""

    def load() -> Any:
        (x, y), (x_val, y_val) = tasks.blobs(200, 200)
        return (x, x[:, 0] + y.astype(np.float32)), (x_val, x_val[:, 0] + y_val.astype(np.float32))

    import tensorflow as tf

    def build_model() -> Any:
        return tf.keras.Sequential([tf.keras.layers.Dense(16, activation="tanh"), tf.keras.layers.Dense(1)])

    changes = {
        "load_data": load,
        "build_model": build_model,
        "build_loss": tf.keras.losses.MeanSquaredError,
        "build_metrics": lambda: [tf.keras.metrics.MeanAbsoluteError(name="mae")],
    }
    return tasks.experiment(**(options | changes))


def smoothed(**options: Any) -> compare.Experiment:
    """Labels [n, 3], one-hot, which the loss smooths."""
    import tensorflow as tf

    def load() -> Any:
        return tuple((x, np.eye(3, dtype=np.float32)[y]) for x, y in tasks.blobs(200, 200))

    changes = {
        "load_data": load,
        "build_loss": lambda: tf.keras.losses.CategoricalCrossentropy(from_logits=True, label_smoothing=0.1),
        "build_metrics": lambda: [tf.keras.metrics.CategoricalAccuracy(name="accuracy")],
    }
    return tasks.experiment(**(options | changes))


def masked(**options: Any) -> compare.Experiment:
    """A label of every word [n, 6]; sentences are padded with zeros, which the loss leaves out."""
    import tensorflow as tf

    def load() -> Any:
        generator = np.random.default_rng(3)
        words = generator.integers(1, 20, (400, 6)).astype(np.int32)
        words[np.arange(6) >= generator.integers(2, 7, 400)[:, None]] = 0
        labels = (words % 3).astype(np.int32)
        return (words[:200], labels[:200]), (words[200:], labels[200:])

    def build_model() -> Any:
        layers = tf.keras.layers
        lstm = layers.LSTM(8, return_sequences=True)
        return tf.keras.Sequential([layers.Embedding(20, 8, mask_zero=True), lstm, layers.Dense(3)])

    return tasks.experiment(**(options | {"load_data": load, "build_model": build_model}))


def _slower() -> Any:
    import tensorflow as tf

    return tf.keras.callbacks.LearningRateScheduler(lambda epoch: 0.05 * 0.5**epoch)


def _optimizer(name: str, rate: float | None, **options: Any) -> Callable[[], Any]:
    def build() -> Any:
        import tensorflow as tf

        schedule = tf.keras.optimizers.schedules.ExponentialDecay(0.01, 2, 0.5)
        return getattr(tf.keras.optimizers, name)(schedule if rate is None else rate, **options)

    return build


OPTIMIZERS: dict[str, Callable[[], Any]] = {
    "sgd": _optimizer("SGD", 0.05),
    "momentum": _optimizer("SGD", 0.05, momentum=0.9),
    "adam": _optimizer("Adam", 0.01),
    "adamw-schedule": _optimizer("AdamW", None, weight_decay=0.01),
    "clipped": _optimizer("SGD", 0.05, momentum=0.9, global_clipnorm=0.1),
}

MODELS: dict[str, dict[str, Any]] = {
    "mlp": {},
    "mlp-l2-bn": {"regularize": True, "batch_norm": True},
    "mlp-dropout": {"dropout": True},
    "mlp-weights": {"weights": True, "regularize": True},
    "regression": {"regression": True},
}

SPECIAL: dict[str, dict[str, Any]] = {
    "mlp-float16": {"policy": "mixed_float16"},
    "mlp-callback": {"build_callbacks": lambda: [_slower()]},
    "mlp-smoothed": {"smoothing": True},
    "words-masked": {"mask": True},
}
"""Models that most loops are not written for."""


BATCH_SIZE = 50
"""Per replica: with 2 or 4 of them the last batch has one example, and leaves the others empty."""


def experiment(model: str, optimizer: str) -> compare.Experiment:
    """One of the experiments of the table."""
    options = dict((MODELS | SPECIAL)[model])
    special = {"regression": regression, "smoothing": smoothed, "mask": masked}
    make = next((make for name, make in special.items() if options.pop(name, False)), tasks.experiment)
    return make(train=201, validation=430, optimizer=OPTIMIZERS[optimizer], **options)


def has(model: str, optimizer: str) -> set[str]:
    """What an experiment has, in the words of ``Bug.needs``."""
    found = set((MODELS | SPECIAL)[model])
    found |= {"stateful"} if found & {"batch_norm", "dropout"} else set()
    found |= {"schedule"} if "schedule" in optimizer else set()
    found |= {"clipped"} if optimizer == "clipped" else set()
    found |= {"plain"} if optimizer == "sgd" else set()
    found |= {"adam"} if "adam" in optimizer else set()
    found |= {"classes"} if model.startswith("mlp") and model != "mlp-smoothed" else set()  # labels are their numbers
    return found


def shows(bug: Bug, model: str, optimizer: str, replicas: int) -> bool:
    """Whether a mistake changes anything there."""
    there = has(model, optimizer)
    wanted = all((need[4:] not in there) if need.startswith("not-") else need in there for need in bug.needs)
    return replicas >= bug.least and wanted


def training(model: str, optimizer: str, replicas: int) -> list[Bug]:
    """The mistakes in training that show there."""
    wrong = [*(each for each in BUGS if each.training), *UNKNOWN]
    return [each for each in wrong if shows(each, model, optimizer, replicas)]


def of_any(experiment: str, replicas: int) -> list[Bug]:
    """Mistakes that any built-in experiment shows."""
    flag = ("NoTrainingFlag",) if experiment in FLAG else ()
    several = ("LossTimesFive", "RateOff", "LossNotDivided", *flag)
    return [Bug(name) for name in (several if replicas > 1 else ("ConstantDenominator",))]


ROUNDING = {
    "eager": "Eager",
    "whole epoch in one function": "WholeEpoch",
    "reversed sums": "Backwards",
    "XLA": "CompiledByXla",
}
"""Loops that differ from fit in rounding only."""
DROPS = ("mlp-dropout", "dropout", "transformer")
"""Experiments whose dropout masks depend on an example's place in the batch and on the generator."""
FLAG = ("batchnorm", "densenet", "dropout", "transformer")
"""Built-in experiments with layers that behave differently in training."""
EMBEDDING = ("transformer", "ncf", "nmt")
"""Inside one call replicas keep to the shapes exchanged first, and an embedding's gradient has the batch's."""


def rounding(experiment: str, replicas: int) -> dict[str, str]:
    """Those of ``ROUNDING`` that make sense for an experiment."""
    left_out = {"reversed sums", "XLA"} if experiment in DROPS else set()
    left_out |= {"XLA"} if replicas > 1 else set()
    left_out |= {"whole epoch in one function"} if replicas > 1 and experiment in EMBEDDING else set()
    return {name: loop for name, loop in ROUNDING.items() if name not in left_out}
