"""What to write in a script instead, which has no ``Run``, and often no strategy either; no TensorFlow here."""

from __future__ import annotations

from compare.check.causes import CATALOGUE

WITHOUT_RUN = {
    "logits-mismatch": "loss_object = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)\n"
    "# with the options of the loss that compile() gets",
    "clipping-differs": "gradients = tape.gradient(loss, variables)\n"
    "optimizer.apply_gradients(zip(gradients, variables))\n"
    "# the optimizer clips, with the same clipnorm, clipvalue or global_clipnorm as fit's",
    "optimizer-differs": "optimizer = tf.keras.optimizers.Adam(...)  # with the options of fit's optimizer\n"
    "optimizer.finalize_variable_values(model.trainable_variables)  # after the last epoch, with use_ema only",
    "learning-rate-schedule-missing": "optimizer = tf.keras.optimizers.Adam(schedule)  # that of fit's optimizer\n"
    "optimizer.learning_rate = schedule(epoch)  # in every epoch, only if a callback sets it under fit",
    "callbacks-missing": CATALOGUE["callbacks-missing"]
    .remedy.replace("run.build_callbacks()", "[...]")
    .replace("run.epochs", "range(1, epochs + 1)"),
    "examples-repeated": "for batch in dataset: ...  # in every epoch, once over all examples, without repeat()",
    "batch-size-differs": "dataset = dataset.batch(batch_size)  # fit's, which is 32 if it is not given",
}
"""What to write where the catalogue's remedy uses a ``Run``."""

MEAN_OF_EXAMPLES = (
    "loss_metric.update_state(loss, sample_weight=tf.shape(y)[0])\n"
    "# after every batch: loss_metric is a tf.keras.metrics.Mean, and loss is the mean of the batch"
)
WITHOUT_STRATEGY = {
    "loss-summed": "loss = tf.reduce_mean(per_example)  # not tf.reduce_sum",
    "regularization-missing": "loss += tf.add_n(model.losses)",
    "loss-averaged-over-batches": MEAN_OF_EXAMPLES,
    "last-batch-only": MEAN_OF_EXAMPLES,
}
"""What to write on one replica where the catalogue's remedy uses a strategy."""


def script_remedy(cause: str, replicas: int) -> str:
    """What to write instead in a script.

    Args:
        cause: the id of a cause.
        replicas: the number of replicas on which the script trains.
    """
    texts = WITHOUT_RUN | (WITHOUT_STRATEGY if replicas == 1 else {})
    return texts.get(cause, CATALOGUE[cause].remedy)
