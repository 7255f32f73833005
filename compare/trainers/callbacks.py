"""The experiment's callbacks in a custom loop: the hooks that ``fit`` calls, with the logs that it gives them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf

from compare.engine.run import Run
from compare.trainers.outputs import KERAS_3


class Callbacks:
    """All callbacks as one: ``on_epoch_end(0, logs)`` calls that of each, and so on for the other hooks.

    What callbacks add to ``logs`` (a learning rate, say) stays in them, to be reported as it is by fit.

    Args:
        run: gives the callbacks.
        model: what they watch; ``model.optimizer``, where they look for it, is set.
        optimizer: the optimizer that trains it.
        metrics: name to metric, for the logs.
    """

    def __init__(
        self, run: Run, model: tf.keras.Model, optimizer: tf.keras.optimizers.Optimizer, metrics: Mapping[str, Any]
    ) -> None:
        model.optimizer, model.stop_training = optimizer, False
        model.history = tf.keras.callbacks.History()
        given = run.build_callbacks()
        self._callbacks = [*given, model.history]
        steps = int(run.train_dataset(run.epochs[0]).cardinality())
        for callback in self._callbacks:
            callback.set_params({"verbose": 0, "epochs": run.epochs[-1], "steps": steps})
            callback.set_model(model)
        self._strategy = run.strategy
        self._listened_to = bool(given)

        def results() -> dict[str, tf.Tensor]:
            return {name: metric.result() for name, metric in metrics.items()}

        self._read = tf.function(lambda: run.strategy.run(results))

    def __getattr__(self, hook: str) -> Callable[..., None]:
        def call(*arguments: Any) -> None:
            for callback in self._callbacks:
                getattr(callback, hook)(*arguments)

        return call

    def logs_so_far(self) -> dict[str, float]:
        """The metrics amid an epoch, as fit gives them after a batch; empty where nobody listens."""
        if not self._listened_to:
            return {}
        # In Keras 3 each replica tells its own numbers so far, and fit takes their mean; in Keras 2 they agree.
        logs = {}
        for name, value in self._read().items():
            values = self._strategy.experimental_local_results(value)
            logs[name] = float(tf.reduce_mean(values, axis=0) if KERAS_3 else values[0])
        return logs
