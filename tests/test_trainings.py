"""What a training is in ``--scripts``: variables that optimizers update over a stretch of steps, whatever has them."""

from __future__ import annotations

import re
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers
from rich.console import Console

import compare
from compare.app import scripts_close_ups, scripts_explain, scripts_session
from compare.app.script_pairs import (
    _same_weights,
    begin_equal,
    begun_apart,
    changed_apart,
    changed_last,
    further_trainings,
    left_out,
    left_over,
    paired_models,
    set_at_the_end,
    stretches,
)
from compare.app.script_runs import write_records
from compare.app.scripts import _averages, _both_fit, _continuations, _cut, _further, _undone
from compare.app.scripts_close_ups import CloseUps, Departure, goes_on
from compare.app.scripts_explain import (
    _checked,
    _departure,
    _not_repeated,
    _of_right_losses,
    _say_what_the_optimizer_hides,
    _say_which_have_fewer_replicas,
    _say_which_is_eager,
    _say_which_settings_do_nothing,
)
from compare.check.causes import CATALOGUE
from compare.check.causes.reporting import never_reset
from compare.check.judge_recorded import name_causes, name_left
from compare.check.measurement import Measurement
from compare.check.stages import Located, StageValues, locate
from compare.check.step_values import Sides
from compare.engine.described import configuration_of
from compare.engine.fingerprints import Fingerprinter
from compare.engine.keras_generation import learning_rate
from compare.modes import Scripts
from compare.options import request
from compare.patching import patch, undone
from compare.records.files import replace_file
from compare.records.metrics_csv import MetricsFile
from compare.records.model import Variable, npz, step_dtype
from compare.records.reader import read_records
from compare.records.run_json import RunJson
from compare.verdict.findings import Finding
from compare.verdict.judge import with_located
from compare.verdict.model import Comparison, Difference, Reporting, Training
from compare.verdict.outcomes import DIFFERENT
from compare.verdict.rounding import Noise
from compare.watch.alike import _compile_by_xla, _leave_out_shuffles
from compare.watch.epoch_ends import EpochEnds
from compare.watch.initial_weights import InitialWeights, mark_of
from compare.watch.observer import EnoughSteps, Observer
from compare.watch.reported import watch_reports
from compare.watch.reported_logs import line_of, logs_by_epoch
from compare.watch.seen import CloseUp, Event, read_close_up
from compare.watch.settings import ALL_BEGUN, ENDED, Nudge, Settings
from compare.watch.stages import StageObserver, _depends_on_training, _masked
from compare.watch.step_events import Replica, StepEvents
from compare.watch.trace import (
    ENOUGH,
    LEFT,
    FitEpoch,
    Trace,
    read_traces,
    steps_made,
)
from compare.watch.trace_writer import TraceWriter
from compare.watch.trainings import Count
from compare.watch.weights import weights_of

pytestmark = pytest.mark.usefixtures("tensorflow")
X = np.random.default_rng(0).normal(size=(48, 8)).astype("float32")
Y = X[:, :1] - 2 * X[:, 1:2]
BATCHES = [(X[i : i + 16], Y[i : i + 16]) for i in range(0, 48, 16)]
Watch = Callable[..., list[Trace]]


@pytest.fixture
def watch(tmp_path: Path) -> Watch:
    """Runs a function as if it were a script; the first provides the initial weights, if it is not alone."""
    scripts: list[Path] = []

    def run(script: Callable[[], Any], **options: Any) -> list[Trace]:
        folder = tmp_path / f"{len(scripts)}"
        settings = Settings("", "", str(folder), str(tmp_path / "initial"), begins=not scripts, **options)
        scripts.append(folder)
        writer = TraceWriter(folder)
        keras.utils.set_random_seed(0)  # as scripts are run: else a gradient may be rounding alone by chance
        with undone():
            kind = StageObserver if settings.close_up else Observer
            initial = InitialWeights(settings, settings.initial, provides=settings.begins)
            observer = kind(settings, initial, writer)
            watch_reports(observer, writer, settings)
            with suppress(EnoughSteps):
                script()
                observer.ended()
        writer.close()
        if isinstance(observer, StageObserver):
            observer.write(folder)
        (tmp_path / "initial" / ENDED).touch()
        return read_traces(folder)

    return run


def test_values_that_come_after_a_model_was_given_none_are_not_given_to_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = np.ones((3, 1), np.float32)
    with undone():
        initial = InitialWeights(Settings("", "", str(tmp_path), str(tmp_path)), str(tmp_path))
        (tmp_path / ALL_BEGUN).touch()  # by a model that the first script has trained before it makes these two
        first, second = (keras.Sequential([keras.Input((3,)), layers.Dense(1, use_bias=False)]) for _ in range(2))
        names = np.array(["first"])

        def published_meanwhile(root: Any) -> list[Any]:
            if root is second:
                replace_file(tmp_path / "0.npz", npz([names, there]))
            return list(root.weights)

        monkeypatch.setattr("compare.watch.initial_weights.weights_of", published_meanwhile)
        for given in ([False, False], [True, False]):
            initial.look()
            assert [np.array_equal(model.weights[0], there) for model in (first, second)] == given


@pytest.mark.parametrize("in_graph", [True, False])
@pytest.mark.parametrize(("training", "line"), [(True, "return model(x, training=training)"), (False, ""), (None, "")])
def test_the_line_that_calls_a_model_in_training_mode_between_steps_is_known(
    watch: Watch, in_graph: bool, training: bool | None, line: str
) -> None:
    def script() -> None:
        model = keras.Sequential([keras.Input((8,)), layers.Dropout(0.5), layers.Dense(1)])
        model(X[:1], training=True)  # before there are steps
        optimizer = keras.optimizers.SGD()

        def step(x: Any, y: Any) -> None:
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((model(x, training=True) - y) ** 2)
            optimizer.apply_gradients(
                zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables, strict=True)
            )

        def validate(x: Any) -> Any:
            return model(x, training=training)

        step, validate = (tf.function(each) if in_graph else each for each in (step, validate))
        for batch in BATCHES:
            step(*batch)
        validate(X)

    trace, *_ = watch(script)
    assert (trace.untaped or ("", 0, ""))[2] == line


@pytest.mark.parametrize("by_fit", [False, True], ids=["loop", "fit"])
def test_a_step_asks_no_model_for_its_weights_and_no_variable_of_several_replicas_for_its_value(
    watch: Watch, monkeypatch: pytest.MonkeyPatch, by_fit: bool
) -> None:
    asked, begun = list[Any](), list[bool]()
    for where in (
        ["compare.watch.initial_weights.weights_of"],
        ["compare.watch.trainings.weights_of"],
        [keras.Variable, "numpy"],
    ):
        known = weights_of if len(where) == 1 else keras.Variable.numpy
        monkeypatch.setattr(*where, lambda thing, known=known: (asked.append(thing), known(thing))[1])

    def script() -> None:
        model, optimizer = make(), keras.optimizers.SGD(0.01)
        between = keras.callbacks.LambdaCallback(
            on_epoch_begin=lambda epoch, logs: asked.clear(),
            on_train_batch_begin=lambda batch, logs: asked and pytest.fail(f"{asked} in a step"),
        )
        if by_fit:
            model.compile(optimizer, "mse")
            model.fit(X, Y, batch_size=16, epochs=1, verbose=0)
            model.fit(X, Y, batch_size=16, epochs=1, verbose=0, callbacks=[between])

        @tf.function
        def step(x: Any, y: Any) -> None:
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.square(y - model(x, training=True)))
            optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)

        for _ in range(0 if by_fit else 2):
            asked.clear()
            for x, y in BATCHES:
                step(tf.constant(x), tf.constant(y))
        assert by_fit or not asked
        another = make()
        step(*map(tf.constant, BATCHES[0]))
        begun.extend(mark_of(weight).begun for weight in another.weights)

    assert only(watch(script)).last == 7
    assert begun == [True] * 4, "the next step gives a model that is made later its initial weights"


def test_the_steps_of_an_optimizer_are_counted_whatever_counts_them() -> None:
    optimizer: Any = SimpleNamespace(iterations=tf.Variable(3))
    count = Count(optimizer)
    optimizer.iterations.assign_add(1)
    made = [count.made()]
    optimizer.iterations = tf.Variable(6)  # another variable
    made.append(count.made())
    optimizer.iterations = tf.constant(7)  # of one that accumulates gradients
    made.append(count.made())
    assert (count.begun, made) == (3, [1, 3, 4])


def test_what_has_no_fixed_shape_is_left_out_and_trainings_that_are_too_many_are_known(
    watch: Watch, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen, ended = list[Observer](), Observer.ended
    monkeypatch.setattr(Observer, "ended", lambda self: (seen.append(self), ended(self)))
    monkeypatch.setattr("compare.watch.settings.MOST_TRAININGS", 4)
    kept: list[tf.Variable] = []

    def script() -> None:
        kept.append(tf.Variable(tf.zeros([0, 3]), shape=[None, 3]))
        for number in range(6):
            model = keras.Sequential([keras.Input((8,)), layers.Dense(1)], name=f"model-{number}")
            model.compile("sgd", "mse")
            model.fit(X, Y, batch_size=16, verbose=0)

    assert len([trace for trace in watch(script) if not trace.state]) == 4
    assert seen[0].untrained()["further"] == ["model-4", "model-5"]


@pytest.mark.filterwarnings("ignore:.*input ran out of data:UserWarning")
def test_an_optimizer_that_makes_no_step_over_an_empty_data_set_is_not_said_to_count_none(
    watch: Watch, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen, ended = list[Observer](), Observer.ended
    monkeypatch.setattr(Observer, "ended", lambda self: (seen.append(self), ended(self)))

    class CountsNone(keras.optimizers.SGD):
        def apply(self, grads: Any, trainable_variables: Any = None) -> None:
            super().apply(grads, trainable_variables)
            self.iterations.assign_sub(1)

    def script() -> None:
        for optimizer, size in (("adam", 0), (CountsNone(), 16)):
            model = keras.Sequential([keras.Input((8,)), layers.Dense(1)])
            model.compile(optimizer, "mse")
            model.fit(X[:size], Y[:size], batch_size=16, verbose=0)

    watch(script)
    assert seen[0].untrained()["optimizers"] == ["CountsNone"]


@pytest.mark.parametrize(("apart", "change", "told"), [(0.0, 1e-3, 1), (1e-6, 1e-3, 1), (1e-6, 5e-5, 0), (1.0, 2.0, 0)])
@pytest.mark.parametrize("turned", [False, True])
def test_what_only_one_side_leaves_otherwise_is_compared_where_its_change_is_no_rounding(
    apart: float, change: float, told: int, turned: bool
) -> None:
    def side(*values: float) -> list[Trace]:
        """A training whose last step makes the first of these weights, and what it leaves then."""
        steps = np.zeros(3, step_dtype(1, 1))
        steps["step"], steps["epoch"] = (0, 3, 4), 1
        steps["hashes"][:, 0, 0] = [int(value * 1e9) for value in values]
        steps["projections"][:, 0, :] = np.array(values)[:, None]
        made = Trace((Variable("w", (1,), "float32"),), 1, steps, whole=True)
        return [replace(made, number=0, trained=[0]), replace(made, number=1, state=LEFT, of=0)]

    still, changing = side(1.0, 1.0, 1.0), side(1.0 + apart, 1.0 + change, 1.0 + change)
    traces = [changing, still] if turned else [still, changing]
    pairs = [pair for pair in paired_models(traces, 2000) if pair[0].state == LEFT]
    assert len(pairs) == told and all(begin_equal(*pair) for pair in pairs)
    assert len(changed_last(["a", "b"], traces, [(traces[0][0], traces[1][0])])) == (not told)


@pytest.mark.parametrize("close_up", [(), ((1, 2),)])
def test_a_script_may_name_its_operations_and_their_arguments(watch: Watch, close_up: Any) -> None:
    def script() -> None:
        assert tf.random.normal([2], name="noise").shape == (2,)
        assert tf.random.poisson([2], 1.0, name="counts").shape == (2,)
        (x,) = tf.data.Dataset.from_tensor_slices(X[:16]).batch(16, name="batches")
        model = make()
        with tf.GradientTape() as tape:
            logits = model(x, training=True)
            loss = tf.nn.sigmoid_cross_entropy_with_logits(labels=Y[:16], logits=logits, name="loss")
            loss += tf.math.squared_difference(x=Y[:16], y=logits, name="more")
        gradients = tape.gradient(loss, model.trainable_variables)
        keras.optimizers.SGD(0.01).apply_gradients(zip(gradients, model.trainable_variables, strict=True))

    assert only(watch(script, close_up=close_up)).last == 1


def test_moving_averages_that_belong_to_no_model_are_said(watch: Watch) -> None:
    def averaging() -> None:
        by_hand(make())
        tf.train.ExponentialMovingAverage(0.9).apply([tf.Variable(1.0)])

    none, one, other = (only(watch(script)) for script in (lambda: by_hand(make()), averaging, averaging))
    runs: list[Any] = [SimpleNamespace(name="fit"), SimpleNamespace(name="loop")]
    assert _averages(runs, [none, none]) == ([], False)
    how = "moving averages by tf.train.ExponentialMovingAverage, and they are not compared"
    assert _averages(runs, [none, one]) == ([f"only loop keeps {how}"], False)
    assert _averages(runs, [one, other]) == ([f"fit and loop keep {how}"], True)


def test_a_softmax_that_keras_undoes_is_said(tmp_path: Path) -> None:
    warned = (
        '"`sparse_categorical_crossentropy` received `from_logits=True`, but the `output` argument was produced by a '
        "Softmax activation and thus does not represent logits. Was this intended?"
    )
    fit, loop, other = (SimpleNamespace(name=name, log=tmp_path / f"{name}.log") for name in ("fit", "loop", "other"))
    loop.log.write_text(f"step 1\n{warned}\n")
    other.log.write_text(warned)
    ((told),) = _undone([fit, loop])  # type: ignore[list-item]
    assert told.startswith("loop gives a loss with from_logits=True what a softmax has made")
    assert _undone([fit, fit]) == _undone([loop, other]) == []  # type: ignore[list-item]


def test_trainings_that_are_not_compared_are_said(tmp_path: Path) -> None:
    untrained = {"further": ["model-4", "model-5"]}
    settings = SimpleNamespace(trainings=4)
    run: Any = SimpleNamespace(name="a", folder=tmp_path, settings=settings, lingered=False, untrained=untrained)
    only_four = "a also trains model-4, model-5: only its first 4 trainings can be compared"
    assert _further([run]) == [only_four]
    models = [SimpleNamespace(traces=[SimpleNamespace(last=3)])]
    options = SimpleNamespace(max_steps=3)
    session: Any = SimpleNamespace(names=["a"], alone=False, options=options, models=models, stopped=False)
    first = "only the first 3 steps are compared (--max-steps)"
    assert _cut(session, [run]) == [first]
    (tmp_path / ENOUGH).touch()
    assert _cut(session, [run]) == [f"{first}, and no training that begins after them"]
    run.lingered = True
    assert _cut(session, [run])[0] == "a was ended: its last line had run, and a thread or a function of atexit went on"
    run.lingered = False
    models[0].traces[0].last, session.stopped = 2, True
    assert _cut(session, [run]) == ["the scripts were ended where their weights differ (--stop-at-difference)"]


@pytest.mark.parametrize(("gap", "stopped"), [(0.0, False), (1e-7, False), (1e-3, True)])
def test_scripts_are_stopped_where_a_step_of_both_differs_by_more_than_rounding(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, gap: float, stopped: bool
) -> None:
    """One of which makes two steps in each call."""

    def trace(steps: Sequence[int], gap: float) -> Trace:
        rows = np.zeros(len(steps), step_dtype(1, 1))
        rows["step"] = steps
        rows["projections"] = (1.0 + np.array(steps) + gap * (np.array(steps) > 0))[:, None, None]
        rows["hashes"] = rows["projections"][:, :, :1].view(np.uint64)
        return Trace((Variable("w", (), "float32"),), 1, rows, trained=[0], began=1, ended=1)

    traces = iter([[trace([0, 2, 4], 0.0)], [trace([0, 1, 2, 3], gap)]])
    monkeypatch.setattr(scripts_session, "read_traces", lambda folder: next(traces))
    session: Any = SimpleNamespace(options=SimpleNamespace(stop_at_difference=True, max_steps=9))
    runs: Any = [SimpleNamespace(folder=tmp_path, status=status) for status in (None, 0)]
    assert scripts_session._to_be_stopped(session, runs) == stopped
    ended: Any = [SimpleNamespace(status=0)] * 2
    assert not scripts_session._to_be_stopped(session, ended), "there is nothing to stop"
    one, two = [trace([0, 2, 4, 6], 0.0)], [trace([0, 1, 2, 3, 4, 5], gap)]
    assert [(a.last, b.last) for a, b in paired_models([one, two], 0)] == [(4, 4)], "up to the last step of both"


def test_epochs_of_fit_end_where_the_first_model_has_made_its_own_steps() -> None:
    """A critic makes two steps for each of a generator's, and is trained first, so that fit's epochs are its own."""

    def made(steps: int, created: int, epochs: list[FitEpoch]) -> Trace:
        rows = np.zeros(steps, step_dtype(0, 1))
        rows["step"] = range(1, steps + 1)
        return Trace((), 1, rows, began=1, ended=18, created=created, epochs=epochs)

    critic = made(36, 1, [FitEpoch(end, {"loss": 1.0}, 1.0) for end in (12, 24, 36)])
    ((first, second),) = stretches([critic, made(18, 0, [])])
    assert [each.steps for each in first.epochs] == [6, 12, 18]
    assert (first.last, second) == (18, critic)


def only(traces: Sequence[Trace]) -> Trace:
    """The only training, without what it leaves."""
    (trace,) = (trace for trace in traces if not trace.state)
    return trace


def compared(*traces: Sequence[Trace], max_steps: int = 2000) -> list[tuple[Trace, Trace]]:
    return paired_models(traces, max_steps)


def make() -> Any:
    return keras.Sequential([keras.Input((8,)), layers.Dense(16, "tanh"), layers.Dense(1)])


def fit(model: Any = None, epochs: int = 1) -> Any:
    model = model or make()
    model.compile(keras.optimizers.Adam(0.01), "mse")
    model.fit(X, Y, batch_size=16, epochs=epochs, verbose=0)
    return model


def loop(predict: Callable[[Any], Any], variables: Callable[[], Any], graph: bool = True, epochs: int = 1) -> Any:
    """Trains as ``fit`` does, by hand."""
    optimizer = keras.optimizers.Adam(0.01)

    def step(x: Any, y: Any) -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(y - predict(x)))
        optimizer.apply(tape.gradient(loss, variables()), variables())

    step = tf.function(step) if graph else step
    for _ in range(epochs):
        for x, y in BATCHES:
            step(tf.constant(x), tf.constant(y))
    return optimizer


def by_hand(model: Any, **options: Any) -> Any:
    return loop(lambda x: model(x, training=True), lambda: model.trainable_variables, **options)


def in_parts(graph: bool = True) -> None:
    """Trains as ``fit`` does, each layer by an optimizer of its own."""
    model, optimizers = make(), [keras.optimizers.Adam(0.01) for _ in range(2)]

    def step(x: Any, y: Any) -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(y - model(x, training=True)))
        gradients = tape.gradient(loss, model.trainable_variables)
        for i, optimizer in enumerate(optimizers):
            optimizer.apply(gradients[2 * i : 2 * i + 2], model.trainable_variables[2 * i : 2 * i + 2])

    step = tf.function(step) if graph else step
    for x, y in BATCHES:
        step(tf.constant(x), tf.constant(y))


