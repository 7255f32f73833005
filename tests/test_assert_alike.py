"""The short check as users run it: by ``assert_alike`` in their own tests, and by ``--check``."""

from __future__ import annotations

import gc
import json
import logging
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
import tasks
from plain_loop import Loop

import compare
from compare.app import cli
from compare.check.report import Report
from compare.reporting.terminal import in_short
from compare.verdict.findings import Finding, NotApplicable, Source
from compare.verdict.model import Comparison, Difference, MetricGap, Reporting, Training, Verdict


# In the gate, the README's own test does the same.
@pytest.mark.slow
def test_a_correct_loop_passes_and_a_wrong_one_fails_with_its_cause(tensorflow):
    class Doubled(compare.CustomLoop):
        name = "doubled"

        def compute_loss(self, *args):
            return 2 * super().compute_loss(*args)

    compare.assert_alike(tasks.experiment(), compare.CustomLoop())
    with pytest.raises(AssertionError, match="loss-scaled"):
        compare.assert_alike(tasks.experiment(), Doubled())


def test_a_check_warns_of_no_function_that_is_traced_again(tensorflow):
    from compare.check import checker

    said, logger = [], tensorflow.get_logger()
    handler = logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())
    logger.addHandler(handler)
    again = "5 out of the last 5 calls to f triggered tf.function retracing."
    with checker._short_training():
        logger.warning(again)
        logger.warning("else")
    logger.warning(again)
    logger.removeHandler(handler)
    assert said == ["else", again]


def test_a_comparison_inside_a_tf_function_or_a_scope_is_refused(tensorflow, tmp_path):
    def compared():
        compare.run(tasks.experiment(), epochs=1, reports=tmp_path, quiet=True)

    with pytest.raises(compare.RequestError, match=r"eager execution is off here, as in a tf\.function"):
        tensorflow.function(compared, autograph=False)()
    scope = tensorflow.distribute.OneDeviceStrategy("CPU:0").scope()
    with scope, pytest.raises(compare.RequestError, match=r"in the scope of a strategy: run it outside"):
        compared()


class ByFullBatches(Loop):
    def value(self, y, predictions):
        import tensorflow as tf

        return tf.reduce_sum(self.loss.call(y, predictions)) / self.run.global_batch_size


def test_a_mistake_of_short_batches_is_none_where_the_batch_size_leaves_none(tensorflow):
    whole = tasks.experiment(train=128)
    with pytest.raises(AssertionError, match=r"(?s)loss-constant-denominator.*No batch_size was given"):
        compare.assert_alike(whole, ByFullBatches())
    compare.assert_alike(whole, ByFullBatches(), batch_size=64)
    with pytest.raises(AssertionError, match=r"(?s)loss-constant-denominator.*--batch-size 50 says more[^\n]*$"):
        compare.assert_alike(whole, ByFullBatches(), batch_size=50)
    with pytest.raises(compare.RequestError, match="--batch-size 0: give a whole number"):
        compare.assert_alike(whole, ByFullBatches(), batch_size=0)


def test_checks_leave_no_graph_behind(tensorflow):
    from tensorflow.python.framework.func_graph import FuncGraph

    def graphs() -> int:
        gc.collect()
        return sum(isinstance(each, FuncGraph) for each in gc.get_objects())

    counts = []
    for _ in range(3):
        compare.assert_alike("regression", compare.CustomLoop())
        counts.append(graphs())
    assert counts[1] == counts[2], "a suite of a hundred loops would end in gigabytes"


def checked(training: str, metrics: dict[str, MetricGap]) -> Report:
    """What a short check of a loop may come to."""
    return Report("fit", (1,), Comparison("loop", Training(training, 0.0, None, 3), Reporting("identical", metrics)))


