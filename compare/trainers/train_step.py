"""A model with its own ``train_step`` that stock ``fit`` trains exactly like any other model: bit for bit.

It follows the Keras guide "Customizing what happens in fit"
(https://www.tensorflow.org/guide/keras/customizing_what_happens_in_fit). The steps of the guide are found here:

=====================================================  =====================================================
A first simple example: override ``train_step``        ``CustomModel.train_step``
Update the metrics, and return them by name            ``_update_loss``, and the ends of both steps
Going lower-level: an own loss and own metrics         comments in ``train_step`` and ``_update_loss``
Supporting ``sample_weight`` and ``class_weight``      in ``train_step``
Providing your own evaluation step                     ``CustomModel.test_step``
Compile and fit                                        ``KerasFit.train``, which ``TrainStep`` inherits
=====================================================  =====================================================

Comments explain why each line is needed wherever such models commonly differ from ``fit``, as the guide's own examples
do on several replicas, with a short last batch or in float16. To try steps of your own, subclass ``TrainStep``.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from compare.engine.building import refuse_own_steps
from compare.engine.keras_generation import UPDATES_LOSS, training_argument
from compare.engine.run import Run
from compare.errors import RequestError
from compare.trainers import losses
from compare.trainers.keras_fit import KerasFit


class CustomModel(tf.keras.Model):  # type: ignore[misc]
    """A model that is trained and validated by its own steps. ``fit`` calls them on each replica."""

    def train_step(self, data: Any) -> dict[str, Any]:
        """Performs one optimizer step on one replica's part of a batch.

        Args:
            data: (x, y) or (x, y, sample_weight): tensors of shape ``[examples, ...]`` with the examples of this
                replica, or tuples or dicts of such tensors.

        Returns:
            The metrics so far, by name.
        """
        # fit passes class weights as sample weights. ``x, y = data``, as in the guide's first example, fails for both.
        x, y, sample_weight = tf.keras.utils.unpack_x_y_sample_weight(data)
        with tf.GradientTape() as tape:
            # training=True enables dropout, and makes batch normalization use the statistics of the batch.
            y_pred = self(x, training=True)
            # apply_gradients sums the gradients over the replicas, so each replica contributes only its share:
            # compute_loss divides by the number of replicas. It also adds the regularization losses (self.losses). A
            # loss of your own, such as tf.reduce_mean(...), needs both: + sum(self.losses), and / replicas.
            loss = self.compute_loss(x, y, y_pred, sample_weight, **training_argument(self, True))
            # Small gradients would underflow in float16. losses.py: a LossScaleOptimizer scales the loss up first.
            # compile wraps the optimizer for mixed_float16, but only the step can scale the loss.
            scaled_loss = losses.scale_loss(self.optimizer, loss)
        variables = self.trainable_variables
        gradients = losses.unscale_gradients(self.optimizer, tape.gradient(scaled_loss, variables))
        self.optimizer.apply_gradients(zip(gradients, variables, strict=True))
        self._update_loss(x, loss)
        # Updates the metrics given to compile, and returns all metrics by name. At the end of an epoch fit reads
        # self.metrics, but only if these are the names that the step returns. Otherwise it reports what the last batch
        # returned: {"loss": loss} would be the loss of one batch, averaged over the replicas.
        return self.compute_metrics(x, y, y_pred, sample_weight)  # type: ignore[no-any-return]

    def test_step(self, data: Any) -> dict[str, Any]:
        """Updates the loss and the metrics with one replica's part of a validation batch; see ``train_step``."""
        x, y, sample_weight = tf.keras.utils.unpack_x_y_sample_weight(data)
        # training=False: no dropout, and batch normalization uses its moving averages, which stay as they are.
        y_pred = self(x, training=False)
        # fit includes the regularization losses in the validation loss too; compute_loss adds them.
        loss = self.compute_loss(x, y, y_pred, sample_weight, **training_argument(self, False))
        self._update_loss(x, loss)
        return self.compute_metrics(x, y, y_pred, sample_weight)  # type: ignore[no-any-return]

    def _update_loss(self, x: Any, loss: tf.Tensor) -> None:
        """Updates the mean loss that ``fit`` reports with this replica's share, from ``compute_loss``."""
        if UPDATES_LOSS:
            return  # compute_loss has done it
        # The metric is the Mean named "loss" that compile adds to self.metrics. fit resets what is listed there before
        # every epoch and every validation; a metric of your own that is listed nowhere would go on adding up.
        # The loss is weighted by the number of examples, so that a short batch counts less. It is the loss before its
        # division by the number of replicas: updated with the share, the metric would be too small by that factor.
        examples = tf.shape(tf.nest.flatten(x)[0])[0]
        replicas = self.distribute_strategy.num_replicas_in_sync
        self._loss_tracker.update_state(loss * replicas, sample_weight=examples)


class TrainStep(KerasFit):
    """Trains by stock ``fit`` a model that makes its steps with the methods of another class.

    Attributes:
        model_class: the class with ``train_step``, ``test_step`` or both; a subclass of ``TrainStep`` may have another.
    """

    name = "train-step"
    model_class: type = CustomModel

    def build(self, run: Run) -> Any:
        """Returns what ``run.build()`` returns; the model has the methods of ``model_class``.

        It remains the same object, with the same layers and variables under the same names. Only its class changes, to
        one that inherits from ``model_class`` first. (In a model of your own, write the methods into its class.)

        Raises:
            RequestError: if the model already has a ``train_step`` or ``test_step`` of its own, or ``model_class`` is
                none that its class can inherit from.
        """
        model, *others = super().build(run)
        refuse_own_steps(model, run.experiment, self.name)
        original = type(model)
        try:
            model.__class__ = type(original.__name__, (self.model_class, original), {"__module__": original.__module__})
        except TypeError as error:
            needed = "give a class that inherits from tf.keras.Model and has a train_step or test_step"
            raise RequestError(f"model_class of {self.name} is {self.model_class!r}: {needed}") from error
        return model, *others