def test_what_is_summed_over_replicas_is_seen_however_its_arguments_are_given() -> None:
    seen: list[float] = []
    observer: Any = SimpleNamespace(_record=lambda kind, info, arrays: seen.append(float(arrays[0])))
    total, mean, value = tf.distribute.ReduceOp.SUM, tf.distribute.ReduceOp.MEAN, tf.constant(2.0)
    reduce, strategy = tf.distribute.Strategy.reduce, tf.distribute.get_strategy()
    StageObserver._reduce(observer, reduce, strategy, total, value, None)
    StageObserver._reduce(observer, reduce, strategy, mean, value, None)
    StageObserver._reduce(observer, reduce, strategy, reduce_op=total, value=value, axis=None)
    assert seen == [2.0, 2.0]


def test_a_rate_that_a_script_sets_as_lr_is_recorded_unless_its_optimizer_is_its_own(watch: Watch) -> None:
    class Own(keras.optimizers.SGD):
        lr = None  # which it may use

    def script(kind: Any, lr: Any) -> None:
        model, optimizer = make(), kind(0.1)
        for x, y in BATCHES:
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.square(y - model(x, training=True)))
            optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)
            optimizer.lr = lr
        assert float(optimizer.learning_rate) == np.float32(0.1)

    seen = [
        only(watch(partial(script, kind, lr))).optimizers[0]["lr"]
        for kind, lr in ((keras.optimizers.SGD, 0.01), (keras.optimizers.SGD, "low"), (Own, 0.01))
    ]
    assert seen == [0.01, None, None]
    assert only(watch(partial(by_hand, make()))).optimizers[0]["lr"] is None


@pytest.mark.parametrize("graph", [True, False])
def test_a_step_of_two_optimizers_is_over_when_both_have_made_their_part(watch: Watch, graph: bool) -> None:
    ((one, two),) = compared(watch(fit), watch(lambda: in_parts(graph)))
    assert one.last == two.last == len(BATCHES)
    np.testing.assert_allclose(one.steps["projections"], two.steps["projections"], rtol=1e-5, atol=1e-5)


def encoder_and_decoder() -> tuple[Any, Any, list[Any]]:
    encoder = keras.Sequential([keras.Input((8,)), layers.Dense(16, "tanh")])
    decoder = keras.Sequential([keras.Input((16,)), layers.Dense(1)])
    return encoder, decoder, encoder.trainable_variables + decoder.trainable_variables


def one_for_parts(graph: bool, optimizer: Any, again: bool = False) -> None:
    """Trains as ``fit`` does, with one optimizer that is applied to each model, or again to all weights."""
    encoder, decoder, variables = encoder_and_decoder()
    optimizer.build(variables)

    def step(x: Any, y: Any) -> None:
        with tf.GradientTape(persistent=True) as tape:
            loss = tf.reduce_mean(tf.square(y - decoder(encoder(x))))
        for part in [variables] * 2 if again else [each.trainable_variables for each in (encoder, decoder)]:
            optimizer.apply(tape.gradient(loss, part), part)

    step = tf.function(step) if graph else step
    for x, y in BATCHES:
        step(tf.constant(x), tf.constant(y))


@pytest.mark.parametrize("graph", [True, False], ids=["graph", "eager"])
def test_one_optimizer_that_is_applied_to_each_part_of_the_weights_makes_one_step(watch: Watch, graph: bool) -> None:
    def whole() -> None:
        encoder, decoder, _ = encoder_and_decoder()
        model = keras.Sequential([encoder, decoder])
        model.compile(keras.optimizers.SGD(0.01), "mse")
        model.fit(X, Y, batch_size=16, verbose=0)

    parts = partial(one_for_parts, graph, keras.optimizers.SGD(0.01))
    ((one, two),) = compared(watch(whole), watch(parts))
    assert one.last == two.last == len(BATCHES) and len(two.variables) == 4
    assert (one.eager, two.eager) == (False, not graph)
    np.testing.assert_allclose(one.steps["projections"], two.steps["projections"], rtol=1e-5, atol=1e-5)


def test_data_whose_epochs_end_in_a_method_of_its_own_is_recorded(watch: Watch) -> None:
    """Keras's fit calls it before the first epoch, too."""

    class Batches(keras.utils.PyDataset):
        def __len__(self) -> int:
            return len(BATCHES)

        def __getitem__(self, number: int) -> Any:
            return BATCHES[number]

    class Shuffled(Batches):
        def on_epoch_end(self) -> None:
            pass

    def fit(data: Any) -> None:
        model = make()
        model.compile(keras.optimizers.SGD(0.01), "mse")
        model.fit(data, verbose=0)

    ((one, two),) = compared(watch(lambda: fit(Batches())), watch(lambda: fit(Shuffled())))
    assert "ends_epochs" not in one.fit and two.fit["ends_epochs"] == "Shuffled"


def test_what_fit_does_not_take_is_an_error_of_fit(watch: Watch) -> None:
    with pytest.raises(TypeError, match=r"fit\(\) got an unexpected keyword argument 'workers'"):
        watch(lambda: make().fit(X, Y, workers=4))


def test_a_trace_is_read_once_while_it_does_not_change(
    watch: Watch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    watch(partial(by_hand, make()))
    assert [steps_made(tmp_path / "0", number) for number in (0, 1)] == [len(BATCHES), 0], "1 is what 0 leaves"
    monkeypatch.setattr("compare.watch.trace.pickle.loads", None)
    assert steps_made(tmp_path / "0", 0) == len(BATCHES)
    assert steps_made(tmp_path / "0", 2) == 0, "which there is not"


@pytest.mark.parametrize("first", [0, 1])
def test_epochs_that_a_script_reports_may_count_from_0(watch: Watch, first: int) -> None:
    def script() -> None:
        model = make()
        for epoch in range(2):
            by_hand(model)
            compare.report(first + epoch, loss=epoch)
        with pytest.raises(TypeError, match=r"^report\(\) takes from 0 to 1 positional arguments but 2 were given$"):
            compare.report(1, {"loss": 1})  # type: ignore[call-arg] # as a script may do
        with pytest.raises(TypeError, match=r"^compare\.report was given list as loss: give one number$"):
            compare.report(1, loss=[1.0, 2.0])  # type: ignore[arg-type]

    reported = [(each.epoch, each.value) for each in only(watch(script)).reported if each.name == "loss"]
    assert reported == [(1, 0), (2, 1)]


@pytest.mark.parametrize("kind", [keras.optimizers.SGD, keras.optimizers.Adam])
def test_an_optimizer_that_is_made_for_each_step_makes_as_many(watch: Watch, kind: Any) -> None:
    def script(anew: bool) -> None:
        model, optimizer = make(), kind(0.01)
        for x, y in BATCHES:
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.square(y - model(x, training=True)))
            optimizer = kind(0.01) if anew else optimizer
            optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)

    ((one, two),) = compared(watch(partial(script, False)), watch(partial(script, True)))
    assert one.last == two.last == len(BATCHES)
    assert (one.parts, two.parts) == ([(0, 0)], [(0, 0), (1, 0), (2, 0)])
    same = (one.steps["hashes"] == two.steps["hashes"]).all(axis=(1, 2)).tolist()
    assert same == [True, True, *([kind is keras.optimizers.SGD] * 2)], "which has no slots"


@pytest.mark.parametrize("inside", [True, False], ids=["train_step", "loop"])
def test_an_optimizer_of_two_models_beside_that_of_a_third_trains_those_two(watch: Watch, inside: bool) -> None:
    """Also where a model has all three, as one with a train_step of its own."""

    def script() -> None:
        encoder, head, probe = (
            keras.Sequential([keras.Input((before,)), layers.Dense(units)])
            for before, units in ((8, 3), (3, 2), (3, 1))
        )
        optimizers = [keras.optimizers.SGD(0.01) for _ in range(2)]

        def step(x: Any) -> Any:
            for of, optimizer, models in ((head, optimizers[0], (encoder, head)), (probe, optimizers[1], (probe,))):
                variables = [variable for model in models for variable in model.trainable_variables]
                with tf.GradientTape() as tape:
                    loss = tf.reduce_mean(tf.square(of(encoder(x))))
                optimizer.apply(tape.gradient(loss, variables), variables)
            return loss

        class Whole(keras.Model):  # type: ignore[misc] # keras is untyped
            def __init__(self) -> None:
                super().__init__()
                self.models = [encoder, head, probe]

            def train_step(self, data: Any) -> Any:
                return {"loss": step(data[0])}

        if inside:
            model = Whole()
            model.compile()
            model.fit(X, Y, batch_size=16, verbose=0)
        for x, _ in () if inside else BATCHES:
            step(tf.constant(x))

    found = [trace for trace in watch(script) if not trace.state]
    assert [(len(trace.variables), trace.last) for trace in found] == [(4, 3), (2, 3)]


def test_models_that_make_several_steps_in_turn_are_recorded_as_if_one_call_had_made_them(watch: Watch) -> None:
    """The next round's calls of the first model, such as a generator, move its statistics; that is of the next step."""

    def script(at_once: bool) -> None:
        made = keras.Sequential([keras.Input((8,)), layers.Dense(4), layers.BatchNormalization()])
        judge = keras.Sequential([keras.Input((4,)), layers.Dense(1)])
        optimizers = [keras.optimizers.SGD(0.01) for _ in range(2)]

        def step(i: int, x: Any) -> None:
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.square(judge(made(x, training=True))))
            variables = (judge, made)[i].trainable_variables
            optimizers[i].apply(tape.gradient(loss, variables), variables)

        def batch(x: Any) -> None:
            for i in (0, 0, 1, 1):
                (step if at_once else steps[i])(i, x)

        steps = [tf.function(step) for _ in range(2)]
        batch = tf.function(batch) if at_once else batch
        for x, _ in BATCHES:
            batch(tf.constant(x))

    once, in_turn = ([each for each in watch(partial(script, how)) if not each.state] for how in (True, False))
    assert len(once) == len(in_turn) == 2
    for one, two in zip(once, in_turn, strict=True):
        alike = [row for row in two.steps if row["step"] in one.steps["step"]]
        assert len(alike) == len(one.steps) == 1 + len(BATCHES)
        assert [row["hashes"].tolist() for row in alike] == one.steps["hashes"].tolist()


@pytest.mark.parametrize("graph", [True, False], ids=["graph", "eager"])
def test_an_optimizer_that_is_applied_twice_to_the_same_weights_makes_two_steps(watch: Watch, graph: bool) -> None:
    trace = only(watch(partial(one_for_parts, graph, keras.optimizers.SGD(0.01), again=True)))
    assert trace.last == 2 * len(BATCHES)


@pytest.mark.parametrize("graph", [True, False], ids=["graph", "eager"])
def test_parts_of_the_weights_that_are_trained_one_after_the_other_have_steps_of_their_own(
    watch: Watch, graph: bool
) -> None:
    def script() -> None:
        model, optimizer = make(), keras.optimizers.SGD(0.01)
        optimizer.build(model.trainable_variables)
        for part in (model.trainable_variables[:2], model.trainable_variables[2:]):

            def step(x: Any, y: Any, part: Any = lambda part=part: part) -> None:
                with tf.GradientTape() as tape:
                    loss = tf.reduce_mean(tf.square(y - model(x)))
                optimizer.apply(tape.gradient(loss, part()), part())

            run = tf.function(step) if graph else step
            for x, y in BATCHES:
                run(tf.constant(x), tf.constant(y))

    assert only(watch(script)).last == 2 * len(BATCHES)


