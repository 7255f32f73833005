"""Habits of Keras users: models with their own train_step and metrics, compiled models, vector metrics."""

from __future__ import annotations

import functools

import numpy as np
import pytest
import tasks
from against_fit import checker_of

import compare

QUICK = {"batch_size": 16, "quiet": True}


def experiment(**parts):
    return tasks.experiment(train=150, validation=60, **parts)


def autoencoder():
    """As in the Keras guides: with its own train_step and metrics, and a loss without labels."""
    import tensorflow as tf

    class Autoencoder(tf.keras.Model):
        def __init__(self):
            super().__init__()
            self.encoder, self.decoder = tf.keras.layers.Dense(3, "tanh"), tf.keras.layers.Dense(8)
            self.reconstruction = tf.keras.metrics.Mean(name="reconstruction")

        @property
        def metrics(self):
            return [self.reconstruction]

        def call(self, x):
            return self.decoder(self.encoder(x))

        def error(self, x):
            return tf.reduce_mean(tf.square(x - self(x)))

        def train_step(self, data):
            x, _ = data
            with tf.GradientTape() as tape:
                error = self.error(x)
            variables = self.trainable_variables
            self.optimizer.apply_gradients(zip(tape.gradient(error, variables), variables, strict=True))
            self.reconstruction.update_state(error)
            return {"reconstruction": self.reconstruction.result()}

        def test_step(self, data):
            self.reconstruction.update_state(self.error(data[0]))
            return {"reconstruction": self.reconstruction.result()}

    return Autoencoder()


class ByHand:
    """The same step in a loop, executed eagerly."""

    name = "by-hand"
    factor = 1.0

    def train(self, run):
        import tensorflow as tf

        model, optimizer, _, _ = run.build()
        for epoch in run.epochs:
            errors = []
            for x, _ in run.train_dataset(epoch):
                with tf.GradientTape() as tape:
                    error = model.error(x)
                    loss = self.factor * error
                variables = model.trainable_variables
                optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
                errors.append(float(error))
                run.end_step()
            run.end_epoch(epoch, {"reconstruction": np.mean(errors)})


class TwiceAsFast(ByHand):
    factor = 2.0


@functools.cache
def checker():
    return checker_of(experiment(build_model=autoencoder))


def test_a_model_with_its_own_train_step_and_metrics_is_trained_by_them(tensorflow, tmp_path):
    made = experiment(build_model=autoencoder)
    result = compare.run(made, trainers=("fit", ByHand()), strategy="default", epochs=2, reports=tmp_path, **QUICK)
    assert result.verdict in ("identical", "alike")
    assert set(result.metrics.columns) >= {"reconstruction", "val_reconstruction"}


def test_where_fits_steps_cannot_be_replayed_twins_decide_and_no_cause_is_named(tensorflow):
    right = checker().check(ByHand())
    assert right.comparison.training.verdict in ("identical", "alike"), right
    wrong = checker().check(TwiceAsFast())
    assert wrong.verdict == "different", wrong
    for report in (right, wrong):
        assert report.findings == (), report
        assert "replay" in [each.probe for each in report.not_applicable], report
        assert report.comparison.certain is False


def test_a_model_that_is_compiled_already_reports_the_runs_metrics(tensorflow, tmp_path):
    import tensorflow as tf

    def compiled():
        model = tf.keras.Sequential([tf.keras.layers.Dense(3)])
        model.compile("adam", "mse", metrics=["mae"])
        return model

    result = compare.run(experiment(build_model=compiled), strategy="default", epochs=1, reports=tmp_path, **QUICK)
    assert result.verdict == "identical"
    assert (result.metrics.loss > 0).all()


def test_a_vector_metric_is_several_columns(tensorflow, tmp_path):
    import tensorflow as tf

    def one_hot():
        return tuple((x, np.eye(3, dtype=np.float32)[y]) for x, y in tasks.experiment(train=150).load_data())

    made = experiment(
        load_data=one_hot,
        build_loss=lambda: tf.keras.losses.CategoricalCrossentropy(from_logits=True),
        build_metrics=lambda: [tf.keras.metrics.F1Score(name="f1")],
    )
    result = compare.run(made, strategy="default", epochs=1, reports=tmp_path, **QUICK)
    assert result.verdict == "identical"
    assert set(result.metrics.columns) >= {"f1[0]", "f1[1]", "f1[2]", "val_f1[2]"}


def test_an_optimizer_that_was_created_before_is_refused_with_its_line(tensorflow, tmp_path):
    import tensorflow as tf

    optimizer = tf.keras.optimizers.SGD()
    with pytest.raises(
        compare.RequestError, match=r"test_keras_habits\.py, line \d+\) returned an optimizer that was created"
    ):
        compare.run(experiment(build_optimizer=lambda: optimizer), epochs=1, reports=tmp_path, **QUICK)


def test_an_optimizer_that_accumulates_gradients_is_accepted(tensorflow, tmp_path):
    import tensorflow as tf

    made = experiment(build_optimizer=lambda: tf.keras.optimizers.SGD(gradient_accumulation_steps=2))
    assert compare.run(made, strategy="default", epochs=1, reports=tmp_path, **QUICK).verdict == "identical"
