"""Every built-in experiment: fit and loop are identical, and the mistake that it demonstrates is different."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import tensorflow as tf
from against_fit import held_against_fit
from corpus import planted

import compare
from compare.engine.data import SAMPLE
from compare.experiments import built_in, fashion_mnist
from compare.request import EXPERIMENTS

MORE_THAN_ROUNDING = 1e-4
"""More than rounding can add up to in two epochs."""


@dataclasses.dataclass(frozen=True)
class Trap:
    """A loop with the mistake that an experiment demonstrates, and the cause that the short check names, if any."""

    loop: type[Any]
    cause: str = "no cause"


class LogitsAgain(planted.Loop):
    """Takes the softmax of probabilities; Keras's own loss would find the logits that they were computed from."""

    def example_losses(self, loss: Any, y: Any, predictions: Any, weight: Any) -> Any:
        return tf.nn.sparse_softmax_cross_entropy_with_logits(tf.cast(y, tf.int32), predictions)


class LayersOnly(planted.Loop):
    """Collects variables layer by layer."""

    def variables(self) -> Any:
        return [variable for layer in self.model.layers for variable in layer.trainable_variables]


class PixelsSummed(planted.Loop):
    """Divides the sum over images and pixels by the number of images."""

    def mean(self, values: Any) -> Any:
        return tf.reduce_sum(values) / tf.cast(tf.shape(values)[0], tf.float32)


class LossInHalfPrecision(planted.Loop):
    """Computes the loss in the dtype of the model's output: bfloat16."""

    def example_losses(self, loss: Any, y: Any, predictions: Any, weight: Any) -> Any:
        return tf.cast(loss.call(y, predictions), tf.float32)


GALLERY = {
    "fashion-mnist-sample": Trap(planted.ConstantDenominator, "loss-constant-denominator"),
    "fashion-mnist-softmax": Trap(LogitsAgain, "logits-mismatch"),
    "fashion-mnist-functional": Trap(planted.ModelCloned, "weights-not-shared"),
    "fashion-mnist-subclassed": Trap(LayersOnly, "variables-not-trained"),
    "regression": Trap(planted.LabelBroadcast, "label-shape-broadcast"),
    "segmentation": Trap(PixelsSummed, "loss-scaled"),
    "weighted": Trap(planted.WeightsDroppedEverywhere, "sample-weights-dropped"),
    "class-weighted": Trap(planted.ClassWeightsDropped, "sample-weights-dropped"),
    "regularized": Trap(planted.PenaltyNotDivided, "regularization-not-divided-by-replicas"),
    "batchnorm": Trap(planted.ValidationInTrainingMode, "validation-changes-state"),
    "dropout": Trap(planted.NoTrainingFlag, "training-flag-missing"),
    "densenet": Trap(planted.NoTrainingFlag, "training-flag-missing"),
    "transformer": Trap(planted.WeightsDroppedEverywhere, "sample-weights-dropped"),
    "ncf": Trap(planted.NeverReshuffled, "not-reshuffled"),
    "nmt": Trap(planted.MaskIgnored, "mask-missing"),
    # Training is no further off than half precision rounds, but the reported losses are.
    "mixed-precision": Trap(LossInHalfPrecision, "differs from its value with the model's weights"),
    "mixed-precision-float16": Trap(planted.NoLossScale, "loss-scale-missing"),
}
ELSEWHERE = {"fashion-mnist"}
"""Tested with all of its data by ``test_readme`` and ``test_command``."""


@pytest.fixture
def experiment(request: pytest.FixtureRequest, tensorflow: Any, monkeypatch: pytest.MonkeyPatch) -> compare.Experiment:
    """The experiment named by the parameter; Fashion-MNIST is always the embedded sample."""
    if request.param == "nmt" and tuple(map(int, tf.keras.__version__.split(".")[:2])) < (3, 12):
        pytest.skip("before 3.12, Keras adds the mask of an attention's values to scores of another shape")
    monkeypatch.setattr(fashion_mnist, "locate_fashion_mnist", lambda data_dir: SAMPLE)
    return built_in(request.param)


def test_the_table_has_every_experiment() -> None:
    assert set(GALLERY) | ELSEWHERE == set(EXPERIMENTS)


IN_THE_GATE = {"regression", "regularized"}
"""The experiments that the gate trains on two replicas and with their mistakes; the others on one, with the loop."""
LONG = {"transformer", "densenet", "ncf"}
"""Slow tests. In the gate, nmt has attention, segmentation and batchnorm have layers like densenet's, and test_streams
has functions from epoch to dataset."""


@pytest.mark.parametrize(
    "experiment",
    [pytest.param(name, marks=[pytest.mark.slow] if name in IN_THE_GATE | LONG else []) for name in GALLERY],
    indirect=True,
)
def test_fit_and_loop_are_identical(experiment, tmp_path) -> None:
    (loop,) = held_against_fit(experiment, [compare.CustomLoop()], tmp_path, replicas=1)
    assert loop.verdict == "identical", loop


@pytest.mark.parametrize(
    ("experiment", "trap"),
    [
        pytest.param(name, trap, id=name, marks=[] if name in IN_THE_GATE else [pytest.mark.slow])
        for name, trap in GALLERY.items()
    ],
    indirect=["experiment"],
)
def test_fit_and_loop_are_identical_on_two_replicas_and_a_loop_with_the_mistake_is_not(
    experiment, trap, tmp_path
) -> None:
    trainers = [compare.CustomLoop(), compare.TrainStep(), trap.loop()]
    loop, train_step, wrong = held_against_fit(experiment, trainers, tmp_path, replicas=2)
    assert loop.verdict == "identical", loop
    assert train_step.verdict == "identical", train_step
    assert wrong.verdict == "different", wrong
    if trap.cause in planted_reporting():
        assert wrong.training.verdict == "identical" and wrong.reporting.verdict == "different", wrong
    elif wrong.training.max_weight_gap is not None:
        assert wrong.training.max_weight_gap > MORE_THAN_ROUNDING, wrong


@pytest.mark.slow
@pytest.mark.parametrize(("experiment", "trap"), GALLERY.items(), ids=list(GALLERY), indirect=["experiment"])
def test_the_short_check_names_the_mistake(experiment, trap) -> None:
    with pytest.raises(AssertionError, match=trap.cause):
        compare.assert_alike(experiment, trap.loop())


def planted_reporting() -> set[str]:
    """The causes that concern reported numbers alone."""
    return {cause for bug in planted.BUGS if not bug.training for cause in bug.reporting}