@pytest.mark.parametrize("graph", [True, False], ids=["graph", "eager"])
@pytest.mark.parametrize(
    ("gap", "pairs"),
    [
        (lambda y, out: y[:, 0] - out, True),
        (lambda y, out: y[:, 0].numpy() - out if tf.executing_eagerly() else y[:, 0] - out, True),
        (lambda y, out: out - tf.squeeze(y), True),
        (lambda y, out: tf.math.squared_difference(y[:, 0], out), True),
        (lambda y, out: y - out, False),
        (lambda y, out: out[:, 0] - out, False),  # of scores that are ranked
        (lambda y, out: tf.squeeze(y, 1)[:, None] - tf.squeeze(y) + out, False),
    ],
)
def test_a_difference_of_all_pairs_is_seen_in_a_loss(
    watch: Watch, tmp_path: Path, gap: Any, pairs: bool, graph: bool
) -> None:
    def script() -> None:
        model, optimizer = make(), keras.optimizers.SGD(0.01)

        def step(x: Any, y: Any) -> None:
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.square(gap(y, model(x))))
            optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)

        (tf.function(step) if graph else step)(*map(tf.constant, BATCHES[0]))

    watch(script, close_up=((1, 1),))
    close_up = read_close_up(tmp_path / "0", 0)
    assert close_up is not None and [event.info["pairs"] for event in close_up.of(1, "loss")] == [pairs]


def test_the_line_of_a_loss_is_not_the_one_that_adds_the_models_own(watch: Watch, tmp_path: Path) -> None:
    def script() -> None:
        model = keras.Sequential([keras.Input((8,)), layers.Dense(1, kernel_regularizer="l2")])
        optimizer, mean = keras.optimizers.SGD(0.01), keras.metrics.Mean("loss")

        @tf.function  # type: ignore[untyped-decorator]
        def step(x: Any, y: Any) -> None:
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum((model(x) - y) ** 2) / 16
                loss += tf.add_n(model.losses)
            optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)
            mean.update_state(loss)

        step(*map(tf.constant, BATCHES[0]))
        float(mean.result())

    traces = watch(script, close_up=((1, 1),))
    close_up = read_close_up(tmp_path / "0", 0)
    assert close_up is not None
    assert [event.info["made"][2] for event in close_up.of(1, "loss")] == [
        "loss = tf.reduce_sum((model(x) - y) ** 2) / 16"
    ]
    (reported,) = traces[0].reported
    assert reported.updated and reported.updated[2] == "mean.update_state(loss)"
    assert reported.line and reported.line[2] == "float(mean.result())"
    assert line_of(traces[0], (1,), traces[0], ["loss"]) == reported.updated


def test_the_schedule_of_an_optimizer_that_accumulates_is_given_the_number_of_calls() -> None:
    schedule = keras.optimizers.schedules.PolynomialDecay(1.0, 100, 0.0)
    optimizer, variable = keras.optimizers.SGD(schedule, gradient_accumulation_steps=2), keras.Variable([1.0])
    for _ in range(3):
        optimizer.apply([tf.ones(1)], [variable])
    assert np.isclose(float(learning_rate(optimizer)), 0.97) and int(optimizer.iterations) == 1


def test_a_constant_of_a_script_is_no_weight_of_the_other_script(watch: Watch) -> None:
    """Such as the weight of a penalty, which is a trainable variable unless it is told not to be."""
    found: list[Any] = []

    def script(constants: Any) -> None:
        made = [tf.Variable(each) for each in constants]
        by_hand(make())
        found.append([each.numpy().tolist() for each in made])

    script_of = [[1.0, [3.0]], [[5.0], 2.0, np.float32(4)]]  # [3.0] has the shape of a bias
    for constants in script_of:
        watch(partial(script, constants))
    assert found == script_of


class Named(keras.Model):  # type: ignore[misc] # keras is untyped
    def __init__(self) -> None:
        super().__init__()
        self.out = layers.Dense(1)

    def call(self, features: Any) -> Any:
        return self.out(tf.sparse.to_dense(features) if isinstance(features, tf.SparseTensor) else features), None


@pytest.mark.parametrize("graph", [True, False], ids=["graph", "eager"])
@pytest.mark.parametrize("give", [lambda x: x, tf.sparse.from_dense], ids=["dense", "sparse"])
def test_inputs_and_outputs_of_any_kind_are_seen_inside_a_step(
    watch: Watch, tmp_path: Path, give: Any, graph: bool
) -> None:
    def script() -> None:
        model, optimizer = Named(), keras.optimizers.SGD(0.01)

        def step(x: Any, y: Any) -> None:
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.square(y - model(features=give(x))[0]))
            optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)

        model(features=give(tf.constant(X[:1])))
        (tf.function(step) if graph else step)(*map(tf.constant, BATCHES[0]))

    watch(script, close_up=((1, 1),))
    close_up = read_close_up(tmp_path / "0", 0)
    assert close_up is not None
    np.testing.assert_array_equal(close_up.arrays(1, "inputs")[0], BATCHES[0][0])
    assert [each.shape for each in close_up.arrays(1, "predictions")] == [(16, 1)]


@pytest.mark.filterwarnings("ignore:__array__ implementation")  # h5py's
@pytest.mark.parametrize("way", ["load_weights", "load_model"])
def test_weights_that_the_second_script_loads_before_training_are_its_own(
    watch: Watch, tmp_path: Path, way: str
) -> None:
    saved = make()
    saved.save_weights(tmp_path / "saved.weights.h5")
    saved.save(tmp_path / "saved.keras")

    def restored() -> None:
        model = make()
        model(X[:1])  # the first script's random weights, which it does not train
        model.load_weights(tmp_path / "saved.weights.h5")
        fit(model)

    def second() -> None:
        model = keras.models.load_model(tmp_path / "saved.keras") if way == "load_model" else make()
        if way == "load_weights":
            model.load_weights(tmp_path / "saved.weights.h5")
        by_hand(model)

    ((one, two),) = compared(watch(restored), watch(second))
    assert np.array_equal(one.steps["hashes"][0], two.steps["hashes"][0])


@pytest.mark.parametrize(
    ("seeds", "together"), [((7, 7), True), ((7, 8), False), ((None, None), False)]
)  # fmt: skip
def test_data_shuffled_by_one_seed_are_no_data_that_are_shuffled_apart(
    watch: Watch, seeds: Any, together: bool
) -> None:
    found: list[bool] = []

    def script() -> None:
        with undone():
            _leave_out_shuffles()
            parts = [tf.data.Dataset.range(48).shuffle(48, seed=seed) for seed in seeds]
            found.append(all(a == b for a, b in tf.data.Dataset.zip(tuple(parts)).as_numpy_iterator()))
            by_hand(make())

    watch(script)
    assert found == [together]


def test_data_that_are_shuffled_apart_have_one_order_whenever_they_are_zipped(watch: Watch) -> None:
    """A loop may zip them for each epoch, and fit once."""
    found: list[list[Any]] = []

    def script() -> None:
        with undone():
            _leave_out_shuffles()
            parts = [tf.data.Dataset.range(48).shuffle(48) for _ in range(2)]
            once = tf.data.Dataset.zip(tuple(parts))
            for data in (once, once, tf.data.Dataset.zip(tuple(parts))):
                found.append(list(data.as_numpy_iterator()))
            by_hand(make())

    watch(script)
    assert found[0] == found[1] == found[2]
    assert any(one != other for one, other in found[0])