def test_checks_in_two_threads_wait_for_each_other(tensorflow, monkeypatch):
    inside = []

    def check(*args, **options):
        inside.append(len(inside))
        time.sleep(0.3)
        assert inside.pop() == 0
        return checked("identical", {})

    monkeypatch.setattr("compare.check.check", check)
    with ThreadPoolExecutor(2) as threads:
        both = [threads.submit(compare.assert_alike, tasks.experiment(), compare.CustomLoop()) for _ in range(2)]
    assert [each.exception() for each in both] == [None, None]


def test_a_mistyped_metric_is_a_warning_with_the_name_that_was_meant(tensorflow, monkeypatch):
    metrics = {"loss": MetricGap(0.0, 1), "acuracy": MetricGap(None, 1, "fit"), "accuracy": MetricGap(None, 1, "loop")}
    monkeypatch.setattr("compare.check.check", lambda *args, **options: checked("identical", metrics))
    with pytest.warns(
        UserWarning, match=r"^loop reports acuracy, which fit does not; .* did you mean accuracy\?$"
    ) as seen:
        compare.assert_alike(tasks.experiment(), compare.CustomLoop())
    assert seen[0].filename == __file__, "pytest shows the line of the user's test"

    of_both = {"acc": "fit", "val_acc": "fit", "accuracy": "loop", "val_accuracy": "loop"}
    metrics.update({name: MetricGap(None, 1, lacking) for name, lacking in of_both.items()})
    del metrics["acuracy"]
    with pytest.warns(UserWarning, match=r"accuracy; did you mean accuracy, val_accuracy\?$"):
        compare.assert_alike(tasks.experiment(), compare.CustomLoop())

    del metrics["acc"], metrics["val_acc"]  # a loop that reports little is no reason for a warning
    compare.assert_alike(tasks.experiment(), compare.CustomLoop())


def test_a_loop_that_raises_on_two_replicas_is_a_warning(tensorflow):
    class Raises(compare.CustomLoop):
        name = "raises"

        def train(self, run):
            if run.strategy.num_replicas_in_sync > 1:
                raise ValueError("not on two")
            super().train(run)

    with pytest.warns(UserWarning, match="^checked on one replica only: .* fails on two replicas: ValueError: not on"):
        compare.assert_alike("regression", Raises())


def test_a_loop_that_uses_its_strategy_where_there_is_one_device_is_a_warning(tensorflow, monkeypatch):
    monkeypatch.setattr("compare.engine.strategies.devices", lambda: ["CPU:0"])
    with pytest.warns(UserWarning, match=r"^checked on one replica only: .* call compare.configure\(replicas=2\)"):
        compare.assert_alike("regression", compare.CustomLoop())


def test_a_failure_shows_the_users_test_alone(tensorflow, monkeypatch):
    monkeypatch.setattr("compare.check.check", lambda *args, **options: checked("different", {}))
    with pytest.raises(AssertionError, match=r"^different: loop does not train like fit") as caught:
        compare.assert_alike(tasks.experiment(), compare.CustomLoop())
    shown = [entry.path for entry in caught.traceback.filter(caught)]
    assert [path.name for path in shown] == ["test_assert_alike.py"]


OF_THIS_FILE = tasks.experiment(name="of-another-name")


class OfThisFile(compare.CustomLoop):
    pass


class WithOptions(compare.CustomLoop):
    def __init__(self, wrong=True):
        super().__init__()


WITH_OPTIONS = WithOptions(wrong=False)


def test_what_is_to_be_checked_is_named_as_the_command_takes_it(monkeypatch):
    monkeypatch.chdir(Path(__file__).parent)
    assert {compare._as_argument(each) for each in (OfThisFile, OfThisFile())} == {"test_assert_alike.py:OfThisFile"}
    assert compare._as_argument(OF_THIS_FILE) == "test_assert_alike.py:OF_THIS_FILE", "not where build_model is"
    assert compare._as_argument(tasks.experiment(name="local")) == "FILE.py:NAME", "it has no name"
    assert compare._as_argument("fit") == "fit"
    assert compare._as_argument(WithOptions()) == "test_assert_alike.py:NAME", "the class may be another trainer"
    assert compare._as_argument(WITH_OPTIONS) == "test_assert_alike.py:WITH_OPTIONS"
    assert compare._as_argument(WithOptions) == "test_assert_alike.py:WithOptions"


