"""Tests of advice in the names of the user's own code."""

import ast
import json
import linecache
from dataclasses import replace

import pytest

from compare.check.advice import at_line, in_own_names, own_names
from compare.check.causes import CATALOGUE
from compare.check.measurement import Measurement
from compare.check.used import SCRIPT_ALONE
from compare.check.user_code import UserCode
from compare.verdict.findings import Source

SCRIPT = """
loss_fn = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
adam = keras.optimizers.Adam(1e-3)
train_loss = tf.keras.metrics.Mean(name="train_loss")
val_loss = tf.keras.metrics.Mean(name="val_loss")

def train_step(images, labels):
    with tf.GradientTape() as t:
        logits = net(images, training=True)
        value = loss_fn(labels, logits)
    grads = t.gradient(value, net.trainable_variables)
    adam.apply_gradients(zip(grads, net.trainable_variables))
    train_loss.update_state(value)

def test_step(images, labels):
    scores = net(images, training=False)
    val_loss.update_state(loss_fn(labels, scores))
"""
TWO_EACH = """
slow = tf.keras.optimizers.SGD(0.1)
fast = tf.keras.optimizers.SGD(1.0)
first = tf.keras.losses.MeanSquaredError()
second = tf.keras.losses.MeanSquaredError()

def step(x, y):
    return first(y, x) + second(y, x)
"""
TRAINER = """
class MyLoop:
    def train(self, run):
        self.net, self.opt, self.criterion, self.scores = run.build()

    def step(self, batch):
        p = self.net(batch[0], training=True)
        return self.criterion(batch[1], p)
"""


def names_in(text, line):
    return own_names(UserCode(text.splitlines(), ast.parse(text)), line)


def line_of(text, part):
    return next(number for number, line in enumerate(text.splitlines(), 1) if part in line)


@pytest.mark.parametrize(
    ("line", "remedy"),
    [
        ("losses.append(float(loss))", "np.average(losses, weights=sizes)"),
        ("self.losses.append(loss)", "np.average(self.losses, weights=sizes)"),
        ("total += loss.numpy()", "total += loss.numpy() * len(y)"),
        ("total += loss", "total += loss * len(y)"),
        ("total += float(loss.numpy())", "total += float(loss.numpy()) * len(y)"),
        ("total += a + b", ""),
        ("total += f(a) + g(b)", ""),
        ("train_loss(loss)", ""),
    ],
)
def test_a_mean_over_batches_by_hand_gets_advice_for_what_is_written_there(line: str, remedy: str) -> None:
    cause = CATALOGUE["loss-averaged-over-batches"]
    found = at_line(cause.found("loop", Measurement.of("mean-over-batches", metric="loss")), Source("no.py", 3, line))
    assert found.remedy.startswith(remedy or cause.remedy)


@pytest.mark.parametrize(
    ("text", "at", "advice", "own"),
    [
        (
            SCRIPT,
            "value = ",
            "loss = loss_object(y, predictions)  # y and predictions of loss_object",
            "value = loss_fn(labels, logits)  # y and predictions of loss_fn",
        ),
        (SCRIPT, "val_loss.update", "loss_object.call(y, predictions)", "loss_fn.call(labels, scores)"),
        (
            SCRIPT,
            "train_loss.update",
            "loss_metric.update_state(loss, sample_weight=tf.shape(y)[0])\n"
            "# loss_metric is a Mean, and loss is the mean",
            "train_loss.update_state(value, sample_weight=tf.shape(labels)[0])\n"
            "# train_loss is a Mean, and value is the mean",
        ),
        (
            SCRIPT,
            "val_loss.update",
            "loss_metric.reset_state()\nmodel.fit(x, loss=y)",
            "val_loss.reset_state()\nnet.fit(images, loss=labels)",
        ),
        (SCRIPT, "grads = ", "gradients = tape.gradient(loss, model.losses)", "grads = t.gradient(value, net.losses)"),
        (SCRIPT, "adam = ", "loss_metric, optimizer, strategy", "loss_metric, adam, strategy"),  # which Mean, not known
        (TWO_EACH, "return", "loss_object(y, predictions)", "loss_object(y, predictions)"),
        (TWO_EACH, "fast = ", "optimizer = SGD(0.1)", "fast = SGD(0.1)"),
        (TWO_EACH, "return", "optimizer = SGD(0.1)", "optimizer = SGD(0.1)"),
        (TRAINER, "return", "loss_object(y, predictions), optimizer", "self.criterion(y, p), self.opt"),
        (TRAINER, "p = ", "model(x).optimizer", "self.net(x).optimizer"),
    ],
)
def test_advice_has_the_names_of_the_function_around_the_line(text, at, advice, own):
    assert in_own_names(advice, names_in(text, line_of(text, at))) == own