@pytest.mark.parametrize("graph", [True, False])
def test_a_model_whose_call_is_a_graph_of_its_own_is_trained_as_ever(watch: Watch, graph: bool) -> None:
    """A trace of it that is made to build its weights has none."""

    class Net(keras.Model):  # type: ignore[misc] # keras is untyped
        def __init__(self) -> None:
            super().__init__()
            self.hidden, self.out = layers.Dense(16, "tanh"), layers.Dense(1)

        @tf.function  # type: ignore[untyped-decorator]
        def call(self, x: Any) -> Any:
            return self.out(self.hidden(x))

    ((one, two),) = compared(watch(lambda: fit(Net())), watch(lambda: by_hand(Net(), graph=graph)))
    assert one.last == two.last == len(BATCHES)
    np.testing.assert_allclose(one.steps["projections"], two.steps["projections"], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("graph", [True, False])
def test_what_trains_may_read_the_clock(graph: bool) -> None:
    """Which TensorFlow refuses under op determinism."""
    read = tf.function(lambda: tf.timestamp()) if graph else tf.timestamp
    assert abs(float(read()) - time.time()) < 60 and read().shape == () and read().dtype == tf.float64


@pytest.mark.parametrize(
    ("layer", "depends"),
    [
        (lambda: layers.Dense(2), False),
        (lambda: layers.LSTM(2), False),
        (lambda: layers.LSTM(2, recurrent_dropout=0.1), True),
        (lambda: layers.Dropout(0), False),
        (lambda: layers.Dropout(0.1), True),
        (lambda: layers.GaussianNoise(0.1), True),
        (lambda: layers.BatchNormalization(), True),
        (lambda: layers.RandomFlip(), True),
    ],
)
def test_which_layers_depend_on_the_training_flag(layer: Callable[[], Any], depends: bool) -> None:
    assert _depends_on_training(layer()) == depends


def test_a_layer_has_a_mask_that_it_is_given_or_that_its_inputs_have() -> None:
    tokens = tf.constant([[1, 2, 0]])
    masked = layers.Embedding(3, 2, mask_zero=True)(tokens)
    assert _masked((masked,), {}) and _masked((), {"inputs": [masked]}) and _masked((tokens,), {"mask": tokens != 0})
    assert not _masked((tokens,), {"mask": None}) and not _masked((tf.identity(masked),), {})


def bare_layer() -> Any:
    class Net(layers.Layer):  # type: ignore[misc] # keras is untyped
        def __init__(self) -> None:
            super().__init__()
            self.hidden, self.out = layers.Dense(16, "tanh"), layers.Dense(1)

        def call(self, x: Any) -> Any:
            return self.out(self.hidden(x))

    net = Net()
    return net, lambda: net.trainable_variables


def of_a_layer(graph: bool) -> None:
    loop(*bare_layer(), graph)


def of_two_layers(graph: bool) -> None:
    hidden, out = layers.Dense(16, "tanh"), layers.Dense(1)
    loop(lambda x: out(hidden(x)), lambda: hidden.trainable_variables + out.trainable_variables, graph)


def of_submodels(graph: bool) -> None:
    out = keras.Sequential([keras.Input((16,)), layers.Dense(1, name="out")])
    hidden = keras.Sequential([keras.Input((8,)), layers.Dense(16, "tanh")])
    loop(lambda x: out(hidden(x)), lambda: out.trainable_variables + hidden.trainable_variables, graph)


def raw_variables() -> Any:
    w, b = tf.Variable(X[:8].repeat(2, axis=1)), tf.Variable(tf.zeros(16))
    v, c = tf.Variable(np.ones((16, 1), np.float32)), tf.Variable(tf.zeros(1))
    return lambda x: tf.tanh(x @ w + b) @ v + c, lambda: [w, b, v, c]


def of_variables(graph: bool) -> None:
    loop(*raw_variables(), graph)


def of_a_module(graph: bool) -> None:
    class Net(tf.Module):  # type: ignore[misc] # tensorflow is untyped
        w: Any = None

        def __call__(self, x: Any) -> Any:
            if self.w is None:  # made under the tape, when the inputs are known
                with tf.init_scope():
                    self.w, self.b = tf.Variable(X[:8].repeat(2, axis=1)), tf.Variable(tf.zeros(16))
                    self.v, self.c = tf.Variable(tf.ones((16, 1))), tf.Variable(tf.zeros(1))
            return tf.tanh(x @ self.w + self.b) @ self.v + self.c

    net = Net()
    loop(net, lambda: [net.w, net.b, net.v, net.c], graph)


def of_a_compiled_model(graph: bool) -> None:
    model = make()
    model.compile("sgd", "mse", metrics=["mae"])
    by_hand(model, graph=graph)


@pytest.mark.parametrize("graph", [True, False], ids=["graph", "eager"])
@pytest.mark.parametrize(
    "candidate", [of_a_layer, of_two_layers, of_submodels, of_variables, of_a_module, of_a_compiled_model]
)
def test_whatever_has_the_variables_begins_with_the_weights_of_fit_and_is_compared_with_it(
    watch: Watch, candidate: Callable[[bool], None], graph: bool
) -> None:
    ((one, two),) = compared(watch(fit), watch(lambda: candidate(graph)))
    assert one.last == two.last == 3 and len(one.variables) == 4
    assert np.array_equal(one.steps["hashes"][0], two.steps["hashes"][0]), "they begin with equal weights"
    np.testing.assert_allclose(one.steps["projections"], two.steps["projections"], rtol=1e-4, atol=1e-4)


def raw(*order: int, biases: float = 0.0) -> Callable[[], None]:
    """Trains ``tf.Variable``s that are made, and given to the optimizer, in this order; first both kernels."""

    def script() -> None:
        made: dict[int, Any] = {}
        generator = np.random.default_rng(1)
        values = [generator.normal(size=shape) / 3 for shape in ((8, 8), (8, 8))]
        values += [biases * generator.normal(size=8) if biases else np.zeros(8) for _ in range(2)]
        for i in order:
            made[i] = tf.Variable(values[i].astype("float32"))
        w, v, b, c = (made[i] for i in range(4))
        loop(lambda x: tf.tanh(x @ w + b) @ v + c, lambda: list(made.values()))

    return script


def dense(biases: float = 0.0) -> None:
    draw = keras.initializers.RandomNormal(stddev=biases or 1, seed=0) if biases else "zeros"
    by_hand(
        keras.Sequential(
            [keras.Input((8,)), *(layers.Dense(8, each, bias_initializer=draw) for each in ("tanh", "linear"))]
        )
    )


def test_an_optimizer_that_accumulates_is_given_the_gradients_of_a_step_several_times() -> None:
    events = StepEvents.__new__(StepEvents)
    events._replicas = defaultdict(Replica)
    assert [events._step_of(0, 0, [0, 1], 2) for _ in range(5)] == [1, 1, 2, 2, 3]
    assert [events._step_of(1, 0, each, 1) for each in ([0], [1], [0], [1], [1])] == [1, 1, 2, 2, 3]


@pytest.mark.parametrize("biases", [0.0, 0.5], ids=["equal-values", "other-values"])
def test_variables_of_equal_shape_in_another_order_are_paired_by_their_order_and_known_to_be(
    watch: Watch, biases: float
) -> None:
    ((one, two),) = compared(watch(raw(0, 1, 2, 3, biases=biases)), watch(lambda: dense(biases)))
    assert [each.name.split("/")[-1] for each in two.variables] == ["kernel", "kernel", "bias", "bias"]
    assert np.array_equal(one.steps["hashes"][0], two.steps["hashes"][0])
    np.testing.assert_allclose(one.steps["projections"], two.steps["projections"], rtol=1e-4, atol=1e-4)
    assert two.unsure, "kernels of other values may have been given to each other's partners"
    assert [name.endswith("kernel") for name in two.unsure] == ([True] * 2 if not biases else [True] * 2 + [False] * 2)


def test_variables_that_begin_with_equal_values_are_paired_by_their_first_update(watch: Watch) -> None:
    ((one, two),) = compared(watch(raw(0, 1, 3, 2)), watch(dense))
    np.testing.assert_allclose(one.steps["projections"], two.steps["projections"], rtol=1e-4, atol=1e-4)


def test_variables_of_equal_shape_that_an_optimizer_gets_in_another_order_are_paired_by_what_they_begin_with() -> None:
    def trace(*variables: tuple[str, int]) -> Trace:
        rows = np.zeros(2, step_dtype(2, 1))
        rows["epoch"], rows["step"] = 1, range(2)
        rows["hashes"][:] = np.array([[value] for _, value in variables])
        return Trace(tuple(Variable(name, (), "float32") for name, _ in variables), 1, rows, trained=[0, 1], began=1)

    (pair,) = paired_models([[trace(("b", 7), ("w", 8))], [trace(("W", 8), ("B", 7))]], 10)
    assert [each.name for each in pair[1].variables] == ["B", "W"] and begin_equal(*pair)
    assert pair[1].unsure == ("B", "W"), "they may have been given each other's values before"
    first, second, third = (
        replace(trace(("b", 7), ("w", 8)), number=i, began=2 * i + 1, ended=2 * i + 1) for i in range(3)
    )
    (one,) = paired_models([[first, second, third]], 10)
    assert further_trainings("both", [first, second, third], [one]) == [
        "another training of both (b, 1 steps): its first two are compared"
    ]
    (same,) = paired_models([[trace(("b", 7), ("w", 8))], [trace(("B", 7), ("W", 8))]], 10)
    assert not same[1].unsure
    (other,) = paired_models([[trace(("b", 7), ("w", 8))], [trace(("W", 9), ("B", 7))]], 10)
    assert [each.name for each in other[1].variables] == ["W", "B"] and not begin_equal(*other)


def test_a_model_that_a_script_makes_and_does_not_train_takes_no_weights_away(watch: Watch, tmp_path: Path) -> None:
    """As in Keras's guide to custom loops, which makes its model twice."""

    def guide() -> None:
        first, second = make(), make()
        assert len(first.weights) == len(second.weights)
        by_hand(second, graph=False)

    reference = watch(fit)
    (tmp_path / "initial" / ENDED).touch()  # nothing more comes
    ((one, two),) = compared(reference, watch(guide))
    assert begin_equal(one, two) and two.alike and one.last == two.last


def test_a_script_that_does_not_repeat_itself_is_said() -> None:
    model = SimpleNamespace(names=("fit", "trainer"), lengths=(12, 12))
    departure: Any = SimpleNamespace(step=7, model=model)

    def said(*made: int | None) -> list[str]:
        seen = [(steps and CloseUp({step: [] for step in range(1, steps + 1)})) or None for steps in made]
        close: Any = SimpleNamespace(seen=seen, errors=("", ""))
        return [str(each.quantities["side"]) for each in _not_repeated(departure, close)]

    assert said(9, None) == ["trainer"], "it found a checkpoint, say, and had nothing left to train"
    assert said(9, 6) == ["trainer"] and said(9, 7) == [] and _not_repeated(departure, None) == []
    model.lengths = (12, 6)
    assert said(9, 6) == [], "it made no more steps before"


@pytest.mark.parametrize(
    ("step", "stages", "verdict"),
    [
        (1, [], "inconclusive"),
        (1, [StageValues("predictions", None)], "inconclusive"),
        (1, [StageValues("predictions", 0.5, 0.1)], "inconclusive"),
        (1, [StageValues("predictions", 0.1, 0.5)], "different"),
        (2, [], "different"),
    ],
)
def test_pairs_that_only_their_order_tells_are_never_called_different_before_they_are_proven(
    step: int, stages: list[StageValues], verdict: str
) -> None:
    rows = np.zeros(3, step_dtype(2, 1))
    rows["step"] = range(3)
    traces = [Trace((), 1, rows), Trace((), 1, rows, unsure=("a/bias", "b/bias"))]
    session: Any = SimpleNamespace(left_over=[])
    departure: Any = SimpleNamespace(
        name="b",
        step=step,
        start=(1, 1),
        noise=1,
        model=SimpleNamespace(lengths=(2, 2), names=("a", "b"), traces=traces, epochs=EpochEnds()),
    )
    located = Located(step, "gradients", stages=stages)
    seen: Any = SimpleNamespace(
        departure=departure, sides=None, seen=(None, None), errors=("", ""), moment=1, located=located, repeats=True
    )
    checked = _checked(session, departure, {"b": seen})
    assert checked.training.verdict == verdict
    different = Comparison("b", Training(DIFFERENT, 0.1, Difference(1, 1), 2), Reporting(None, {}))
    judged = with_located(different, checked).training
    assert judged.verdict == verdict and (judged.first_difference is None) == ("a/bias, b/bias" in judged.reason)


def departure_at(step: int, *made: Sequence[int]) -> Departure:
    """A departure of two trainings whose weights were seen after these steps."""
    rows = [np.zeros(len(steps), step_dtype(1, 1)) for steps in made]
    for row, steps in zip(rows, made, strict=True):
        row["step"] = steps
    traces = [Trace((Variable("w", (1,), "float32"),), 1, row) for row in rows]
    model: Any = SimpleNamespace(traces=traces)
    pair: Any = SimpleNamespace(reference=SimpleNamespace(variables=traces[0].variables))
    return Departure(step, None, pair, model)


@pytest.mark.parametrize(
    ("step", "made", "window"),
    [
        (15, (range(31), (0, 15, 30)), (1, 8)),
        (30, (range(31), (0, 15, 30)), (16, 23)),
        (5, ((0, 5), (0, 5)), (1, 4)),
        (7, (range(31), range(31)), (7, 6)),
        (1, (range(1, 9), range(9)), (1, 0)),  # of which the first weights were not seen
    ],
)
def test_the_steps_of_one_call_are_looked_into(
    step: int, made: tuple[Sequence[int], Sequence[int]], window: tuple[int, int]
) -> None:
    assert departure_at(step, *made).window == window


@pytest.mark.parametrize(("options", "ending"), [({}, (10, 10)), ({"gradient_accumulation_steps": 4}, (10, 12))])
def test_the_batches_that_an_optimizer_keeps_for_the_next_epoch_are_looked_into(
    options: dict[str, Any], ending: tuple[int, int]
) -> None:
    departure = departure_at(3, range(20), range(20))
    trace = replace(departure.model.traces[0], optimizers=[{"class": "SGD", "config": options}])
    model: Any = SimpleNamespace(traces=[trace], epochs=EpochEnds((10, 21)))
    departure = replace(departure, model=model)
    assert departure.ending == ending


@pytest.mark.parametrize(("apart_from", "found"), [(1, 1), (3, 3), (5, 5), (99, 5)])
def test_the_first_update_of_a_call_that_differs_is_where_two_scripts_part(apart_from: int, found: int) -> None:
    def seen(offset: float) -> CloseUp:
        weights = {step: [np.full(4, step + offset * (step >= apart_from), np.float32)] for step in range(1, 6)}
        return CloseUp({step: [Event("updated", 0, {}, each)] for step, each in weights.items()}, {5: weights[5]})

    close = CloseUps(departure_at(5, (0, 5), (0, 5)), (seen(0.0), seen(0.5)), ("", ""), [seen(1e-7)])
    assert close.of_first_update().departure.step == found
    assert replace(close, seen=(close.seen[0], None)).of_first_update().departure.step == 5, "one side was not seen"


@pytest.mark.parametrize(
    ("weights", "inputs", "repeats"),
    [
        ([1.0, 1.0], [1.0, 1.0], True),
        ([1.0, 1.0], [1.0, 1.0001], True),  # made by a model whose weights were moved
        ([1.0, 1.0], [1.0, 2.0], False),
        ([1.0, 1.0], [1.0], True),  # no twin was needed
        ([1.0, 2.0], [1.0, 1.0], False),
    ],
)
def test_a_reference_that_begins_otherwise_when_it_is_run_again_has_no_verdict(
    weights: Sequence[float], inputs: Sequence[float], repeats: bool
) -> None:
    def begins(value: float) -> CloseUp:
        return CloseUp({1: [Event("inputs", 0, {"model": "m"}, [np.full((8, 2), value)])]})

    departure: Any = SimpleNamespace(step=1)
    seen, *twins = map(begins, inputs)
    again = weights[0] == weights[1]
    close = CloseUps(departure, (seen, seen), ("", ""), twins, begins_again=again)
    assert close.repeats == repeats
    assert replace(close, departure=SimpleNamespace(step=2)).repeats, "what comes before was repeated, bit for bit"
    alike = Comparison("loop", Training("alike", None, Difference(1, 1, None), 0), Reporting(None, {}))
    of_check = replace(alike, training=Training("inconclusive", None, Difference(1, 1, None), 0, reason="unlike"))
    assert with_located(alike, of_check).training.verdict == "inconclusive"
    assert with_located(alike, replace(of_check, training=replace(of_check.training, reason=""))) == alike


@pytest.mark.parametrize(("begins", "known"), [(1, True), (2, False)])
def test_what_a_script_does_that_begins_otherwise_when_it_is_run_again_is_not_known(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, begins: int, known: bool
) -> None:
    """Such as one that goes on with the checkpoint that it has saved itself."""

    def trace(value: int) -> Trace:
        rows = np.zeros(1, step_dtype(1, 1))
        rows["hashes"] = value
        return Trace((Variable("w", (), "float32"),), 1, rows)

    again, folders = iter([1, begins]), iter("ab")
    for name, function in {
        "run_scripts": lambda *given: [SimpleNamespace(folder=tmp_path)] * 2,
        "failure_of": lambda run: "",
        "read_traces": lambda folder: [trace(next(again))],
    }.items():
        monkeypatch.setattr(scripts_close_ups, name, function)
    session: Any = SimpleNamespace(alone=False, sides=[0, 1], names=["fit", "loop"], console=Console(quiet=True))
    session.settings = lambda side: Settings("", "", str(tmp_path / next(folders)), "")
    model = SimpleNamespace(traces=(trace(1), trace(1)), seen=lambda side, run: CloseUp({1: []}))
    departure: Any = SimpleNamespace(step=1, window=(1, 0), ending=(3, 3), noise=None, model=model)
    (close,) = scripts_close_ups.close_ups(session, [departure])
    assert close.seen[0] is not None and (close.seen[1] is not None) == known
    assert [bool(error) for error in close.errors] == [False, not known]


@pytest.mark.parametrize(
    ("loss", "gradients", "stage", "apart"),
    [(0.9, 0.9, "loss", True), (0.9, 0.01, "loss", False), (0.01, 0.9, "loss", False), (0.9, 0.9, "update", False)],
)
def test_another_loss_is_a_difference_that_updates_hide_where_weights_are_alike(
    loss: float, gradients: float, stage: str, apart: bool
) -> None:
    alike = SimpleNamespace(training=Training("alike", None, None, 4))
    candidate = SimpleNamespace(trainer="loop")
    pair: Any = SimpleNamespace(noise_start=None, compared=lambda twins: alike, candidate=candidate)
    model: Any = SimpleNamespace(lengths=(4, 4), names=("fit", "loop"), traces=[Trace((), 1, np.zeros(0))] * 2)
    located = Located(1, stage, stages=[StageValues("loss", loss, 1e-6), StageValues("gradients", gradients, 1e-6)])
    of_rounding = Departure(1, (1, 1), pair, model)
    early: Any = SimpleNamespace(repeats=True, located=located, departure=of_rounding)
    found = _departure(SimpleNamespace(), pair, model, {"loop": early})
    assert found == (replace(of_rounding, start=None) if apart else None)


def test_no_number_is_judged_by_a_loss_that_is_wrong_itself() -> None:
    def found(*ids: str) -> list[Finding]:
        return [CATALOGUE[id].found("loop", Measurement.of("mean-over-batches", metric="loss")) for id in ids]

    numbers = found("loss-not-reduced", "loss-averaged-over-batches")
    assert _of_right_losses(numbers, found("optimizer-differs")) == numbers
    assert _of_right_losses(numbers, found("loss-not-divided-by-replicas")) == numbers[1:]
    lacking = found("loss-without-regularization")
    assert _of_right_losses(lacking, found("regularization-not-divided-by-replicas")) == []
    assert _of_right_losses(lacking, found("loss-summed")) == lacking


@pytest.mark.parametrize(("ratio", "start", "looked"), [(21, (1, 1), True), (19, (1, 1), False), (21, (1, 0), False)])
def test_what_rounding_hardly_explains_is_looked_into(
    monkeypatch: pytest.MonkeyPatch, ratio: float, start: tuple[int, int], looked: bool
) -> None:
    alike = SimpleNamespace(training=Training("alike", None, None, 4, noise=Noise.of(2, ratio, start, "w")))
    candidate = SimpleNamespace(trainer="loop")
    pair: Any = SimpleNamespace(noise_start=start, compared=lambda twins: alike, candidate=candidate)
    traces = [Trace((), 1, np.zeros(0))] * 2
    model: Any = SimpleNamespace(lengths=(4, 4), names=("fit", "loop"), traces=traces, epochs=EpochEnds())
    located = Located(1, "loss", stages=[StageValues("loss", 0.5, 1e-6), StageValues("gradients", 0.5, 1e-6)])

    def seen_now(session: Any, departures: Any) -> Any:
        return [SimpleNamespace(repeats=True, located=located, departure=each) for each in departures]

    monkeypatch.setattr(scripts_explain, "close_ups", seen_now)
    monkeypatch.setattr(scripts_explain, "_train_twins", lambda *given: [])
    kept: dict[str, Any] = {}
    found = _departure(SimpleNamespace(), pair, model, kept)
    assert (found is not None, "loop" in kept) == (looked, looked)


@pytest.mark.parametrize(
    ("stage", "gap", "noise", "repeats", "far"),
    [
        ("loss", 0.11, 1e-7, True, True),
        ("predictions", 0.11, 1e-7, True, True),
        ("loss", 0.09, 1e-7, True, False),
        ("loss", 0.11, 0.01, True, False),
        ("loss", 0.11, 1e-7, False, False),
        ("gradients", 0.11, 1e-7, True, False),
    ],
)
def test_what_differs_much_before_the_gradients_is_no_rounding_that_more_twins_may_explain(
    stage: str, gap: float, noise: float, repeats: bool, far: bool
) -> None:
    close = SimpleNamespace(located=Located(1, stage, stages=[StageValues(stage, gap, noise)]), repeats=repeats)
    assert CloseUps.no_kink.fget(close) == far  # type: ignore[attr-defined]


def test_variables_that_the_graph_of_the_first_step_makes_have_initial_values(watch: Watch) -> None:
    def script() -> None:
        made: list[Any] = []
        optimizer = keras.optimizers.SGD(0.1)

        @tf.function(autograph=False)
        def step(x: Any) -> None:
            if not made:
                made.append(tf.Variable(lambda: tf.ones((8, 1))))
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((x @ made[0]) ** 2)
            optimizer.apply(tape.gradient(loss, made), made)

        for x, _ in BATCHES:
            step(tf.constant(x))

    trace = only(watch(script))
    ones = Fingerprinter(tf.distribute.get_strategy(), [tf.Variable(tf.ones((8, 1)))])()[0]
    assert trace.steps["step"].tolist() == [0, 1, 2, 3] and trace.steps["hashes"][0] == ones


@pytest.mark.filterwarnings("ignore:Gradients do not exist")
@pytest.mark.parametrize("turned", [False, True])
def test_state_that_one_optimizer_is_given_is_left_out_whichever_script_it_is_in(watch: Watch, turned: bool) -> None:
    def everything() -> None:
        model = keras.Sequential([make(), layers.Dropout(0.5)])
        loop(model, lambda: model.variables)

    ((one, two),) = compared(*map(watch, (everything, fit) if turned else (fit, everything)))
    assert len(one.variables) == len(two.variables) == 4
    (said,) = left_out(["a", "b"], (one, two), [(one, two)], changing=False)
    assert said.startswith("only a" if turned else "only b")


def test_state_that_one_side_keeps_outside_of_its_model_is_left_out_and_said(watch: Watch) -> None:
    class Normalized(keras.Model):  # type: ignore[misc] # keras is untyped
        def __init__(self, average: bool = False) -> None:
            super().__init__()
            self.scale, self.net = layers.Normalization(), make()
            self.scale.adapt(X)
            self.mean = self.add_weight((1,), trainable=False, name="mean") if average else None

        def call(self, x: Any) -> Any:
            if self.mean is not None:
                self.mean.assign_add([1.0])
            return self.net(self.scale(x))

    def outside() -> None:
        net, scale = make(), layers.Normalization()
        scale.adapt(X)
        loop(lambda x: net(scale(x), training=True), lambda: net.trainable_variables)

    inside, loops = watch(lambda: fit(Normalized())), watch(outside)
    (pair,) = compared(inside, loops)
    assert len(pair[0].variables) == 4 and np.array_equal(pair[0].steps["hashes"][0], pair[1].steps["hashes"][0])
    np.testing.assert_allclose(pair[0].steps["projections"], pair[1].steps["projections"], rtol=1e-4, atol=1e-4)
    (said,) = left_out(["a", "b"], pair, [pair], changing=False)
    assert said.startswith("only a also has ") and "/mean" in said and "/variance" in said and "not compared" in said
    assert left_out(["a", "b"], pair, [pair], changing=True) == []
    (pair,) = compared(watch(lambda: fit(Normalized(average=True))), loops)
    (said,) = left_out(["a", "b"], pair, [pair], changing=True)
    assert said.endswith("/mean: weights that change while it trains, and are not compared")


@pytest.mark.parametrize(
    ("began", "state", "said"),
    [
        (1, [0, 1, 2, 3], False),  # compared in the other training, which makes its steps at the same time
        (9, [0, 1, 2, 3], True),
        (9, [0, 1, 1, 1], False),  # it begins with the value that it had before the other training
    ],
)
def test_what_changes_while_another_training_makes_its_steps_is_compared_there(
    began: int, state: list[int], said: bool
) -> None:
    def trace(name: str, numbers: list[list[int]], began: int) -> Trace:
        steps = np.zeros(4, step_dtype(len(numbers), 1))
        steps["step"], steps["hashes"][:, :, 0] = range(4), np.transpose(numbers)
        variables = [Variable(f"{name}{i}", (1,), "float32") for i in range(len(numbers))]
        return Trace(tuple(variables), 1, steps, began=began, ended=began + 2)

    other, alone = trace("other", [[0, 1, 2, 3]], 1), trace("w", [[0, 1, 2, 3]], began)
    whole = trace("w", [[0, 1, 2, 3], state], began).ordered([0])
    both = replace(whole, left_out=[(other.variables[0], changes) for _, changes in whole.left_out])
    assert bool(left_out(["a", "b"], (both, alone), [(both, alone), (other, other)], changing=True)) == said


def distilled(swapped: bool = False, units: int = 4, turned: bool = False) -> None:
    """Trains a teacher, and then a student inside of a model that holds both, as keras.io's Distiller does."""

    class Distiller(keras.Model):  # type: ignore[misc] # keras is untyped
        def __init__(self, student: Any, teacher: Any) -> None:
            super().__init__()
            for name, model in [("teacher", teacher), ("student", student)][:: -1 if turned else 1]:
                setattr(self, name, model)

        def train_step(self, data: Any) -> Any:
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.square(self.teacher(data[0]) - self.student(data[0], training=True)))
            variables = self.student.trainable_variables
            self.optimizer.apply(tape.gradient(loss, variables), variables)
            return {"loss": loss}

    teacher, student = teacher_and_student(units)
    fit(teacher)
    fit(Distiller(teacher, student) if swapped else Distiller(student, teacher))


