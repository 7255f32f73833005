"""Keras callbacks in a custom loop: calls the same hooks as ``fit``, with the same logs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf

from compare.engine.keras_generation import result_of_replicas
from compare.engine.run import Run


class Callbacks:
    """Calls all callbacks together: ``on_epoch_end(0, logs)`` calls this hook of each callback; so do other hooks.

    Entries that callbacks add to ``logs`` (a learning rate, say) remain there and are reported, as by fit.
    The model's ``optimizer``, ``history`` and ``stop_training`` are set; ``metrics``, by name, are for the logs.
    """

    def __init__(
        self, run: Run, model: tf.keras.Model, optimizer: tf.keras.optimizers.Optimizer, metrics: Mapping[str, Any]
    ) -> None:
        model.optimizer, model.stop_training = optimizer, False
        model.history = tf.keras.callbacks.History()
        user_callbacks = run.build_callbacks()
        self._callbacks = [*user_callbacks, model.history]
        steps = int(run.train_dataset(run.epochs[0]).cardinality())
        for callback in self._callbacks:
            callback.set_params({"verbose": 0, "epochs": run.epochs[-1], "steps": steps})
            callback.set_model(model)
        self._strategy = run.strategy
        self._has_user_callbacks = bool(user_callbacks)

        def results() -> dict[str, tf.Tensor]:
            return {name: metric.result() for name, metric in metrics.items()}

        self._replica_results = tf.function(lambda: run.strategy.run(results))

    def __getattr__(self, hook: str) -> Callable[..., None]:
        def call(*arguments: Any) -> None:
            for callback in self._callbacks:
                getattr(callback, hook)(*arguments)

        return call

    def current_logs(self) -> dict[str, float]:
        """Returns the metrics of the epoch so far, as fit passes them to the hooks of a batch.

        Empty if the experiment has no callbacks.
        """
        if not self._has_user_callbacks:
            return {}
        results = self._replica_results()
        return {name: result_of_replicas(self._strategy.experimental_local_results(results[name])) for name in results}