LATER = """
loss_fn = tf.keras.losses.MeanSquaredError()

def judge(truth, guess):
    return loss_fn(truth, guess)

for x, y in train:
    with tf.GradientTape() as tape:
        p = model(x, training=True)
        loss = loss_fn(y, p)
    grads = tape.gradient(loss, model.trainable_variables)
for x_val, y_val in val:
    loss_fn(y_val, model(x_val))
"""


def test_what_a_line_adds_to_a_metric_is_the_loss_of_advice(tmp_path):
    text = "def loss(y): ...\nmean = tf.keras.metrics.Mean()\nmean.update_state(value)\n"
    assert advised(tmp_path, "loss-averaged-over-batches", text, 3)[1].startswith("mean.update_state(value * ")
    sums = text.replace("(value)", "(value + penalty)")
    assert advised(tmp_path, "loss-averaged-over-batches", sums, 3)[1].startswith("mean.update_state(loss * ")


def test_label_smoothing_is_written_where_the_loss_is_made(tmp_path):
    made = "loss_fn = keras.losses.CategoricalCrossentropy(from_logits=True)"
    text = f"{made}\ndef step(y, p):\n    loss = loss_fn(y, p)\n"
    advice = "loss_object = tf.keras.losses.CategoricalCrossentropy(..., label_smoothing=0.1)"
    right = made.replace("=True)", "=True, label_smoothing=0.1)")
    assert advised(tmp_path, "label-smoothing-missing", text, 3, advice) == (1, right)


@pytest.mark.parametrize("called", ["labels=real, logits=pred", "y_true=real, y_pred=pred"])
def test_labels_and_predictions_may_be_given_by_name(tmp_path, called):
    text = f"def step(real, pred):\n    per_example = tf.nn.softmax_cross_entropy_with_logits({called})\n"
    advice = "loss = tf.keras.losses.MeanSquaredError()(y, predictions)"
    told = advised(tmp_path, "mask-missing", text, 2, advice)[1]
    assert told == "loss = tf.keras.losses.MeanSquaredError()(real, pred)"


def test_the_penalty_of_each_replica_is_cited_beside_a_function_that_averages(tmp_path):
    text = (
        "def of(each, model_losses):\n    loss = tf.nn.compute_average_loss(each)\n    loss += tf.add_n(model_losses)\n"
    )
    assert advised(tmp_path, "regularization-not-divided-by-replicas", text, 2)[0] == 3


@pytest.mark.parametrize(("at", "own"), [("loss = ", "loss_fn(y, p)"), ("return", "loss_fn(truth, guess)")])
def test_what_comes_later_or_in_another_function_gives_advice_no_names(at, own):
    """Such as validation below a training step: the names there are not known, or others, where the mistake is."""
    assert in_own_names("loss_object(y, predictions)", names_in(LATER, line_of(LATER, at))) == own