def teacher_and_student(units: int) -> tuple[Any, Any]:
    both = (("teacher", 16), ("student", units))
    teacher, student = (
        keras.Sequential([keras.Input((8,)), layers.Dense(n, "tanh"), layers.Dense(1)], name=name) for name, n in both
    )
    return teacher, student


def distilled_by_hand(units: int = 4) -> None:
    teacher, student = teacher_and_student(units)
    fit(teacher)
    optimizer = keras.optimizers.Adam(0.01)

    @tf.function
    def step(x: Any) -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(teacher(x) - student(x, training=True)))
        variables = student.trainable_variables
        optimizer.apply(tape.gradient(loss, variables), variables)

    for x, _ in BATCHES:
        step(tf.constant(x))


@pytest.mark.parametrize(("units", "turned"), [(4, False), (16, False), (16, True)])
def test_a_student_that_one_script_trains_inside_of_a_model_with_its_teacher_is_paired_with_it(
    watch: Watch, units: int, turned: bool
) -> None:
    sides = watch(lambda: distilled(units=units, turned=turned)), watch(lambda: distilled_by_hand(units))
    pairs = compared(*sides)
    assert [(one.last, two.last, two.model) for one, two in pairs] == [(3, 3, "teacher"), (3, 3, "student")]
    for one, two in pairs:
        assert np.array_equal(one.steps["hashes"][0], two.steps["hashes"][0])
        np.testing.assert_allclose(one.steps["projections"], two.steps["projections"], rtol=1e-4, atol=1e-4)
    assert left_over(["a", "b"], sides, pairs) == left_out(["a", "b"], pairs[1], pairs, changing=False) == []


def test_models_that_hold_the_same_models_in_another_order_are_paired_by_their_names(watch: Watch) -> None:
    pairs = compared(watch(lambda: distilled(units=16)), watch(lambda: distilled(units=16, turned=True)))
    assert len(pairs) == 2
    for one, two in pairs:
        assert np.array_equal(one.steps["hashes"], two.steps["hashes"])


def test_a_student_that_is_never_trained_since_its_teacher_goes_on_is_what_the_answer_says(watch: Watch) -> None:
    sides = watch(distilled), watch(lambda: distilled(swapped=True))
    (pair,) = compared(*sides)
    names = ["a", "b"]
    session: Any = SimpleNamespace(left_over=left_over(names, sides, [pair]))
    departure: Any = SimpleNamespace(
        name="b",
        step=4,
        start=None,
        model=SimpleNamespace(lengths=(3, 6), names=names, traces=pair, epochs=EpochEnds()),
    )
    assert goes_on(session, departure), "so looking into step 4, which is of another training, says nothing"
    reason = _checked(session, departure, {}).training.reason
    assert re.match(
        r"only a also trains student of distiller\w*: student/.* to student/.*/bias, 3 steps; b makes", reason
    )
    assert reason.endswith("; b goes on to train teacher after step 3, where a ends")
    assert "shuffle" not in reason and "no step" not in reason
    session.left_over = []
    assert not _checked(session, departure, {}).training.reason and not goes_on(session, departure)


def again(reset: Callable[[Any, Any], None], train: Callable[[Any], Any]) -> Callable[[], None]:
    def script() -> None:
        model = make()
        start = model.get_weights()
        fit(model)
        reset(model, start)
        train(model)

    return script


def go_on(model: Any, start: Any) -> None:
    pass


def put_back(model: Any, start: Any) -> None:
    model.set_weights(start)


def assign(model: Any, start: Any) -> None:
    for variable, value in zip(model.variables, start, strict=False):
        variable.assign(value)


def fit_again(model: Any) -> None:
    model.fit(X, Y, batch_size=16, verbose=0)


@pytest.mark.parametrize(("reset", "train"), [(put_back, fit), (put_back, by_hand), (assign, fit), (assign, by_hand)])
def test_one_model_that_is_trained_twice_makes_two_trainings_if_its_weights_are_set_back(
    watch: Watch, reset: Any, train: Any
) -> None:
    ((one, two),) = compared(watch(again(reset, train), alone=True))
    assert (one.last, two.last, _continuations(two)) == (3, 3, [])
    assert len(two.optimizers) == 1, "the first training's makes none of its steps"
    assert np.array_equal(one.steps["hashes"][0], two.steps["hashes"][0])
    np.testing.assert_allclose(one.steps["projections"], two.steps["projections"], rtol=1e-4, atol=1e-4)


def test_one_model_of_several_replicas_that_is_trained_twice_makes_two_trainings(watch: Watch) -> None:
    def script() -> None:
        with tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]).scope():
            again(put_back, fit)()

    ((one, two),) = compared(watch(script, alone=True))
    assert (one.last, two.last, _continuations(two)) == (3, 3, [])


def test_the_same_optimizer_after_a_reset_is_seen_with_its_iterations(watch: Watch) -> None:
    ((one, two),) = compared(watch(again(put_back, fit_again), alone=True))
    assert (one.last, two.last) == (3, 3)
    (kept,) = _continuations(two, one)
    assert _continuations(one, two) == [] and _continuations(two) != [kept], "its weights are those of a new training"


def test_slots_that_are_kept_when_weights_are_set_back_are_named(watch: Watch, tmp_path: Path) -> None:
    ((one, two),) = compared(watch(again(put_back, fit_again), alone=True, close_up=((1, 2),)))
    seen = [read_close_up(tmp_path / "0", each.number, each.order) for each in (one, two)]
    assert seen[0] is not None and seen[1] is not None
    found = locate(seen[0], seen[1], [], 1, [variable.name for variable in one.variables])
    for traces, side in (((one, two), "second"), ((two, one), "first")):
        close_ups = tuple(seen if traces[0] is one else seen[::-1])
        (cause,) = name_causes(found, Sides(("first", "second"), traces, close_ups, 1))
        assert (found.stage, cause.id, cause.side) == ("update", "optimizer-differs", side)
        assert cause.measurements is not None
        assert (cause.measurements["iterations"], cause.measurements["expected"]) == (3, 0)


class MadeInCall(tf.Module):
    """A linear model whose variables are made by the first call, in a graph."""

    def __init__(self) -> None:
        super().__init__()
        self.w: Any = None

    @tf.function
    def __call__(self, x: Any) -> Any:
        if self.w is None:
            self.w, self.b = tf.Variable(tf.random.normal((8, 1))), tf.Variable(tf.zeros(1))
        return x @ self.w + self.b


@pytest.mark.parametrize("tried", [False, True])
def test_variables_that_a_function_makes_get_the_references_values_before_it_first_runs(
    watch: Watch, tried: bool
) -> None:
    def by_fit() -> None:
        model = keras.Sequential([keras.Input((8,)), layers.Dense(1)])
        model.compile(keras.optimizers.SGD(0.1), "mse")
        model.fit(X, Y, batch_size=16, verbose=0)

    def by_module() -> None:
        module = MadeInCall()
        if tried:
            module(X[:1])
        for x, y in BATCHES:
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.square(y - module(x)))
            variables = [module.w, module.b]
            for variable, gradient in zip(variables, tape.gradient(loss, variables), strict=True):
                variable.assign_sub(0.1 * gradient)

    one, two = only(watch(by_fit)), only(watch(by_module))
    assert two.alike and one.last == two.last == 3
    assert np.array_equal(one.steps["hashes"][0], two.steps["hashes"][0])
    np.testing.assert_allclose(one.steps["projections"], two.steps["projections"], rtol=1e-4, atol=1e-4)


def fit_on_unknown_size(assertion: Callable[[Any], Any] = lambda dataset: dataset) -> None:
    model = make()
    model.compile(keras.optimizers.Adam(0.01), "mse")
    specs = tf.TensorSpec((16, 8)), tf.TensorSpec((16, 1))
    dataset = tf.data.Dataset.from_generator(lambda: iter(BATCHES), output_signature=specs)
    # The validation finds no more data either, but counts no step.
    model.fit(assertion(dataset), epochs=2, shuffle=False, verbose=0, validation_data=dataset)


@pytest.mark.filterwarnings("ignore:Your input ran out of data:UserWarning")
@pytest.mark.parametrize("nudge", [None, Nudge(1, 1)])
def test_a_step_of_fit_that_finds_no_more_data_is_no_step(watch: Watch, nudge: Nudge | None) -> None:
    trace = only(watch(fit_on_unknown_size, nudge=nudge))
    assert (trace.last, trace.empty) == (6, [3, 6])
    known = tf.data.experimental.assert_cardinality(3)
    trace = only(watch(lambda: fit_on_unknown_size(known), nudge=nudge))
    assert (trace.last, trace.empty) == (6, [])


def test_weights_that_are_set_to_what_they_are_do_not_bring_a_noise_twin_its_noise_too_early(watch: Watch) -> None:
    def in_two_stages() -> None:
        model = make()
        for _ in range(2):
            model.compile(keras.optimizers.Adam(0.01), "mse")
            model.fit(X, Y, batch_size=16, verbose=0, shuffle=False)
            model.set_weights(model.get_weights())  # as EarlyStopping does that restores the best ones

    plain, twin = only(watch(in_two_stages)), only(watch(in_two_stages, nudge=Nudge(4, 1)))
    equal = (plain.steps["hashes"] == twin.steps["hashes"]).all(axis=(1, 2))
    assert plain.steps["step"].tolist() == twin.steps["step"].tolist() == list(range(7))
    assert equal.tolist() == [True] * 4 + [False] * 3


def test_the_optimizer_of_a_step_is_that_of_its_part_of_the_training() -> None:
    first, second = ({"class": each, "config": {"learning_rate": 0.01}} for each in ("Adam", "RMSprop"))
    trace = Trace((), 1, np.zeros(0), optimizers=[first, second], parts=[(0, 0), (45, 0)])
    found = [trace.optimizer_at(step) for step in (1, 45, 46, 90)]
    assert found == [first, first, second, second]
    assert replace(trace, parts=[(0, 0)]).optimizer_at(46) == first, "two in one part take turns, say"
    assert replace(trace, optimizers=(), parts=()).optimizer_at(1) is None


def test_a_step_before_the_data_end_in_the_same_call_is_not_left_out(watch: Watch) -> None:
    def by_twos() -> None:
        model, optimizer = make(), keras.optimizers.Adam(0.01)
        dataset = tf.data.Dataset.from_tensor_slices((X, Y)).batch(16)  # three batches

        @tf.function
        def two(batches: Any) -> None:
            for _ in range(2):
                x, y = next(batches)
                with tf.GradientTape() as tape:
                    loss = tf.reduce_mean(tf.square(y - model(x, training=True)))
                optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)

        for _ in range(2):
            batches = iter(dataset)
            two(batches)
            with suppress(tf.errors.OutOfRangeError):
                two(batches)

    trace = only(watch(by_twos))
    assert trace.empty == [] and trace.last >= 5


@pytest.mark.filterwarnings("ignore:Your input ran out of data:UserWarning")
def test_that_fit_counts_a_step_without_data_is_named_where_it_changes_the_updates(
    watch: Watch, tmp_path: Path
) -> None:
    one, two = (
        only(watch(script, close_up=((3, 6),))) for script in (fit_on_unknown_size, lambda: by_hand(make(), epochs=2))
    )
    seen = [read_close_up(tmp_path / f"{i}", 0, trace.order) for i, trace in enumerate((one, two))]
    assert seen[0] is not None and seen[1] is not None
    sides = Sides(("fit", "loop"), (one, two), (seen[0], seen[1]), 4)
    found = locate(seen[0], seen[1], [], 4, [variable.name for variable in one.variables])
    (cause,) = name_causes(found, sides)
    assert (found.stage, cause.id, cause.side) == ("update", "optimizer-differs", "fit")
    assert cause.measurements.items() >= {"kind": "script-counted-more", "iterations": 4, "expected": 3}.items()
    assert "assert_cardinality" in cause.remedy
    assert name_causes(found, replace(sides, traces=(replace(one, empty=[]), two))) == []


class Dropping(keras.Model):
    def __init__(self) -> None:
        super().__init__()
        self.drop, self.dense = layers.Dropout(0.5), layers.Dense(1)

    def call(self, x: Any = None, training: bool = False) -> Any:
        return self.dense(self.drop(x, training=training))


class Eager(Dropping):
    def call(self, x: Any = None, training: bool = False) -> Any:
        assert float(tf.reduce_sum(x))  # so that its weights cannot be made before it is called
        return super().call(x, training)


