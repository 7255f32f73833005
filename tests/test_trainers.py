"""The contract of trainers, and what the built-in ones do beyond it."""

from __future__ import annotations

import numpy as np
import pytest
import tasks
from against_fit import held_against_fit, run_of
from eager import Eager

import compare
from compare.records.model import EPOCH_END, INITIAL, BuildRecord, EpochRecord, StepRecord
from compare.verdict.model import Difference


@pytest.fixture(scope="module", params=["fit", "loop", "train-step", "tutorial"])
def trainer(request, tensorflow):
    from compare import options
    from compare.app.loading import load_trainers

    return load_trainers(options.request(trainers=(request.param, "fit")))[0][1]


def train(trainer, experiment, *, replicas=2, epochs=range(1, 3), seed=0):
    """Runs a trainer; returns all records that it emitted."""
    records = []
    trainer.train(run_of(experiment, 8 * replicas, replicas, epochs=epochs, seed=seed, sinks=[records.append]))
    return records


def steps(records):
    return [(r.epoch, r.step) for r in records if isinstance(r, StepRecord)]


def hashes(records):
    return [r.hashes.tolist() for r in records if isinstance(r, StepRecord)]


@pytest.mark.parametrize("replicas", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_a_trainer_reports_every_step_and_every_epoch(trainer, replicas):
    records = train(trainer, tasks.experiment(train=75), replicas=replicas)
    batches = -(-75 // (8 * replicas))
    expected = []
    for epoch in (1, 2):
        expected += [(epoch, step) for step in range(1, batches + 1)] + [(epoch, EPOCH_END)]
    assert isinstance(records[0], BuildRecord)
    assert records[0].replicas == replicas
    begun = [place for place in steps(records) if place != (1, INITIAL)]
    assert begun == expected
    assert steps(records)[0] == (1, INITIAL)
    logs = [record.logs for record in records if isinstance(record, EpochRecord)]
    assert [list(each) for each in logs] == [["loss", "accuracy", "val_loss", "val_accuracy"]] * 2
    assert logs[1]["loss"] < logs[0]["loss"], "training must have helped"


@pytest.mark.parametrize(
    "trainer",
    ["loop", *(pytest.param(name, marks=pytest.mark.slow) for name in ("fit", "train-step", "tutorial"))],
    indirect=True,
)
def test_a_trainer_can_train_again_and_does_the_same_and_with_another_seed_it_does_not(trainer):
    first, again, other = (
        train(trainer, tasks.experiment(batch_norm=True), replicas=1, seed=seed) for seed in (1, 1, 2)
    )
    assert hashes(first) == hashes(again) != hashes(other)
    assert len({str(h) for h in hashes(first)}) > 5, "training must have moved the weights"


@pytest.mark.parametrize(
    "trainer",
    ["fit", *(pytest.param(name, marks=pytest.mark.slow) for name in ("loop", "train-step", "tutorial"))],
    indirect=True,
)
def test_a_trainer_starts_at_the_first_epoch_of_its_run(trainer):
    records = train(trainer, tasks.experiment(), epochs=range(3, 5))
    assert {epoch for epoch, _ in steps(records)} == {3, 4}
    assert [record.epoch for record in records if isinstance(record, EpochRecord)] == [3, 4]


OPTIMIZERS = {
    "sgd": lambda: _keras().optimizers.SGD(0.05),
    "momentum": lambda: _keras().optimizers.SGD(0.05, momentum=0.9, nesterov=True),
    "adam": lambda: _keras().optimizers.Adam(0.01),
    "adamw-schedule-clipped": lambda: _keras().optimizers.AdamW(
        _keras().optimizers.schedules.ExponentialDecay(0.01, 5, 0.7), weight_decay=0.01, global_clipnorm=0.5
    ),
}


def _keras():
    import tensorflow as tf

    return tf.keras


@pytest.mark.parametrize(
    ("optimizer", "replicas"),
    [
        ("adamw-schedule-clipped", 2),
        *(
            pytest.param(*cell, marks=pytest.mark.slow)
            for cell in (("sgd", 2), ("momentum", 2), ("adam", 1), ("adam", 4), ("adamw-schedule-clipped", 3))
        ),
    ],
)
def test_fit_and_loop_are_identical_for_every_optimizer(tensorflow, tmp_path, optimizer, replicas):
    task = tasks.experiment(optimizer=OPTIMIZERS[optimizer], batch_norm=True, regularize=True)
    assert_identical(task, tmp_path, replicas)


# In the gate, dropout and sample weights are among the gallery's experiments.
@pytest.mark.parametrize("replicas", [1, pytest.param(3, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "what",
    [
        pytest.param({"weights": True}, marks=pytest.mark.slow),
        pytest.param({"dropout": True}, marks=pytest.mark.slow),
        {"train": 69, "validation": 29},
        {"build_metrics": list},
    ],
    ids=str,
)
def test_fit_and_loop_are_identical_with(tensorflow, tmp_path, what, replicas):
    assert_identical(tasks.experiment(regularize=True, **what), tmp_path, replicas)


@pytest.mark.parametrize("strategy", [pytest.param("default", marks=pytest.mark.slow), "one-device", "central-storage"])
def test_fit_and_loop_are_identical_under(tensorflow, tmp_path, strategy):
    assert_identical(tasks.experiment(), tmp_path, 1, strategy=strategy)


def assert_identical(task, tmp_path, replicas, **options):
    options |= {"trainers": ("fit", "loop", "train-step"), "epochs": 2, "batch_size": 8, "quiet": True}
    result = compare.run(task, replicas=replicas, reports=tmp_path, name="run", **options)
    assert [comparison["candidate"] for comparison in result.details["comparisons"]] == ["loop", "train-step"]
    for comparison in result.details["comparisons"]:
        assert comparison["verdict"] == "identical", comparison
        assert comparison["training"]["steps_compared"] > 4
    assert result.metrics.groupby("epoch")["loss"].nunique().eq(1).all()


# In the gate, test_truth shows the step, and test_assert_alike the causes.
@pytest.mark.slow
def test_the_tutorial_diverges_at_the_short_batch(tensorflow, tmp_path):
    result = compare.run(
        tasks.experiment(train=70),
        trainers=("fit", "tutorial"),
        replicas=1,
        epochs=2,
        batch_size=16,
        reports=tmp_path,
        quiet=True,
    )
    (tutorial,) = result.details["comparisons"]
    assert tutorial["verdict"] == result.verdict == "different"
    assert tutorial["training"]["first_difference"] == {"epoch": 1, "step": 5}, "70 = 4 x 16 + 6"
    assert tutorial["training"]["max_weight_gap"] > 1e-5
    assert [cause["id"] for cause in tutorial["causes"]] == ["loss-constant-denominator", "loss-averaged-over-batches"]
    assert tutorial["reporting"]["verdict"] == "different", "judged by the tutorial's own weights"


@pytest.mark.slow
def test_the_tutorial_is_identical_in_training_where_no_batch_is_short(tensorflow, tmp_path):
    task = tasks.experiment(train=64)
    options = {"trainers": ("fit", "tutorial"), "replicas": 2, "epochs": 2, "batch_size": 8, "quiet": True}
    (comparison,) = compare.run(task, reports=tmp_path, **options).details["comparisons"]
    assert comparison["training"]["verdict"] == "identical"


def test_each_part_of_the_loop_can_be_overridden_alone(tensorflow, tmp_path):
    """An override that calls the original changes nothing; each other override is found."""

    class Same(compare.CustomLoop):
        name = "same"

        def compute_loss(self, *args):
            return super().compute_loss(*args)

        def train_step(self, batch):
            return super().train_step(batch)

        def test_step(self, batch):
            return super().test_step(batch)

    class OtherLoss(compare.CustomLoop):
        name = "other-loss"

        def compute_loss(self, *args):
            return 2 * super().compute_loss(*args)

    class NoTraining(compare.CustomLoop):
        name = "no-training"

        def train_step(self, batch): ...

    class NoTest(compare.CustomLoop):
        name = "no-test"

        def test_step(self, batch): ...

    trainers = [Same(), OtherLoss(), NoTraining(), NoTest()]
    same, *others, test = held_against_fit(tasks.experiment(), trainers, tmp_path, replicas=1)
    assert same.verdict == "identical"
    assert [other.training.verdict for other in others] == ["different", "different"]
    assert test.training.verdict == "identical" and test.verdict == "different"


class FirstExample:
    """The steps of the Keras guide's first example, for several replicas."""

    def train_step(self, data):
        import tensorflow as tf

        x, y = data
        with tf.GradientTape() as tape:
            y_pred = self(x, training=True)
            loss = self.compute_loss(y=y, y_pred=y_pred)
        variables = self.trainable_variables
        self.optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
        for metric in self.metrics:
            metric.update_state(loss) if metric.name == "loss" else metric.update_state(y, y_pred)
        return {metric.name: metric.result() for metric in self.metrics}


class LossUnreduced(FirstExample):
    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        import tensorflow as tf

        return tf.reduce_mean(self.loss.call(y, y_pred)) + sum(self.losses)


def test_steps_of_ones_own_are_given_to_the_model(tensorflow, tmp_path):
    """The guide's first example trains like fit, and reports the share of one replica as the loss."""
    trainers = [type(kind.__name__, (compare.TrainStep,), {"name": kind.__name__, "model_class": kind})()
                for kind in (FirstExample, LossUnreduced)]  # fmt: skip
    experiment = tasks.experiment(train=64, validation=32, regularize=True)
    example, unreduced = held_against_fit(experiment, trainers, tmp_path, replicas=2)
    assert (example.training.verdict, example.reporting.verdict) == ("identical", "different")
    unequal = [name for name, gap in example.reporting.metrics.items() if gap.max_gap]
    assert unequal == ["loss"], "the accuracy and the validation are right"
    assert unreduced.training.verdict == "different"
    assert unreduced.training.first_difference == Difference(1, 1)


def test_a_run_is_not_built_inside_a_graph(tensorflow):
    run = run_of(tasks.experiment())
    with pytest.raises(
        RuntimeError, match=r"run\.build\(\) is called inside a tf\.function: let train be a plain function"
    ):
        tensorflow.function(lambda: run.build())()


def test_the_model_is_the_runs_own_with_other_steps(tensorflow):
    run = run_of(tasks.experiment(batch_norm=True))
    model, *_ = compare.TrainStep().build(run)
    assert model is run._model and isinstance(model, tensorflow.keras.Sequential)
    assert type(model).train_step is compare.TrainStep.model_class.train_step
    assert [variable.shape for variable in model.weights] == [weight.shape for weight in model.get_weights()]


@pytest.mark.parametrize("given", [int, 3])
def test_steps_of_no_class_of_models_are_refused_in_one_line(tensorflow, given):
    run = run_of(tasks.experiment())
    trainer = type("Mine", (compare.TrainStep,), {"name": "mine", "model_class": given})()
    with pytest.raises(compare.RequestError, match=r"model_class of mine is .*: give a class that inherits from"):
        trainer.build(run)


@pytest.mark.parametrize("method", ["train_step", "test_step"])
def test_a_model_with_steps_of_its_own_is_refused_in_one_line(tensorflow, tmp_path, method):
    def build_model():
        import tensorflow as tf

        def step(self, data):
            return getattr(tf.keras.Sequential, method)(self, data)

        return type("Own", (tf.keras.Sequential,), {method: step})([tf.keras.layers.Dense(3)])

    task = tasks.experiment(build_model=build_model)
    options = {"replicas": 1, "epochs": 1, "batch_size": 8, "reports": tmp_path, "quiet": True}
    message = (
        rf"trainer train-step would replace the model's own {method} \(build_model, .*\): train this model with fit"
    )
    for check in (False, True):
        with pytest.raises(compare.RequestError, match=message) as error:
            compare.run(task, trainers=("fit", "train-step"), check=check, **options)
        assert "\n" not in str(error.value)
    assert not list(tmp_path.rglob("metrics.csv")), "nothing was trained"


def test_the_same_trainer_twice_gets_a_number(tensorflow, tmp_path):
    result = compare.run(
        tasks.experiment(), trainers=(Eager(), Eager()), replicas=1, epochs=1, batch_size=8, reports=tmp_path,
        quiet=True,
    )  # fmt: skip
    assert result.details["reference"] == "eager"
    assert [each["candidate"] for each in result.details["comparisons"]] == ["eager-2"]
    assert result.verdict == "identical"
    assert list(result.metrics["trainer"]) == ["eager", "eager-2"]


def test_an_untrained_model_is_never_identical(tensorflow, tmp_path):
    frozen = tasks.experiment(optimizer=lambda: tensorflow.keras.optimizers.SGD(0.0))
    options = {"strategy": "default", "epochs": 1, "batch_size": 8, "quiet": True}
    result = compare.run(frozen, trainers=(Eager(), Eager()), reports=tmp_path, **options)
    assert result.verdict == "inconclusive"
    assert result.exit_status == 3


def test_weights_changed_before_the_first_step_are_step_0(tensorflow, tmp_path):
    class OtherWeights(compare.CustomLoop):
        name = "other-weights"

        def train(self, run):
            class Build:
                """The run, but the model starts with other weights."""

                def __getattr__(self, name):
                    return getattr(run, name)

                def build(self):
                    model, *rest = run.build()
                    model.set_weights([weight + np.float32(0.1) for weight in model.get_weights()])
                    return model, *rest

            super().train(Build())

    (comparison,) = held_against_fit(tasks.experiment(), [OtherWeights()], tmp_path, replicas=2)
    assert comparison.training.first_difference == Difference(1, 0)


def test_an_optimizer_may_depend_on_the_global_batch_size(tensorflow):
    from compare.experiments import built_in

    experiment = built_in("regression")
    rates = {}
    for replicas, per_replica in ((1, 32), (1, 64), (2, 64), (4, 64), (1, 1000)):
        _, optimizer, *_ = run_of(experiment, replicas * per_replica, replicas).build()
        rates[replicas * per_replica] = round(float(optimizer.learning_rate.numpy()), 3)
    assert rates == {32: 0.1, 64: 0.1, 128: 0.15, 256: 0.2, 1000: 0.2}


@pytest.mark.parametrize(
    "name", ["train_dataset", "mask_of", "with_class_weight", "reduction", "cast_for_loss", "total"]
)
def test_autograph_does_not_convert_what_has_nothing_to_convert(tensorflow, name):
    from compare.engine import building
    from compare.engine.run import Run
    from compare.trainers import losses

    owner = {"train_dataset": Run, "reduction": building}.get(name, losses)
    function, autograph = getattr(owner, name), tensorflow.__internal__.autograph
    assert autograph.tf_convert(function, autograph.control_status_ctx()) is function


@pytest.mark.parametrize("at_once", [True, False], ids=["all-epochs", "one-epoch"])
def test_autograph_converts_prepare_wherever_it_is_called(tensorflow, at_once):
    def prepare(x, y):
        if tensorflow.reduce_min(y) < 0:  # a tensor, on which Python's own condition cannot depend in a graph
            x = -x
        return x + 1, y

    run = run_of(tasks.experiment(prepare=prepare))
    run.build()
    (x, _), *_ = run.train_datasets() if at_once else run.train_dataset(1)
    assert x.shape == (8, 8)