def test_a_penalty_that_is_counted_twice_is_cited_where_it_is_read(tmp_path):
    file, cause = tmp_path / "loop.py", CATALOGUE["regularization-not-divided-by-replicas"]
    penalty, loss = "    penalty = tf.add_n(model.losses)", "    loss = mean + penalty"

    def cited(*lines: str) -> str:
        file.write_text("\n".join(["def step(mean):", *lines, "    return loss", ""]))
        linecache.checkcache(str(file))
        seen = Source(str(file), len(lines) + 1, lines[-1].strip())
        found = at_line(cause.found("loop", Measurement.of("mean-over-batches", metric="loss")), seen).source
        assert found is not None and file.read_text().splitlines()[found.line - 1].strip() == found.text
        return found.text

    assert cited(penalty, loss) == penalty.strip()
    given = "    penalty = tf.add_n(model_losses)"
    assert cited(given, loss) == given.strip()
    assert cited("    # model.losses", loss) == loss.strip()
    assert cited(penalty, "    log(model.losses)", loss) == loss.strip(), "which of the two is not known"
    cause, half = CATALOGUE["regularization-missing"], "    penalty = decay * tf.nn.l2_loss(weight)"
    assert cited(half, loss) == half.strip()


@pytest.mark.parametrize(("id", "cited"), [
    ("regularization-missing", "loss = tf.add_n([data] + model.losses)"),
    ("loss-summed", "data = 2 * mean"),
    ("label-shape-broadcast", "mean = tf.reduce_mean(tf.square(y[:, 0] - p))"),
    ("variables-not-trained", "gradients = tape.gradient(loss, model.trainable_variables)"),
])  # fmt: skip
def test_the_loss_of_an_eager_step_is_cited_where_it_is_given(tmp_path, id, cited):
    lines = [
        "p = model(x)", "mean = 0", "mean = tf.reduce_mean(tf.square(y[:, 0] - p))", "data = 2 * mean",
        "loss = tf.add_n([data] + model.losses)", "gradients = tape.gradient(loss, model.trainable_variables)",
        "loss = 0",
    ]  # fmt: skip
    file = tmp_path / "loop.py"
    file.write_text("\n".join(lines))
    finding = CATALOGUE[id].found("loop", Measurement.of("mean-over-batches", metric="loss"))
    found = at_line(finding, Source(str(file), 6, lines[5])).source
    assert found is not None and (found.text, lines[found.line - 1]) == (cited, cited)


@pytest.mark.parametrize(("lines", "cited", "instead"), [
    (["each = tf.nn.l2(y, p)", "each = tf.reduce_sum(each) / size", "loss = each + kl"], 2,
     "each = tf.nn.compute_average_loss(each)"),
    (["each = tf.nn.l2(y, p)", "kl = tf.reduce_sum(q) / size", "loss = tf.reduce_mean(each) + kl"], 1, ""),
    (["each = tf.nn.l2(y, p)", "half = each / 2", "return tf.reduce_sum(half) / size"], 3,
     "return tf.nn.compute_average_loss(half)"),
    (["loss = tf.nn.l2(y, p)", "loss = loss_fn(y, loss) / 32"], 2, ""),
    (["log(tf.nn.l2(y, p))", "loss = tf.reduce_sum(each) / size"], 1, ""),
])  # fmt: skip
def test_a_mistake_in_what_is_made_of_a_loss_is_cited_where_it_is_written(tmp_path, lines, cited, instead):
    """The line before is that of the loss function: in an eager step it is all that was seen of the loss."""
    (file := tmp_path / "loop.py").write_text("def step(y, p):\n    " + "\n    ".join(lines))
    linecache.clearcache()
    cause, seen = CATALOGUE["loss-constant-denominator"], Measurement.of("mean-over-batches", metric="loss")
    for remedy in (cause.remedy, "another"):
        found = at_line(cause.found("loop", seen, remedy=remedy), Source(str(file), 2, lines[0])).source
        assert (found.line - 1, found.instead) == (cited, instead if remedy == cause.remedy else "")


