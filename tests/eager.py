"""A trainer that traces no graph, and runs of it on a small experiment: for tests that need a run, whatever trains."""

from __future__ import annotations

import compare

EPOCHS = 5


class Eager:
    """A custom loop without ``tf.function``, so that no time is spent on tracing."""

    name = "eager"

    def train(self, run):
        import tensorflow as tf

        model, optimizer, loss, _ = run.build()
        for epoch in run.epochs:
            for x, y in run.train_dataset(epoch):
                with tf.GradientTape() as tape:
                    value = loss(y, model(x, training=True))
                variables = model.trainable_variables
                optimizer.apply_gradients(zip(tape.gradient(value, variables), variables, strict=True))
                run.end_step()
            run.end_epoch(epoch, {"loss": float(value), "val_loss": float(value)})


def run(experiment, folder, trainers, **options):
    given = {"strategy": "default", "epochs": EPOCHS, "batch_size": 16, "quiet": True, "reports": folder, "name": "run"}
    return compare.run(experiment, trainers=trainers, **(given | options))