@pytest.mark.parametrize("kind", [Dropping, Eager])
def test_a_model_that_is_given_its_inputs_by_name_draws_its_own_numbers(watch: Watch, kind: Any) -> None:
    def script(model: Any, call: Callable[[Any], Any]) -> Callable[[], None]:
        def run() -> None:
            made = model()
            loop(lambda x: call(made)(x), lambda: made.trainable_variables, graph=False)

        return run

    one = only(watch(script(Dropping, lambda made: lambda x: made(x, training=True))))
    other = only(watch(script(kind, lambda made: lambda x: made(x=x, training=True))))
    assert len(one.steps) == 4 and np.array_equal(one.steps["hashes"], other.steps["hashes"])


@pytest.mark.parametrize(("train", "iterations"), [(fit, 0), (fit_again, 3), (by_hand, 0)])
def test_a_training_that_goes_on_is_one_training_in_parts(watch: Watch, train: Any, iterations: int) -> None:
    traces = watch(again(go_on, train), alone=True)
    assert compared(traces) == [] and [trace.last for trace in traces] == [6]
    said = f"after step 3 it goes on from the trained weights with an optimizer at iteration {iterations}"
    assert _continuations(traces[0]) == [said]


def test_parts_of_a_training_are_told_each_only_if_they_are_few(watch: Watch) -> None:
    def many() -> None:
        model = fit()
        for _ in range(9):
            fit_again(model)

    trace = only(watch(many))
    assert _continuations(trace) == ["after each of the steps 3, 6, 9 and 6 more it goes on from the trained weights"]


@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # Keras, when it saves
def test_a_model_that_is_saved_loaded_and_trained_on_trains_like_one_that_was_never_saved(
    watch: Watch, tmp_path: Path
) -> None:
    def resumed() -> None:
        fit().save(tmp_path / "model.keras")
        fit_again(keras.models.load_model(tmp_path / "model.keras"))

    def straight() -> None:
        model = fit()
        fit_again(model)

    ((one, two),) = compared(watch(resumed), watch(straight))
    assert len(one.steps) == 7 and np.array_equal(one.steps["hashes"], two.steps["hashes"])
    assert _continuations(one) == ["after step 3 it goes on from the trained weights with an optimizer at iteration 3"]
    assert [epoch.steps for epoch in one.epochs] == [3, 6]


@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # Keras, when it saves
@pytest.mark.parametrize(
    "strategy", [tf.distribute.get_strategy, lambda: tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])]
)
def test_weights_that_a_callback_loads_with_their_optimizer_count_no_steps(
    watch: Watch, tmp_path: Path, strategy: Any
) -> None:
    kept = str(tmp_path / "best.weights.h5")

    def script() -> None:
        with strategy().scope():
            model = make()
            model.compile(keras.optimizers.SGD(0.1, momentum=0.9), "mse")

        def at_end(epoch: int, logs: Any) -> None:
            model.save_weights(kept) if epoch == 0 else model.load_weights(kept)

        callback = keras.callbacks.LambdaCallback(on_epoch_end=at_end)
        model.fit(X, Y, batch_size=16, epochs=4, shuffle=False, verbose=0, callbacks=[callback])
        assert model.optimizer.iterations.numpy() == 3

    trace = only(watch(script))
    assert trace.last == 12 and [epoch.steps for epoch in trace.epochs] == [3, 6, 9, 12]


@pytest.mark.parametrize(
    ("scripts", "ways", "said"),
    [
        (("a.py", "b.py"), ("fit", "fit"), True),
        (("a.py", "b.py"), ("fit", "loop"), False),
        (("a.py", "b.py"), ("fit with its own train_step", "fit"), False),
        (("a.py", "b.py"), ("fit", "fit", "fit with its own train_step", "loop"), False),  # a teacher's fit comes first
        (("a.py", "a.py"), ("fit", "fit"), False),  # one file with two numbers of replicas
    ],
)
def test_a_copy_of_fit_in_place_of_a_loop_is_told(scripts: Sequence[str], ways: Sequence[str], said: bool) -> None:
    sides = [SimpleNamespace(program=SimpleNamespace(script=each), about="") for each in scripts]
    traces = [Trace((), 1, np.zeros(0), trained_by=way) for way in ways]
    paired = list(zip(traces[::2], traces[1::2], strict=True))
    session: Any = SimpleNamespace(scripts=sides)
    assert len(_both_fit(session, paired)) == said
    in_parts = [(replace(one, parts=[(0, 0), (3, 0)]), other) for one, other in paired]
    assert _both_fit(session, in_parts) == [], "the second part may be a loop"
    sides[1].about = "TensorFlow 2.20"
    assert _both_fit(session, paired) == []


def test_the_epochs_that_fit_is_given_may_be_a_number_of_numpy(watch: Watch) -> None:
    assert only(watch(lambda: fit(epochs=np.int64(2)))).fit["epochs"] == 2


def test_the_classes_of_the_metrics_of_fit_are_kept_by_their_names(watch: Watch) -> None:
    def script() -> None:
        model = make()
        model.compile("sgd", "mse", metrics=[keras.metrics.RootMeanSquaredError(name="error"), "mae"])
        model.fit(X, Y, verbose=0)

    kinds = {"loss": "Mean", "error": "RootMeanSquaredError", "mae": "MeanAbsoluteError"}
    assert only(watch(script)).fit["metrics"] == kinds


def test_another_model_of_the_script_begins_with_the_weights_of_the_first_also_if_both_were_made_before(
    watch: Watch,
) -> None:
    def script() -> None:
        first, second = make(), make()
        fit(first)
        by_hand(second)

    ((one, two),) = compared(watch(script, alone=True))
    assert two.alike and np.array_equal(one.steps["hashes"][0], two.steps["hashes"][0])


@pytest.mark.parametrize("first", [fit, by_hand], ids=["fit", "loop"])
def test_the_limit_of_steps_ends_both_trainings_of_one_script(watch: Watch, first: Any) -> None:
    made: list[int] = []

    def script() -> None:
        model = make()
        optimizer = first(model, epochs=30)
        made.append(int(getattr(optimizer, "optimizer", optimizer).iterations.numpy()))
        by_hand(make(), epochs=30)
        raise AssertionError("the second training goes on")

    ((one, two),) = compared(watch(script, alone=True, max_steps=4), max_steps=4)
    assert (one.last, two.last, made) == (4, 4, [4]), "the first training does not go on to its end either"


def test_steps_beyond_the_limit_are_no_difference(watch: Watch) -> None:
    def several() -> None:
        model, optimizer = make(), keras.optimizers.SGD(0.01)

        @tf.function
        def steps(x: Any, y: Any) -> None:
            for _ in range(3):
                with tf.GradientTape() as tape:
                    loss = tf.reduce_mean(tf.square(y - model(x)))
                optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)

        for _ in range(9):
            steps(X, Y)

    ((one, two),) = compared(watch(several, max_steps=4), watch(lambda: fit(epochs=3), max_steps=4), max_steps=4)
    assert (one.last, two.last) == (3, 3)


class Gan(keras.Model):  # type: ignore[misc] # keras is untyped
    def __init__(self, discriminator: Any, generator: Any) -> None:
        super().__init__()
        self.discriminator, self.generator = discriminator, generator
        self.d_optimizer, self.g_optimizer = keras.optimizers.Adam(1e-4), keras.optimizers.Adam(1e-4)

    def train_step(self, x: Any) -> Any:
        with tf.GradientTape() as d_tape, tf.GradientTape() as g_tape:
            real, fake = self.discriminator(x), self.discriminator(self.generator(x[:, :4]))
            d_loss, g_loss = tf.reduce_mean(fake - real), -tf.reduce_mean(fake)
        for optimizer, tape, loss, model in (
            (self.g_optimizer, g_tape, g_loss, self.generator),
            (self.d_optimizer, d_tape, d_loss, self.discriminator),
        ):
            optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)
        return {"d_loss": d_loss}


def discriminator() -> Any:
    return keras.Sequential([keras.Input((8,)), layers.Dense(4, "tanh"), layers.Dense(1)], name="d")


def generator() -> Any:
    return keras.Sequential([keras.Input((4,)), layers.Dense(8)], name="g")


def test_each_model_of_a_gan_is_recorded_at_each_step_and_paired_with_its_like(watch: Watch, tmp_path: Path) -> None:
    def trained_by_fit() -> None:
        gan = Gan(discriminator(), generator())
        gan.compile()
        gan.fit(X, batch_size=16, verbose=0)

    def trained_by_hand() -> None:
        g = generator()  # made in the other order
        gan = Gan(discriminator(), g)
        step = tf.function(gan.train_step)
        for x, _ in BATCHES:
            step(tf.constant(x))

    pairs = compared(watch(trained_by_fit), watch(trained_by_hand))
    assert [(one.model, two.model, one.last, two.last) for one, two in pairs] == [("d", "d", 3, 3), ("g", "g", 3, 3)]
    for one, two in pairs:
        assert np.array_equal(one.steps["hashes"][0], two.steps["hashes"][0])
        changes = (one.steps["hashes"][1:] != one.steps["hashes"][:-1]).any(axis=(1, 2))
        assert changes.all(), "small steps are recorded too"
    # Also the models without reported numbers are in the records.
    metrics = MetricsFile(tmp_path / "metrics.csv")
    write_records(tmp_path, "g", pairs[1][0], EpochEnds((3,)), None, metrics)
    (record,) = read_records(tmp_path)
    assert record.steps["step"].tolist() == [0, 1, 2, 3, -1]


def test_scripts_that_are_run_again_after_they_were_stopped_at_a_difference_run_to_their_end(tmp_path: Path) -> None:
    ended: list[Any] = []
    process = SimpleNamespace(steps=lambda: 1, status=None, folder=tmp_path)
    runner = SimpleNamespace(start=lambda *_: process, wait=lambda runs, look: look(), end=ended.append)
    shown = {"folder": tmp_path, "console": Console(quiet=True), "options": request(scripts=["a.py", "b.py"])}
    run = RunJson(folder=tmp_path)
    session: Any = SimpleNamespace(first=False, stopped=True, models=[], runner=runner, run=run, **shown)
    settings = Settings("", "", str(tmp_path), str(tmp_path))
    scripts_session.run_scripts(session, [settings], ["perturbed run 1"])
    assert not ended and session.stopped
    session.first = True
    scripts_session.run_scripts(session, [settings], ["fit"])
    assert ended


def test_a_schedule_without_a_configuration_is_told_by_its_plain_attributes() -> None:
    class Warmup(keras.optimizers.schedules.LearningRateSchedule):
        def __init__(self) -> None:
            self.steps, self.table = 40, [1, 2]

        def __call__(self, step: Any) -> Any:
            return 0.1

    config = configuration_of(keras.optimizers.Adam(Warmup(), beta_1=0.8))
    assert config["beta_1"] == 0.8 and config["learning_rate"]["class_name"] == "Warmup"
    assert config["learning_rate"]["config"] == {"steps": 40}
    with pytest.raises(NotImplementedError):
        Warmup().get_config()

    class Own(keras.optimizers.SGD):
        def get_config(self) -> dict[str, Any]:
            raise NotImplementedError

    assert configuration_of(Own(momentum=0.5))["momentum"] == 0.5


@pytest.mark.parametrize("functions", [1, 2], ids=["one-function", "two-functions"])
def test_statistics_are_recorded_at_the_same_moment_whether_a_gan_trains_its_models_in_graphs_or_eagerly(
    watch: Watch, functions: int
) -> None:
    def gan(graph: bool) -> None:
        d = keras.Sequential([keras.Input((8,)), layers.BatchNormalization(), layers.Dense(1)], name="d")
        g = keras.Sequential([keras.Input((8,)), layers.BatchNormalization(), layers.Dense(8)], name="g")
        d_optimizer, g_optimizer = keras.optimizers.SGD(0.1), keras.optimizers.SGD(0.1)

        def train(optimizer: Any, model: Any, sign: float, x: Any) -> None:
            with tf.GradientTape() as tape:
                fake = d(g(x, training=True), training=True)
                loss = sign * tf.reduce_mean(fake - d(x, training=True))
            optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)

        def train_d(x: Any) -> None:
            train(d_optimizer, d, 1.0, x)

        def train_g(x: Any) -> None:
            train(g_optimizer, g, -1.0, x)

        def both(x: Any) -> None:
            train_d(x)
            train_g(x)

        steps = [both] if functions == 1 else [train_d, train_g]
        steps = [tf.function(step) if graph else step for step in steps]
        for x, _ in BATCHES:
            for step in steps:
                step(tf.constant(x))

    pairs = compared(watch(lambda: gan(True)), watch(lambda: gan(False)))
    assert len(pairs) == 2
    for one, two in pairs:
        assert one.steps["step"].tolist() == two.steps["step"].tolist() == [0, 1, 2, 3]
        assert np.array_equal(one.steps["hashes"][0], two.steps["hashes"][0])
        np.testing.assert_allclose(one.steps["projections"], two.steps["projections"], rtol=1e-4, atol=1e-4)


def test_a_model_that_only_one_script_trains_is_named_with_its_weights_and_steps(watch: Watch) -> None:
    def another() -> None:
        fit()
        model = keras.Sequential([keras.Input((8,)), layers.Dense(1, name="only")], name="student")
        fit(model, epochs=2)

    sides = watch(another), watch(fit)
    (said,) = left_over(["a", "b"], sides, compared(*sides))
    assert said.startswith("only a also trains student: ") and "only/bias, 6 steps; b makes no other training" in said


@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # Keras, when it saves
def test_dropout_that_begins_anew_in_a_loaded_model_is_seen(watch: Watch, tmp_path: Path) -> None:
    def resumed() -> None:
        model = keras.Sequential([keras.Input((8,)), layers.Dropout(0.5), layers.Dense(1)])
        fit(model).save(tmp_path / "model.keras")
        fit_again(keras.models.load_model(tmp_path / "model.keras"))

    trace = only(watch(resumed))
    assert (trace.last, trace.reseeded) == (6, [3])


def test_what_happens_to_statistics_after_a_training_is_no_part_of_its_last_step(watch: Watch) -> None:
    def script(later: bool) -> None:
        model = fit(keras.Sequential([keras.Input((8,)), layers.BatchNormalization(), layers.Dense(1)]))
        if later:
            model.layers[0].moving_mean.assign(np.ones(8))
            model.evaluate(X, Y, verbose=0)

    ((one, two),) = compared(watch(lambda: script(False)), watch(lambda: script(True)))
    assert np.array_equal(one.steps["hashes"], two.steps["hashes"])


@pytest.mark.parametrize("graph", [True, False])
@pytest.mark.parametrize("when", ["every step", "after the steps", "after the steps, made anew", "both", "twice"])
def test_numbers_are_of_training_or_of_validation_by_the_time_of_their_updates_whatever_their_names(
    watch: Watch, graph: bool, when: str
) -> None:
    """Two equal numbers of fit are told apart; a loop's mean of another kind is not compared."""
    mean = keras.metrics.Mean

    def script() -> None:
        model, optimizer = make(), keras.optimizers.Adam(0.01)
        both = {"every step": mean(name="val_loss"), "after the steps": mean(name="train_loss"), "twice": mean()}
        metrics = both if when == "both" else {when: both[when]} if when in both else {}

        def step(x: Any, y: Any) -> None:
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.square(y - model(x, training=True)))
            optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)
            for name in {"every step", "twice"} & metrics.keys():
                metrics[name].update_state(tf.ones_like(loss))

        step = tf.function(step) if graph else step
        for _ in range(2):
            for x, y in BATCHES:
                step(tf.constant(x), tf.constant(y))
            after = mean(name="loss") if when.endswith("anew") else metrics.get("after the steps")
            if when == "twice":
                metrics[when].result()
                after = metrics[when]
            if after is not None:
                after.update_state(1.005)
            for metric in {id(each): each for each in (*metrics.values(), after) if each is not None}.values():
                metric.result()
            for metric in metrics.values():
                metric.reset_state()

    trace = only(watch(script))
    ends = [3, 6]

    def compared_with(**logs: float) -> list[str]:
        like = SimpleNamespace(fit={}, epochs=[SimpleNamespace(logs=logs)])
        return [sorted(numbers) for numbers, _ in logs_by_epoch(trace, ends, like).values()][1]

    training, validation = when in ("every step", "both", "twice"), when != "every step"
    expected = ["loss"] * training + ["val_loss"] * validation
    assert compared_with(loss=1.0, val_loss=1.0) == expected
    assert compared_with(loss=1.0) == ["loss"] * training
    if when == "twice":
        assert compared_with(loss=3.0, val_loss=3.0) == [], "a mean without a name, and no value like it"