@pytest.mark.parametrize(("id", "loss", "cited"), [
    ("loss-summed", "tf.reduce_sum(of(y, p)) + penalty", 5),
    ("regularization-missing", "one + of(y, p)", 5),
    ("loss-summed", "tf.reduce_sum(of(y, p))", 5),
    ("loss-summed", "of(y, p)", 2),
    ("loss-summed", "loss_fn(y, p)", 2),
    ("logits-mismatch", "one + of(y, p)", 2),
])  # fmt: skip
def test_a_loss_of_several_parts_is_cited_where_it_is_put_together(tmp_path, id, loss, cited):
    text = f"def of(y, p):\n    each = loss_fn(y, p)\n    return each\ndef step(y, p):\n    loss = {loss}\n"
    text += "    gradients = tape.gradient(loss, model.trainable_variables)\n"
    assert advised(tmp_path, id, text, 2, "no advice")[0] == cited
    assert advised(tmp_path, id, text + text, 2, "no advice")[0] == 2, "which of two losses is not known"


@pytest.mark.parametrize(("line", "remedy"), [
    ("return loss_fn(y, p)", "return loss_fn(y, p) + tf.add_n(model.losses)"),
    ("loss = loss_fn(y, p)", "loss += tf.add_n(model.losses)"),
    ("main_loss = loss_fn(y, p)", "main_loss += tf.add_n(model.losses)"),
    ("per_example_loss = loss_fn(y, p)", "loss += tf.add_n(model.losses)"),
    ("values = loss_fn(y, p)", "loss += tf.add_n(model.losses)"),
    ("return tf.reduce_mean(", "loss += tf.add_n(model.losses)"),  # goes on in the next line
])  # fmt: skip
def test_what_is_to_be_added_to_the_loss_is_added_where_it_is_returned(tmp_path, line, remedy):
    (file := tmp_path / "loop.py").write_text(line)
    cause = CATALOGUE["regularization-missing"]
    finding = cause.found(
        "loop", Measurement.of("mean-over-batches", metric="loss"), remedy="loss += tf.add_n(model.losses)"
    )
    assert at_line(finding, Source(str(file), 1, line)).remedy == remedy


MADE, CALLED = "loss_fn = keras.losses.SparseCategoricalCrossentropy()", "return loss_fn(y, p)"


@pytest.mark.parametrize(
    ("more", "cited"),
    [
        ("", MADE),
        ("metric = keras.metrics.SparseCategoricalCrossentropy()", MADE),
        ("other = BinaryCrossentropy()", CALLED),
    ],
)
def test_a_loss_that_takes_logits_for_probabilities_is_cited_where_it_is_made(tmp_path, more, cited):
    file, cause = tmp_path / "loop.py", CATALOGUE["logits-mismatch"]
    file.write_text(f"{MADE}\n{more}\ndef step(y, p):\n    {CALLED}\n")
    finding = cause.found("loop", Measurement.of("mean-over-batches", metric="loss"))
    assert at_line(finding, Source(str(file), 4, CALLED)).source.text == cited


def advised(tmp_path, id, text, line, remedy=""):
    """The line that is cited and the advice for it, of a cause seen in a line of a file."""
    (file := tmp_path / "loop.py").write_text(text)
    linecache.clearcache()
    finding = CATALOGUE[id].found("loop", Measurement.of("mean-over-batches", metric="loss"), remedy=remedy)
    found = at_line(finding, Source(str(file), line, text.splitlines()[line - 1].strip()))
    assert found.source is not None
    return found.source.line, found.remedy


@pytest.mark.parametrize(
    "called", ["categorical_crossentropy", "keras.losses.huber", "keras.losses.MSE", "tf.nn.log_poisson_loss"]
)
def test_a_function_that_gives_losses_has_no_method_for_it(tmp_path, called):
    advice = "per_example = loss_object.call(y, predictions) * sample_weight"
    told = advised(tmp_path, "sample-weights-dropped", f"loss = tf.reduce_mean({called}(y, p))\n", 1, advice)
    assert told == (1, f"per_example = {called}(y, p) * sample_weight")