def test_a_failure_is_a_few_lines_with_what_to_do_the_cause_first():
    first = Finding(
        "loss-scaled",
        "",
        "loop",
        "the loss is twice that of fit",
        "loss = loss / 2",
        source=Source("bad.py", 15, "loss"),
    )
    second = Finding("metrics-not-reset", "", "loop", "the sum goes on", "metric.reset_state()")
    third = replace(second, id="optimizer-differs", source=Source("bad.py", 20, "optimizer.apply(grads)", shows=True))
    skipped = (NotApplicable("several replicas", "one was asked for"),)
    training = Training("different", None, Difference(1, 1), 3)
    found = Comparison("loop", training, Reporting(None, {}), causes=(first, second, third), not_applicable=skipped)
    assert in_short(Verdict.of("fit", [found], scope="check"), "--trainers fit bad.py:Bad").splitlines() == [
        "different: loss-scaled (in loop)",
        "different: loop does not train like fit: their weights differ from step 1 of epoch 1 on.",
        "  cause: loss-scaled (in loop): the loss is twice that of fit.",
        "    at bad.py:15: loss",
        "    loss = loss / 2",
        "  also found: metrics-not-reset (in loop)",
        "  also found: optimizer-differs (in loop), seen at bad.py:20: optimizer.apply(grads)",
        "  fit-vs-loop check --trainers fit bad.py:Bad says more, and writes a page",
    ]
    # Of other weights, a cause of other numbers is no explanation.
    found = replace(found, causes=(second,), evidence=("the gradients are those of fit plus 0.01 times the weights",))
    assert in_short(Verdict.of("fit", [found], scope="check"), "--trainers fit bad.py:Bad").splitlines() == [
        "different: loop does not train like fit: their weights differ from step 1 of epoch 1 on.",
        "  evidence: the gradients are those of fit plus 0.01 times the weights.",
        "  also found: metrics-not-reset (in loop)",
        "  fit-vs-loop check --trainers fit bad.py:Bad says more, and writes a page",
    ]


def test_the_command_can_check_alone(tensorflow, tmp_path, capsys):
    arguments = ["--experiment", "fashion-mnist-sample", "--check", "--trainers", "fit", "tutorial"]
    arguments += ["--strategy", "one-device"]
    assert cli.main([*arguments, "--reports", str(tmp_path), "--name", "run"]) == 1
    out = capsys.readouterr().out
    assert "Checked on 1 replica in " in out, "under mirrored, it would be on 2 as well"
    assert str(compare.load(tmp_path / "run")) in out, "one way to say a verdict"
    assert "loss-constant-denominator" in out
    verdict = json.loads((tmp_path / "run/verdict.json").read_text())
    assert verdict["scope"] == "check"
    assert verdict["verdict"] == "different"
    causes = verdict["comparisons"][0]["causes"]
    assert [cause["id"] for cause in causes] == ["loss-constant-denominator", "loss-averaged-over-batches"]
    assert all(cause["evidence"] and cause["remedy"] for cause in causes)
    assert not (tmp_path / "run/metrics.csv").exists()