def test_of_a_metric_that_takes_the_root_of_a_mean_only_the_root_is_read(watch: Watch) -> None:
    def script() -> None:
        by_hand(make())
        metric = keras.metrics.RootMeanSquaredError()
        metric.update_state(np.zeros((2, 1)), np.full((2, 1), 3.0))
        metric.result()

    assert [each.value for each in only(watch(script)).reported] == [3.0]


def test_what_a_function_with_a_graph_returns_of_metrics_is_reported_as_if_it_were_read_after_each_call(
    watch: Watch,
) -> None:
    def script() -> None:
        by_hand(make())
        mean, kept, unread = keras.metrics.Mean("val_loss"), keras.metrics.Mean(), keras.metrics.Mean()

        @tf.function
        def test_step(value: Any) -> Any:
            for metric in (mean, kept, unread):
                metric.update_state(value + (metric is kept))
            kept.result()
            return {"val_loss": mean.result(), "twice": 2 * kept.result()}

        for value in (1.0, 3.0):
            test_step(tf.constant(value))

    reported = [(each.name, each.kind, each.value) for each in only(watch(script)).reported]
    assert reported == [("val_loss", "Mean", 1.0), ("val_loss", "Mean", 2.0)], "only what is returned as it is read"


def test_a_metric_that_only_some_steps_update_is_of_training(watch: Watch) -> None:
    def script() -> None:
        model, seldom, never = make(), keras.metrics.Mean(), keras.metrics.Mean()
        optimizer = keras.optimizers.SGD(0.01)
        for number in range(36):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(model(X, training=True))
            optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)
            if number == 20:
                seldom.update_state(1.0)
        never.update_state(1.0)
        for metric in (seldom, never):
            metric.result()

    trace = only(watch(script))
    assert [each.with_steps for each in trace.reported] == [True, False]


@pytest.mark.parametrize("graph", [True, False])
def test_a_mean_of_the_loss_whose_gradient_is_taken_is_compared_whatever_its_name_and_its_value(
    watch: Watch, graph: bool
) -> None:
    def script() -> None:
        model, optimizer = make(), keras.optimizers.Adam(0.01)
        before, after, other = (keras.metrics.Mean() for _ in range(3))

        def step(x: Any, y: Any) -> None:
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.square(y - model(x, training=True)))
                before.update_state(loss)
            optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)
            after.update_state(loss)
            other.update_state(2 * loss)

        step = tf.function(step) if graph else step
        for x, y in BATCHES:
            step(tf.constant(x), tf.constant(y))
        for metric in (before, after, other):
            metric.result()

    trace = only(watch(script))
    assert [each.of_loss for each in trace.reported[-3:]] == [True, True, False]
    like = SimpleNamespace(fit={}, epochs=[SimpleNamespace(logs={"loss": 1e6}, steps=3)])
    logs, _ = logs_by_epoch(trace, [3], like)[1]
    assert list(logs) == ["loss"] and logs["loss"] in [each.value for each in trace.reported[-3:-1]]


class Vae(keras.Model):  # type: ignore[misc] # keras is untyped
    """Two submodels, and a loss of two terms."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = keras.Sequential([keras.Input((8,)), layers.Dense(4)])
        self.decoder = keras.Sequential([keras.Input((2,)), layers.Dense(8, "tanh")])

    def loss_of(self, x: Any, weight: float = 0.1) -> Any:
        mean, spread = tf.split(self.encoder(x), 2, axis=1)
        error = tf.reduce_mean(tf.square(x - self.decoder(mean + 0.1 * tf.exp(spread))))
        return error + weight * tf.reduce_mean(tf.square(mean) + tf.exp(spread) - spread)

    def train_step(self, data: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = self.loss_of(data)
        self.optimizer.apply(tape.gradient(loss, self.trainable_variables), self.trainable_variables)
        return {"loss": loss}


def fit_vae() -> None:
    model = Vae()
    model.compile(keras.optimizers.SGD(0.1))
    model.fit(X, batch_size=16, verbose=0)


def loop_over_vae(graph: bool, weight: float) -> None:
    model, optimizer = Vae(), keras.optimizers.SGD(0.1)

    def step(x: Any) -> None:
        with tf.GradientTape() as tape:
            loss = model.loss_of(x, weight)
        optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)

    step = tf.function(step) if graph else step
    for x, _ in BATCHES:
        step(tf.constant(x))


def loop_over(make_net: Callable[[], Any], loss_of: Any, graph: bool, gradient: float = 1.0) -> None:
    """Trains what has four variables, with SGD."""
    optimizer = keras.optimizers.SGD(0.1)
    predict, variables = make_net()

    def step(x: Any, y: Any) -> None:
        with tf.GradientTape() as tape:
            loss = loss_of(tf.square(y - predict(x)))
        gradients = tape.gradient(loss, variables())
        optimizer.apply([gradient * each for each in gradients], variables())

    step = tf.function(step) if graph else step
    for x, y in BATCHES:
        step(tf.constant(x), tf.constant(y))


def deep_variables(trained: slice) -> Callable[[], Any]:
    """Variables of which some have equal shapes, and some of these equal values; a loop trains some of them."""

    def make_net() -> Any:
        random = np.random.default_rng(0)
        v, w = (tf.Variable(random.normal(size=(8, 8)).astype("float32")) for _ in range(2))
        b, c = tf.Variable(tf.zeros(8)), tf.Variable(tf.zeros(8))
        out = tf.Variable(np.ones((8, 1), np.float32))
        return lambda x: tf.tanh(tf.tanh(x @ v + b) @ w + c) @ out, lambda: [v, b, w, c, out][trained]

    return make_net


@pytest.mark.parametrize("graph", [True, False], ids=["graph", "eager"])
@pytest.mark.parametrize(("first", "second"), [
    (lambda graph: loop_over(deep_variables(slice(None)), tf.reduce_mean, graph), deep_variables(slice(2, None))),
    (lambda graph: fit_with_sgd(), lambda: some_of(raw_variables)),
], ids=["variables and variables", "fit and variables"])  # fmt: skip
def test_variables_that_one_loop_does_not_train_are_named(
    watch: Watch, tmp_path: Path, first: Any, second: Any, graph: bool
) -> None:
    scripts = [watch(partial(first, graph), close_up=((1, 2),))]
    scripts.append(watch(lambda: loop_over(second, tf.reduce_mean, graph), close_up=((1, 2),)))
    ((one, two),) = compared(*scripts)
    assert begin_equal(one, two) and len(two.trained) == len(one.trained) - 2
    seen = [read_close_up(tmp_path / str(i), each.number, each.order) for i, each in enumerate((one, two))]
    assert seen[0] is not None and seen[1] is not None
    found = locate(seen[0], seen[1], [], 1, [variable.name for variable in one.variables])
    (cause,) = name_causes(found, Sides(("one", "two"), (one, two), (seen[0], seen[1]), 1))
    assert (found.stage, cause.id, cause.side) == ("gradients", "variables-not-trained", "two")
    assert not any(two.changes(i) for i in range(2)), "those that are not trained come first in the other's order"
    assert cause.measurements is not None
    assert len(set(cause.measurements["variables"])) == 2, "told by their shapes where names are the same"


def some_of(make_net: Callable[[], Any]) -> Any:
    predict, variables = make_net()
    return predict, lambda: variables()[2:]


def test_a_variable_that_a_script_sums_up_in_is_compared_with_nothing(watch: Watch) -> None:
    def summing() -> None:
        total = tf.Variable(0.0)
        loop_over(raw_variables, tf.reduce_mean, graph=False)
        total.assign_add(1.0)

    traces = [watch(summing), watch(lambda: loop_over(raw_variables, tf.reduce_mean, graph=False))]
    ((one, two),) = compared(*traces)
    assert np.array_equal(one.steps["hashes"], two.steps["hashes"]) and not (one.left_out or two.left_out)


def fit_with_sgd() -> None:
    model = make()
    model.compile(keras.optimizers.SGD(0.1), "mse")
    model.fit(X, Y, batch_size=16, verbose=0)


WRONG: dict[str, tuple[Any, Any, str, list[str]]] = {
    "VAE with another weight of a term": (fit_vae, lambda graph: loop_over_vae(graph, 0.2), "loss", []),
    "bare layer whose loss is a sum": (
        fit_with_sgd, lambda graph: loop_over(bare_layer, tf.reduce_sum, graph), "loss", ["loss-summed"],
    ),
    "bare layer whose gradients are doubled": (
        fit_with_sgd, lambda graph: loop_over(bare_layer, tf.reduce_mean, graph, 2.0), "gradients", ["loss-scaled"],
    ),
    "raw variables whose loss is a sum": (
        fit_with_sgd, lambda graph: loop_over(raw_variables, tf.reduce_sum, graph), "loss", ["loss-summed"],
    ),
    "raw variables whose gradients are doubled": (
        fit_with_sgd, lambda graph: loop_over(raw_variables, tf.reduce_mean, graph, 2.0), "gradients", ["loss-scaled"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("graph", [True, False], ids=["graph", "eager"])
@pytest.mark.parametrize("wrong", WRONG)
def test_a_mistake_is_located_whatever_has_the_variables(watch: Watch, tmp_path: Path, wrong: str, graph: bool) -> None:
    script, candidate, stage, causes = WRONG[wrong]
    ((one, two),) = compared(watch(script, close_up=((1, 2),)), watch(lambda: candidate(graph), close_up=((1, 2),)))
    assert one.last == two.last == 3
    assert np.array_equal(one.steps["hashes"][0], two.steps["hashes"][0]), "they begin with equal weights"
    assert not np.allclose(one.steps["projections"][1], two.steps["projections"][1], rtol=1e-3, atol=1e-3)
    first, second = (read_close_up(tmp_path / str(i), each.number, each.order) for i, each in enumerate((one, two)))
    assert first is not None and second is not None
    found = locate(first, second, [], 1, [variable.name for variable in one.variables])
    assert found.stage == stage
    assert [cause.id for cause in name_causes(found, Sides(("fit", "loop"), (one, two), (first, second), 1))] == causes


def encoder_and_head(trained: slice, units: int = 6, late: bool = False) -> None:
    encoder = keras.Sequential([keras.Input((8,)), layers.Dense(units, "relu", name="hidden")], name="encoder")
    head = keras.Sequential([keras.Input((units,)), layers.Dense(1, name="out")], name="head")
    loop(lambda x: head(encoder(x)), lambda: (encoder.trainable_weights + head.trainable_weights)[trained])
    if late:
        encoder.set_weights([each + 1 for each in encoder.get_weights()])


def with_statistics(trained: slice) -> None:
    """The encoder has statistics of batches, which change whether it is trained or not; a copy of it follows."""
    encoder = keras.Sequential(
        [keras.Input((8,)), layers.Dense(6, name="hidden"), layers.BatchNormalization(name="norm")], name="encoder"
    )
    head = keras.Sequential([keras.Input((6,)), layers.Dense(1, name="out")], name="head")
    loop(
        lambda x: head(encoder(x, training=True)),
        lambda: (encoder.trainable_weights + head.trainable_weights)[trained],
    )


@pytest.mark.parametrize("turned", [False, True])
def test_a_model_that_is_not_trained_may_change_its_statistics(watch: Watch, tmp_path: Path, turned: bool) -> None:
    scripts = [watch(partial(with_statistics, each), close_up=((1, 2),)) for each in (slice(None), slice(4, None))]
    ((one, two),) = compared(*(scripts[::-1] if turned else scripts))
    names = [variable.name for variable in one.variables]
    assert sorted(names) == sorted(variable.name for variable in two.variables) and len(names) == 8
    assert changed_apart(["a", "b"], scripts[::-1] if turned else scripts, [(one, two)]) == []
    seen = [
        read_close_up(tmp_path / str(int(turned) ^ i), each.number, each.order) for i, each in enumerate((one, two))
    ]
    assert seen[0] is not None and seen[1] is not None
    found = locate(seen[0], seen[1], [], 1, names)
    causes = name_causes(found, Sides(("fit", "loop"), (one, two), (seen[0], seen[1]), 1))
    assert (found.stage, [cause.id for cause in causes]) == ("gradients", ["variables-not-trained"] * (not turned))


ALL, HEAD = slice(None), slice(2, None)


@pytest.mark.parametrize(("first", "second", "causes"), [(ALL, HEAD, ["variables-not-trained"]), (HEAD, ALL, [])])
def test_a_model_whose_weights_one_optimizer_is_never_given_is_compared_all_the_same(
    watch: Watch, tmp_path: Path, first: slice, second: slice, causes: list[str]
) -> None:
    scripts = [watch(partial(encoder_and_head, trained), close_up=((1, 2),)) for trained in (first, second)]
    ((one, two),) = compared(*scripts)
    names = [variable.name for variable in one.variables]
    assert sorted(names) == sorted(variable.name for variable in two.variables) and len(names) == 4
    still = [bool((each.steps["hashes"][0] == each.steps["hashes"][-1]).any()) for each in (one, two)]
    assert still == [first is HEAD, second is HEAD], "what is not trained stays what it was"
    seen = [read_close_up(tmp_path / str(i), each.number, each.order) for i, each in enumerate((one, two))]
    assert seen[0] is not None and seen[1] is not None
    found = locate(seen[0], seen[1], [], 1, names)
    assert (found.stage, found.where) == ("gradients", "encoder/hidden/kernel, encoder/hidden/bias")
    sides = Sides(("one", "two"), (one, two), (seen[0], seen[1]), 1)
    assert [(cause.id, cause.side) for cause in name_causes(found, sides)] == [(cause, "two") for cause in causes]


@pytest.mark.parametrize("other", [{"units": 5}, {"late": True}], ids=["another shape", "changed by hand"])
def test_a_model_that_is_not_surely_the_same_is_no_part_of_a_training(watch: Watch, other: dict[str, Any]) -> None:
    whole = watch(partial(encoder_and_head, ALL))
    assert compared(whole, watch(partial(encoder_and_head, HEAD, **other))) == []


def averaged(keep: float | None, *, inside: bool = False, eager: bool = False, copied: bool = True) -> None:
    """Trains a model, and keeps a moving average of its weights in another one, of a model's ``fit`` or by hand."""
    net, average = make(), make()
    if copied:
        average.set_weights(net.get_weights())
    optimizer = keras.optimizers.Adam(0.01)

    def follow() -> None:
        for weight, mean in zip(net.weights, average.weights, strict=True) if keep is not None else ():
            mean.assign(keep * mean + (1 - keep) * weight)

    def train(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(y - net(x, training=True)))
        optimizer.apply(tape.gradient(loss, net.trainable_variables), net.trainable_variables)
        if not eager:
            follow()
        return {"loss": loss}

    class Averaged(keras.Model):  # type: ignore[misc] # keras is untyped
        def __init__(self) -> None:
            super().__init__()
            self.net, self.average = net, average

        def train_step(self, data: Any) -> Any:
            return train(*data)

    if inside:
        model = Averaged()
        model.compile(optimizer)
        model.fit(X, Y, batch_size=16, verbose=0)
        return
    step = tf.function(train)
    for x, y in BATCHES:
        step(tf.constant(x), tf.constant(y))
        if eager:
            follow()