@pytest.mark.parametrize(("made", "right"), [
    ('loss_fn = MeanSquaredError(name="mse", reduction="sum")', 'loss_fn = MeanSquaredError(name="mse")'),
    ('loss_fn = MeanSquaredError(reduction="sum", name="mse")', 'loss_fn = MeanSquaredError(name="mse")'),
    ("loss_fn = MeanSquaredError(reduction=keras.losses.Reduction.SUM)", "loss_fn = MeanSquaredError()"),
])  # fmt: skip
def test_a_loss_that_is_made_to_add_up_is_cited_where_it_is_made(tmp_path, made, right):
    line, advice = advised(tmp_path, "loss-summed", f"{made}\ndef step(y, p):\n    loss = loss_fn(y, p)\n", 3)
    assert (line, advice.partition("  #")[0]) == (1, right)
    once = f"other = {made}\ndef step(y, p):\n    loss = tf.reduce_sum(tf.nn.l2_loss(y))\n"
    assert advised(tmp_path, "loss-summed", once, 3)[0] == 3


def test_a_loss_function_and_what_it_is_given_are_called_as_in_its_line(tmp_path):
    text = "def of_examples(loss_fn, target, out):\n    return loss_fn(target, out)\n"
    advice = "per_example = loss_object.call(y, predictions) * sample_weight"
    assert advised(tmp_path, "sample-weights-dropped", text, 2, advice) == (
        2, "per_example = loss_fn.call(target, out) * sample_weight"
    )  # fmt: skip
    two = text.replace("loss_fn(target, out)", "loss_fn(target, out) + more(target, out)")
    assert "loss_object.call(y, predictions)" in advised(tmp_path, "sample-weights-dropped", two, 2, advice)[1]


@pytest.mark.parametrize(("made", "advice", "right"), [
    ("opt = Adam(0.01)", "tf.keras.optimizers.Adam(..., learning_rate=0.001)", "opt = Adam(0.001)"),
    ("opt = keras.optimizers.Adam(learning_rate=0.01, beta_1=0.8)",
     "tf.keras.optimizers.Adam(..., learning_rate=0.001, clipnorm=1.0)",
     "opt = keras.optimizers.Adam(learning_rate=0.001, beta_1=0.8, clipnorm=1.0)"),
    ("opt = Adam(\n    0.01,\n    clipnorm=1.0,\n)", "Adam(..., clipnorm=None)", "opt = Adam(0.01)"),
    ("model.compile(Adam(0.1), 'mse')", "Adam(..., clipnorm=2.0)", "model.compile(Adam(0.1, clipnorm=2.0), 'mse')"),
    ("opt = Adam(0.01)", "Adam(...)  # once", "opt = Adam(0.01)  # once"),
    ("opt = SGD(0.01)", "Adam(..., learning_rate=0.001)", "opt = Adam(..., learning_rate=0.001)"),
    ("opt = made()", "Adam(..., learning_rate=0.001)", "optimizer = Adam(..., learning_rate=0.001)"),
])  # fmt: skip
def test_options_are_written_into_the_line_that_makes_the_optimizer(tmp_path, made, advice, right):
    line, written = advised(tmp_path, "optimizer-differs", f"{made}\n", 1, f"optimizer = {advice}\nmore = 1")
    assert (line, written) == (1, f"{right}\nmore = 1")


