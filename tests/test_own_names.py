"""Tests of advice in the names of the user's own code."""

import pytest

from compare.check.causes import CATALOGUE
from compare.check.measurement import Measurement
from compare.check.own_names import at_line, in_own_names, own_names
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
    assert in_own_names(advice, own_names(text, line_of(text, at))) == own