@pytest.mark.parametrize(
    ("first", "second"),
    [({"inside": True}, {}), ({"inside": True}, {"eager": True}), ({}, {"inside": True}), ({}, {"eager": True})],
    ids=str,
)
@pytest.mark.parametrize(("keep", "equal"), [(0.9, True), (0.1, False), (None, False)])
def test_a_model_that_is_changed_without_an_optimizer_is_compared_as_it_is_at_the_end(
    watch: Watch, first: dict[str, bool], second: dict[str, bool], keep: float | None, equal: bool
) -> None:
    pairs = compared(watch(lambda: averaged(0.9, **first)), watch(lambda: averaged(keep, **second)))
    assert [(one.last, two.last, bool(one.state)) for one, two in pairs] == [(3, 3, False), (3, 3, True)]
    for one, two in pairs:
        assert np.array_equal(one.steps["hashes"][0], two.steps["hashes"][0])
        same = np.allclose(one.steps["projections"][-1], two.steps["projections"][-1], rtol=1e-4, atol=1e-4)
        assert same == (equal or not one.state)
    assert left_out(["a", "b"], pairs[0], pairs, changing=True) == []


def test_a_model_that_one_script_alone_changes_without_an_optimizer_is_said(watch: Watch) -> None:
    sides = watch(lambda: averaged(0.9)), watch(lambda: by_hand(make()))
    pairs = compared(*sides)
    (said,) = changed_apart(["a", "b"], sides, pairs)
    assert len(pairs) == 1 and said.startswith("only a also has sequential") and said.endswith("is not compared")
    cut = watch(lambda: by_hand(make(), epochs=2), max_steps=4)
    assert changed_apart(["a", "b"], [sides[0], cut], pairs) == [], "nobody knows what it would have come to"


@pytest.mark.parametrize(
    ("given", "kept"), [({"jit_compile": True}, True), ({"jit_compile": False}, False), ({}, False)]
)
def test_the_xla_that_fit_asks_for_is_kept_under_op_determinism(
    monkeypatch: pytest.MonkeyPatch, given: dict[str, bool], kept: bool
) -> None:
    supports = keras.src.trainers.trainer
    monkeypatch.setattr(supports, "model_supports_jit", lambda model: False)  # as it is then
    with undone():
        patch(keras.Model, "compile", _compile_by_xla)
        model = make()
        model.compile("sgd", "mse", **given)
        assert model.jit_compile is kept
        pooling = keras.Sequential([keras.Input((8, 1)), layers.MaxPooling1D(), layers.Dense(1)])
        pooling.compile("sgd", "mse", **given)
        assert not pooling.jit_compile, "XLA has no deterministic gradient"


@pytest.mark.parametrize("inside", [False, True])
def test_a_model_that_only_one_script_makes_a_copy_of_what_it_trains_is_said(watch: Watch, inside: bool) -> None:
    sides = watch(lambda: averaged(0.9, inside=inside)), watch(lambda: averaged(0.9, copied=False))
    pairs = compared(*sides)
    ((said, pair),) = begun_apart(["a", "b"], sides, pairs).items()
    assert re.match(r"sequential\w* of b, .* begins with other weights than those it trains; in a it .* a copy", said)
    told = [*pairs, pair]
    assert left_out(["a", "b"], pairs[0], told, changing=True) == changed_apart(["a", "b"], sides, told) == []
    both = watch(lambda: averaged(0.9, copied=False)), sides[1]
    assert begun_apart(["a", "b"], both, compared(*both)) == {}, "neither is a copy"


def test_a_model_that_both_leave_as_it_is_is_not_compared(watch: Watch) -> None:
    assert len(compared(watch(lambda: averaged(None)), watch(lambda: averaged(None)))) == 1


def ending(how: str) -> None:
    """Trains with an optimizer that averages the weights, whose averages the model has in the end."""
    model = make()
    optimizer = keras.optimizers.Adam(0.01, use_ema=True, ema_momentum=0.5)
    if how.startswith("fit"):
        model.compile(optimizer, "mse")
        model.fit(X, Y, batch_size=16, verbose=0)
    else:
        for x, y in BATCHES:
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.square(y - model(x, training=True)))
            optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)
    if how.startswith("finalized"):
        optimizer.finalize_variable_values(model.trainable_variables)
    elif how == "by hand":
        for weight, mean in zip(model.trainable_variables, optimizer._model_variables_moving_average, strict=True):
            weight.assign(mean)
    if how.endswith("and set to something else"):
        model.set_weights([weight + 1 for weight in model.get_weights()])


@pytest.mark.parametrize("other", ["fit", "finalized", "by hand", "finalized and set to something else"])
@pytest.mark.parametrize("reference", ["fit", "fit and set to something else"])
def test_what_a_training_leaves_is_compared_at_its_end_and_at_that_of_the_script(
    watch: Watch, reference: str, other: str
) -> None:
    pairs = compared(watch(lambda: ending(reference)), watch(lambda: ending(other)))
    if (reference, other) == ("fit and set to something else", "by hand"):  # which nothing tells from a later change
        pairs = pairs[:1]
    assert [(one.last, one.state) for one, _ in pairs] == [(3, "")]


def test_averages_that_a_loop_never_takes_over_are_a_difference_after_its_last_step(watch: Watch) -> None:
    sides = watch(lambda: ending("finalized")), watch(lambda: ending("forgotten"))
    (one, two), left = compared(*sides)
    assert np.array_equal(one.steps["hashes"], two.steps["hashes"])
    assert [trace.never_changes for trace in left] == [False, True]
    (found,) = name_left(("a", "b"), left)
    assert (found.id, found.side) == ("optimizer-differs", "b") and found.measurements["kind"] == "averages-not-taken"
    assert name_left(("a", "b"), left[::-1])[0].side == "a"
    assert compared(sides[1], watch(lambda: ending("forgotten, too")))[1:] == []
    rounded = [replace(trace, steps=trace.steps.copy()) for trace in sides[0]]
    for trace, first in zip(rounded, (1, 0), strict=True):
        trace.steps["hashes"][first:] += 1
    alike = [rounded, sides[1]]
    assert [pair[0].state for pair in compared(*alike)] == ["", LEFT], "a difference, though their weights only round"
    assert not changed_last("ab", sides, compared(*sides)) + changed_last("ab", alike, compared(*alike))
    rounded[0].steps["projections"][1:] += 1
    rounded[1].steps["projections"] += 1
    (said,) = changed_last("ab", alike, compared(*alike))
    assert said.startswith("after its last step only a changes the weights of sequential")


def test_weights_of_which_one_is_not_finite_are_the_same_only_if_they_are_equal() -> None:
    rows = np.zeros(3, step_dtype(1, 1))
    rows["hashes"][:, 0, 0], rows["projections"][:, 0, :] = (1, 2, 3), np.array([[1.0, np.nan, 1.0 + 1e-7]]).T
    assert [_same_weights(rows[0], row) for row in rows] == [True, False, True]
    assert _same_weights(rows[1], rows[1])


def sets_at_the_end(factor: float, *, back: bool = False) -> None:
    model = make()
    by_hand(model)
    before = model.get_weights()
    model.set_weights([factor * each for each in before])
    if back:
        model.set_weights(before)


def test_weights_that_are_set_when_training_is_over_are_said_where_they_are_not_the_same(watch: Watch) -> None:
    half, same, other, back, none = (
        watch(partial(sets_at_the_end, factor, back=back))
        for factor, back in ((0.5, False), (0.5 + 1e-7, False), (0.6, False), (0.5, True), (1.0, False))
    )
    for sides, told in (
        ((half, same), (0, 0)),
        ((half, other), (1, 0)),
        ((half, back), (0, 1)),
        ((none, half), (0, 1)),
    ):
        said = set_at_the_end(["a", "b"], sides, compared(*sides))
        assert tuple(map(len, said)) == told
    at_end_of_fit = [replace(trace, steps=trace.steps.copy()) for trace in other]
    for rounding, told in ((0, (0, 0)), (1, (1, 0))):  # from equal weights on, what fit leaves is compared
        for trace in at_end_of_fit:
            for name in ("hashes", "projections") if trace.state == LEFT else ():
                trace.steps[name][1] = trace.steps[name][2]
            trace.steps["hashes"][0] += rounding
            trace.steps["projections"][:, 0] += rounding  # of a variable that rounding alone moves
        said = set_at_the_end(["a", "b"], (half, at_end_of_fit), compared(half, at_end_of_fit))
        assert tuple(map(len, said)) == told
    apart = [replace(trace, steps=trace.steps.copy()) for trace in other]
    for trace in apart:
        trace.steps["hashes"] += 1
        trace.steps["projections"] += 1
    assert set_at_the_end("ab", (half, apart), compared(half, apart)) == ([], []), "their steps differ already"
    assert set_at_the_end(["a", "b"], (half, none), compared(half, none))[1][0].startswith(
        "at its end a sets the weights"
    )


@pytest.mark.parametrize("graph", [True, False], ids=["graph", "eager"])
@pytest.mark.parametrize("reset", [True, False], ids=["reset", "never reset"])
def test_a_metric_that_goes_on_counting_is_seen_whatever_the_weights(watch: Watch, graph: bool, reset: bool) -> None:
    def script() -> None:
        model, optimizer, metric = make(), keras.optimizers.Adam(0.01), keras.metrics.MeanAbsoluteError()

        def step(x: Any, y: Any) -> None:
            with tf.GradientTape() as tape:
                predicted = model(x, training=True)
                loss = 2 * tf.reduce_mean(tf.square(y - predicted))
                if not graph:
                    metric(y, predicted)
            optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)
            if graph:
                metric.update_state(y, predicted)

        step = tf.function(step) if graph else step
        for _ in range(2):
            for x, y in BATCHES:
                step(tf.constant(x), tf.constant(y))
            metric.result()
            if reset:
                metric.reset_state()

    def fit_with_metric() -> None:
        model = make()
        model.compile(keras.optimizers.Adam(0.01), "mse", metrics=["mae"])
        model.fit(X, Y, batch_size=16, epochs=2, verbose=0)

    ((one, two),) = compared(watch(fit_with_metric), watch(script))
    assert never_reset(two, (3, 6), one) == ({} if reset else {"mae": [48.0, 96.0]})


def notes_of(say: Callable[..., None], *traces: SimpleNamespace, options: Any = None) -> list[str]:
    """What is said of two trainings."""
    run = SimpleNamespace(notes=None)
    run.save = lambda *, notes: setattr(run, "notes", notes)
    session = SimpleNamespace(run=run, names=["fit", "loop"], console=Console(quiet=True))
    session.options = options
    for _ in range(2):  # of another model it is the same
        say(session, SimpleNamespace(names=("fit", "loop"), traces=traces))
    return run.notes or []


@pytest.mark.parametrize(("asked", "used", "told"), [
    ({"replicas": 2}, (2, 2), []),
    ({"replicas": 2}, (1, 2), ["fit trains on 1 of 2"]),
    ({"replicas": (1, 4)}, (1, 4), []),
    ({"replicas": (1, 4)}, (1, 1), ["loop trains on 1 of 4"]),
    ({}, (1, 1), []),
])  # fmt: skip
def test_a_side_that_uses_fewer_replicas_than_were_asked_for_is_said(
    asked: dict[str, Any], used: tuple[int, int], told: list[str]
) -> None:
    traces = [Trace((), each, np.zeros(0)) for each in used]
    notes = notes_of(_say_which_have_fewer_replicas, *traces, options=Scripts(scripts=("a.py",), **asked))
    assert [each.partition(" replicas;")[0] for each in notes] == told


def test_the_side_that_makes_its_steps_eagerly_is_said() -> None:
    def told(*eager: bool, equal: bool = False) -> str:
        ways = zip(eager, ("fit", "loop"), strict=True)
        traces = [Trace((), 1, np.zeros(0), eager=each, trained_by=by) for each, by in ways]
        return "".join(notes_of(partial(_say_which_is_eager, equal=equal), *traces))

    assert told(False, False) == told(True, True) == ""
    assert told(False, True, equal=True).endswith(
        "of loop (and no .numpy() in it) it would train as it does now, and most likely faster"
    )
    assert told(False, True).startswith("loop makes its steps eagerly, and fit in a tf.function, which may round")
    assert told(False, True).endswith("of loop (and no .numpy() in it) they may be equal, bit for bit")
    assert told(True, False).endswith("without run_eagerly in fit they may be equal, bit for bit")


@pytest.mark.parametrize(
    ("factor", "kinds", "hidden"),
    [(16.0, ("Adam", "Adam"), True), (1.0, ("Adam", "Adam"), False), (16.0, ("SGD", "SGD"), False),
     (16.0, ("Adam", "Nadam"), False), (None, ("Adam", "Adam"), False)],
)  # fmt: skip
def test_gradients_that_are_a_multiple_are_said_where_the_optimizer_hides_that(
    monkeypatch: pytest.MonkeyPatch, factor: float | None, kinds: tuple[str, str], hidden: bool
) -> None:
    gradients = np.float32([[1.0, -2.0, 0.5]])

    def seen(times: float) -> CloseUp:
        events = [Event("gradients", 0, {"training": 0, "positions": [0]}, [np.float64(0.1), times * gradients])]
        return CloseUp({1: events})

    traces = tuple(Trace((), 1, np.zeros(0), optimizers=[{"class": kind, "config": {}}]) for kind in kinds)
    found = None if factor is None else Sides(("fit", "loop"), traces, (seen(1.0), seen(factor)), 1)
    monkeypatch.setattr(scripts_explain, "seen_first", lambda session, model: found)
    assert notes_of(_say_what_the_optimizer_hides, *traces) == hidden * [
        "the gradients of loop are 16 times those of fit, which Adam evens out; with SGD or clipping, the two would "
        "differ"
    ]


def test_settings_that_make_no_difference_are_said() -> None:
    def told(*optimizers: dict[str, Any]) -> list[str]:
        traces = (Trace((), 1, np.zeros(0), optimizers=[each]) for each in optimizers)
        return notes_of(_say_which_settings_do_nothing, *traces)

    def adam(**config: Any) -> dict[str, Any]:
        return {"class": "Adam", "config": {"clipnorm": None, "use_ema": False, "ema_momentum": 0.9, **config}}

    assert told(adam(), adam(clipnorm=1000.0)) == [
        "loop's Adam has clipnorm=1000 instead of None, which makes no difference here: none is reached, or "
        "the gradients are limited by hand"
    ]
    assert told(adam(), adam()) == told(adam(), adam(ema_momentum=0.99)) == []
    assert told(adam(), {**adam(clipnorm=1000.0), "class": "Own"}) == []

    def layers_told(*activations: str, kind: str = "Dense") -> list[str]:
        layers = [
            [{"name": "out", "class": "Dense", "config": {"name": "out", "activation": each}}] for each in activations
        ]
        layers[1][0]["class"] = kind
        return notes_of(_say_which_settings_do_nothing, *(Trace((), 1, np.zeros(0), layers=each) for each in layers))

    said = "loop's Dense out has activation=softmax instead of linear, which makes no difference here"
    assert layers_told("linear", "softmax") == [said]
    assert layers_told("linear", "linear") == layers_told("linear", "softmax", kind="Own") == []