def test_the_cell_of_a_notebook_is_read_as_a_file_is(tmp_path):
    cells = ["# %% nothing", "%matplotlib inline\nopt = Adam(0.01)\n"]
    content = {"cells": [{"cell_type": "code", "source": [each]} for each in cells]}
    (tmp_path / "loop.ipynb").write_text(json.dumps(content))
    finding = CATALOGUE["optimizer-differs"].found(
        "loop", Measurement.of("mean-over-batches", metric="loss"), remedy="optimizer = Adam(..., learning_rate=0.001)"
    )
    cited = Source(f"{tmp_path / 'loop.ipynb'}, cell 2", 2, "opt = Adam(0.01)")
    assert at_line(finding, cited).remedy == "opt = Adam(0.001)"
    assert at_line(finding, replace(cited, file=f"{tmp_path / 'loop.ipynb'}, cell 3")).remedy == finding.remedy


SHARED = (
    "def forward(x):\n    return net(x, training={})\ndef step(x):\n    with GradientTape() as tape:\n        {}\n{}\n"
)


@pytest.mark.parametrize(
    ("id", "flag", "inside", "outside", "remedy"),
    [
        ("validation-in-training-mode", "True", "y = forward(x)", "forward(v)", "training=training)  # an argument of"),
        ("training-flag-missing", "False", "y = forward(x)", "forward(v)", "training=training)  # an argument of"),
        ("validation-in-training-mode", "True", "y = net(x)", "forward(v)", "training=False)"),
        ("training-flag-missing", "False", "y = forward(x)", "", "training=True)"),
    ],
)
def test_a_function_of_training_and_validation_gets_the_flag_as_an_argument(
    tmp_path, id, flag, inside, outside, remedy
):
    text = SHARED.format(flag, inside, outside)
    (file := tmp_path / "loop.py").write_text(text)
    linecache.clearcache()
    cause, line = CATALOGUE[id], text.splitlines()[1].strip()
    source = Source(str(file), 2, line, cause.instead_of(line))
    found = at_line(cause.found("loop", Measurement.of("mean-over-batches", metric="loss")), source)
    assert found.source is not None and remedy in found.source.instead + found.remedy
    assert bool(found.source.instead) == (remedy[-1] == ")")


@pytest.mark.parametrize(
    ("id", "text", "line", "advice", "written"),
    [
        (
            "loss-averaged-over-batches", "m(t_loss)\nm = keras.metrics.Mean()", 1, "m.update_state(loss)",
            "m.update_state(t_loss)",
        ),
        ("loss-averaged-over-batches", "m(t_loss)\nm = mean()", 1, "m.update_state(loss)", "m.update_state(loss)"),
        (
            "variables-not-trained", "g = tape.gradient(l, m.layer[0].weights)\nopt.apply(zip(g, m.layer[0].weights))",
            1, "variables = model.weights", "variables = model.weights",
        ),
        (
            "logits-mismatch", "fn = keras.losses.BinaryCrossentropy()\nout = net(x)\np = tf.sigmoid(out)\n"
            "value = fn(y, p)\ngrads = tape.gradient(value, net.trainable_variables)",
            4, "loss = loss_object(y, logits)", "value = fn(y, out)",
        ),
    ],
)  # fmt: skip
def test_advice_can_be_pasted_where_it_was_once_wrong(tmp_path, id, text, line, advice, written):
    assert advised(tmp_path, id, text, line, advice) == (line, written)


OF_MEAN = "loss = tf.reduce_mean(per_example) / strategy.num_replicas_in_sync"