@pytest.mark.parametrize(
    ("options", "instead"),
    [
        pytest.param({"strategy": "multi-worker", "workers": 2}, "mirrored with 2 replica(s)", marks=pytest.mark.slow),
        ({"strategy": "parameter-server", "workers": 2}, "default with 1 replica(s)"),
    ],
)
def test_a_check_for_several_processes_runs_in_one_process_and_says_so(tensorflow, tmp_path, capsys, options, instead):
    request = options | {"check": True, "reports": tmp_path, "trainers": ("fit", "tutorial")}
    result = compare.run(tasks.experiment(), **request)
    assert result.verdict == "different"
    assert f"Note: --strategy {options['strategy']} has several: {instead}" in capsys.readouterr().out
    (comparison,) = json.loads((result.path / "verdict.json").read_text())["comparisons"]
    assert comparison["causes"][0]["id"] == "loss-constant-denominator"
    assert comparison["not_applicable"][0]["probe"] == "several processes"
    assert instead in comparison["not_applicable"][0]["reason"]


# In the gate, the command above checks under one-device, the test above under default, and most others under mirrored.
@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["one-device", "central-storage"])
def test_the_check_uses_the_requested_strategy(tensorflow, tmp_path, strategy):
    options = {"check": True, "reports": tmp_path, "strategy": strategy, "trainers": ("fit", "loop", "tutorial")}
    result = compare.run(tasks.experiment(), **options, replicas=2 if strategy == "central-storage" else None)
    loop, tutorial = json.loads((result.path / "verdict.json").read_text())["comparisons"]
    assert loop["training"]["verdict"] in ("identical", "alike")
    assert not loop["causes"]
    assert tutorial["causes"][0]["id"] == "loss-constant-denominator"
    assert "several processes" not in [each["probe"] for each in tutorial["not_applicable"]]


class OwnOptimizer(Loop):
    """A correct loop but for its optimizer, which it makes itself."""

    def __init__(self, **options):
        self.options = options

    def begin(self):
        import tensorflow as tf

        self.optimizer = tf.keras.optimizers.SGD(**self.options)
        self.optimizer.build(self.model.trainable_variables)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"learning_rate": 0.1, "clipnorm": 1e6}, ""),
        (
            {"learning_rate": 0.1},
            "loop's SGD has clipnorm=None instead of 1000000, which makes no difference in the few",
        ),
    ],
)
def test_settings_of_an_own_optimizer_that_make_no_difference_yet_are_a_warning(tensorflow, recwarn, options, told):
    experiment = tasks.experiment(optimizer=lambda: tensorflow.keras.optimizers.SGD(0.1, clipnorm=1e6))
    compare.assert_alike(experiment, OwnOptimizer(**options))
    texts = [str(each.message) for each in recwarn if "which makes no difference" in str(each.message)]
    assert len(texts) == bool(told) and all(text.startswith(told) for text in texts), texts


class ClippedByHand(OwnOptimizer):
    """Its optimizer does not clip gradients, since it does so itself."""

    def apply(self, gradients, variables):
        import tensorflow as tf

        self.optimizer.apply(tf.clip_by_global_norm(gradients, 0.5)[0], variables)


def test_gradients_clipped_by_hand_are_no_warning(tensorflow):
    experiment = tasks.experiment(optimizer=lambda: tensorflow.keras.optimizers.SGD(0.1, global_clipnorm=0.5))
    report = compare.check.check(experiment, ClippedByHand(learning_rate=0.1))
    assert (report.verdict, report.notes) == ("identical", [])
    assert compare.check.check(experiment, OwnOptimizer(learning_rate=0.1)).verdict == "different"


def test_a_rate_set_by_hand_in_place_of_a_schedule_is_no_warning(tensorflow):
    schedule = tensorflow.keras.optimizers.schedules.PiecewiseConstantDecay([1000], [0.1, 0.01])
    other = tensorflow.keras.optimizers.schedules.PiecewiseConstantDecay([500], [0.1, 0.01])
    experiment = tasks.experiment(optimizer=lambda: tensorflow.keras.optimizers.SGD(schedule))
    for rate, told in ((0.1, False), (other, True), (schedule, False)):
        report = compare.check.check(experiment, OwnOptimizer(learning_rate=rate))
        assert report.verdict == "identical" and bool(report.notes) == told, report.notes