@pytest.mark.parametrize(
    ("line", "whole", "written"),
    [
        ("return tf.reduce_mean(l) + reg", True, "return (tf.reduce_mean(l) + reg) / strategy.num_replicas_in_sync"),
        (
            "total = tf.reduce_sum(each) / n + reg / 2", False,
            "total = tf.reduce_mean(each) / strategy.num_replicas_in_sync + reg / 2",
        ),
        (
            "l = tf.reduce_sum(of.call(y, p)) + sum(model.losses)", False,
            "l = tf.reduce_mean(of.call(y, p)) / strategy.num_replicas_in_sync + sum(model.losses)",
        ),
        ("loss = tf.reduce_mean(each)", False, OF_MEAN),
        ("loss = of(each) + reg", False, OF_MEAN),
        ("loss = of(y, p)", False, OF_MEAN),
        ("loss = tf.nn.compute_average_loss(each)", False, OF_MEAN),
        (
            "value = keras.losses.mean_squared_error(y, p)", False,
            "value = tf.reduce_mean(keras.losses.mean_squared_error(y, p)) / strategy.num_replicas_in_sync",
        ),
        ("each = of(y); loss = tf.reduce_mean(each) + reg", False, OF_MEAN),
    ],
)  # fmt: skip
def test_a_mean_of_each_replica_keeps_what_its_line_adds_to_it(tmp_path, line, whole, written):
    (file := tmp_path / "loop.py").write_text(f"{line}\n")
    linecache.clearcache()
    seen = Measurement.of("gradients-times-replicas", replicas=2, regularization_included=whole)
    finding = CATALOGUE["uneven-replica-batches"].found("loop", seen, remedy=f"{OF_MEAN}  # as fit does\n# more")
    assert at_line(finding, Source(str(file), 1, line)).remedy == f"{written}  # as fit does\n# more"


def test_what_a_line_calls_a_thing_stays_in_advice_that_is_made_of_it(tmp_path):
    made = "model.compile(Adam(0.1), 'mse')"
    text = f"{made}\nwith tf.GradientTape() as tape:\n    loss = fn(y, p) / 32\n    total = loss + 1\n"
    text += "grads = tape.gradient(total, net.trainable_variables)\n"
    assert advised(tmp_path, "optimizer-differs", text, 1, "optimizer = Adam(..., clipnorm=2.0)")[1] == (
        "model.compile(Adam(0.1, clipnorm=2.0), 'mse')"
    )
    line, divided = advised(tmp_path, "loss-constant-denominator", text, 3)
    assert (line, divided.partition(" / ")[0]) == (3, "loss = fn(y, p)")
    summed = "loss = loss_fn(labels, p)\nall_of_it += loss\nloss_fn = keras.losses.MeanSquaredError()\n"
    assert advised(tmp_path, "loss-averaged-over-batches", summed, 2)[1].startswith("all_of_it += loss * len(labels)")


@pytest.mark.parametrize(("lines", "cited"), [
    (["numUpdates = int(len(x) / BS)"], 1),
    (["steps_per_epoch = count // 32", "half = width // 2"], 1),
    (["half = width // 2"], 2),
    (["n_steps = a // 2", "n_batches = b // 2"], 3),
    (["x = next(iter(data))"], 1),
])  # fmt: skip
def test_examples_are_left_out_where_steps_are_counted(tmp_path, lines, cited):
    text = "\n".join([*lines, "y = net(x)", ""])
    assert advised(tmp_path, "examples-dropped", text, len(lines) + 1)[0] == cited


def test_examples_are_counted_by_whatever_has_a_name_here(tmp_path):
    text = "out = net(x_batch)\nmean(value)\ngrads = tape.gradient(value, net.trainable_variables)\n"
    advice = "loss_metric.update_state(loss, sample_weight=tf.shape(y)[0])"
    told = advised(tmp_path, "loss-averaged-over-batches", text, 2, advice)[1]
    assert told == "loss_metric.update_state(value, sample_weight=tf.shape(x_batch)[0])"


def test_all_examples_are_not_called_as_a_batch_of_them_is(tmp_path):
    text = "logits = net(batch, training=True)\ngrads = tape.gradient(loss, net.trainable_variables)\n"
    remedy = "dataset = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(len(x))"
    assert advised(tmp_path, "labels-shuffled-apart", text, 1, remedy)[1] == remedy


def test_variables_are_those_of_the_line_that_applies_gradients(tmp_path):
    text = "grads = tape.gradient(loss, net.weights)\nopt.apply_gradients(zip(grads, net.weights))\n"
    advice = "optimizer.apply_gradients(zip(gradients, variables))"
    assert advised(tmp_path, "optimizer-differs", text, 2, advice)[1] == (
        "optimizer.apply_gradients(zip(grads, net.weights))"
    )


def test_what_a_class_keeps_is_called_as_it_is_kept(tmp_path):
    text = (
        "class Trainer:\n    def fit(self):\n        self.optimizer.learning_rate = self.schedule(1)\n\n"
        "optimizer = Adam(0.1)\n"
    )
    advice = "optimizer.learning_rate = schedule(optimizer.iterations)"
    assert advised(tmp_path, "optimizer-differs", text, 3, advice)[1] == (
        "self.optimizer.learning_rate = self.schedule(self.optimizer.iterations)"
    )
    plain = text.replace("self.optimizer.", "optimizer.").replace("self.schedule", "schedule")
    assert advised(tmp_path, "optimizer-differs", plain, 3, advice)[1] == advice


@pytest.mark.parametrize(("line", "remedy"), [
    ("loss = loss_fn(y, p) / BATCH", "loss = loss_fn(y, p) / tf.cast(tf.shape(y)[0], tf.float32)"),
    ("return self.loss(t, p) / 32  # mean", "return self.loss(t, p) / tf.cast(tf.shape(t)[0], tf.float32)"),
    ("loss = tf.reduce_sum(loss_fn(y, p)) / BATCH", ""),  # the line is rewritten instead
    ("loss = loss_fn(y, p)", ""),
])  # fmt: skip
def test_a_sum_that_the_loss_function_makes_is_divided_by_the_examples_of_the_batch(line, remedy):
    assert CATALOGUE["loss-constant-denominator"].remedy_at(line).partition("  #")[0] == remedy


@pytest.mark.parametrize("id", ["variables-not-trained", "optimizer-differs"])
def test_the_only_model_that_is_trained_is_not_named_where_variables_of_others_are_left_out(tmp_path, id):
    file = tmp_path / "loop.py"
    file.write_text("weights = decoder.trainable_variables\n")
    cause = CATALOGUE[id]
    finding = cause.found(
        "loop", Measurement.of("mean-over-batches", metric="loss"), remedy="model.trainable_variables"
    )
    found = at_line(finding, Source(str(file), 1, file.read_text().strip()))
    assert found.remedy.startswith("model" if id == "variables-not-trained" else "decoder")


def test_what_is_thrown_away_has_no_name():
    names = names_in("model, optimizer, _, _ = run.build()", 1)
    assert names == {"model": "model", "optimizer": "optimizer"}


def test_of_several_metrics_that_need_a_remedy_none_is_named_alone(tmp_path):
    (file := tmp_path / "loop.py").write_text("acc.update_state(y, out)\n")
    linecache.clearcache()
    source = Source(str(file), 1, "acc.update_state(y, out)")
    for metrics, more in ((["loss"], ""), (["loss", "accuracy"], "\n# needed for each of loss, accuracy")):
        seen = Measurement.of("mean-over-batches", metric="loss", metrics=metrics)
        found = at_line(CATALOGUE["metrics-not-reset"].found("loop", seen, used=SCRIPT_ALONE), source)
        assert found.remedy == f"acc.reset_state()  # before every epoch, and before validation that uses it{more}"


@pytest.mark.parametrize(
    ("line", "metric"),
    [
        ("'val_accuracy': float(self.val_acc.result()),", "self.val_acc"),
        ("print(f'{acc.result():.3f}')", "acc"),
        ("print(acc.result(), loss.result())", ""),
        ("train_acc.update_state(y, p)", "train_acc"),
    ],
)
def test_a_metric_that_is_not_reset_is_called_as_in_the_line_that_reads_it(line, metric):
    advice = CATALOGUE["metrics-not-reset"].remedy_at(line)
    assert advice == (metric and f"{metric}.reset_state()  # before every epoch, and before validation that uses it")
