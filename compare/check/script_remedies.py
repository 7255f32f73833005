"""What to write in a script instead, with what that script uses: no ``Run``, often no strategy; no TensorFlow here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from compare.check.causes import CATALOGUE
from compare.check.causes.optimizer import OWN_OPTIMIZER, with_callbacks
from compare.watch.trace import ON_BATCHES, Trace

if TYPE_CHECKING:
    from compare.check.observation import Observation

PROBABILITIES = "probabilities"
"""The variant of ``logits-mismatch`` where a model gives probabilities that are said to be logits."""

FROZEN = "frozen"
"""The variant of ``variables-not-trained`` where layers predict otherwise, since they are not trainable."""
NO_ARGUMENT = "no argument"
"""The variant of ``training-flag-missing`` where a model has no argument of this name that fit could give."""
MICRO_BATCHES = "micro-batches"
"""The variant of ``loss-scaled`` where the gradients of micro-batches are added up."""


@dataclass(frozen=True)
class Used:
    """What two scripts use, as far as remedies depend on it.

    Attributes:
        optimizer: the class of the right side's optimizer.
        averages: whether it keeps moving averages of the weights.
        on_batches: whether the script at fault calls ``train_on_batch``.
        sets_rate: whether a callback of fit sets the learning rate.
    """

    optimizer: str = "Adam"
    averages: bool = False
    on_batches: bool = False
    sets_rate: bool = False


def used_by(other: Trace, right: Trace) -> Used:
    """What the script at fault uses, and the right one."""
    optimizer: Mapping[str, Any] = right.optimizers[0] if right.optimizers else {}
    return Used(
        str(optimizer.get("class", "Adam")),
        bool(optimizer.get("config", {}).get("use_ema")),
        other.trained_by == ON_BATCHES,
        any("LearningRate" in name for name in right.fit.get("callbacks", ())),
    )


WITHOUT_RUN = {
    "logits-mismatch": "loss_object = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)\n"
    "# with the options of the loss that compile() gets",
    f"logits-mismatch {PROBABILITIES}": "loss_object = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=False)"
    "\n# in both; or leave out the activation of the model's last layer",
    f"variables-not-trained {FROZEN}": "layer.trainable = True  # where the other script sets it\n"
    "variables = model.trainable_variables  # afterwards, and in a tf.function that is traced afterwards",
    f"training-flag-missing {NO_ARGUMENT}": "def call(self, inputs, training=None): ...  # of the model, so that fit "
    "gives training=True",
    f"loss-scaled {MICRO_BATCHES}": "gradients = [total / micro_batches for total in accumulated]  # assign the result",
    "weights-not-shared": "encoder = make_encoder()  # once\nfirst, second = encoder(a), encoder(b)  # the same layers",
    "label-shape-broadcast": "y = tf.reshape(y, tf.shape(predictions))  # before the loss",
    "clipping-differs": "gradients = tape.gradient(loss, variables)\n"
    "optimizer.apply_gradients(zip(gradients, variables))\n"
    "# the optimizer clips, with the same clipnorm, clipvalue or global_clipnorm as fit's",
    "callbacks-missing": with_callbacks("[...]", "range(1, epochs + 1)"),
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
    "loss-without-regularization": f"loss += tf.add_n(model.losses)\n{MEAN_OF_EXAMPLES}",
}
"""What to write on one replica where the catalogue's remedy uses a strategy."""

MEAN_OF_CALLS = (
    "model.reset_metrics()  # before every epoch\n"
    "logs = model.train_on_batch(x, y, return_dict=True)  # after the last batch: the means over the epoch's examples"
)
ON_BATCH = dict.fromkeys(("loss-averaged-over-batches", "last-batch-only", "metrics-not-reset"), MEAN_OF_CALLS)
"""What to write where ``train_on_batch`` counts by itself."""


AVERAGES = "optimizer.finalize_variable_values(model.trainable_variables)  # after the last epoch"


def script_remedy(cause: str, replicas: int, used: Used | None = None, of: str = "") -> str:
    """What to write instead in a script.

    Args:
        cause: the id of a cause.
        replicas: the number of replicas on which the script trains.
        used: what the scripts use.
        of: the kind of the mistake, where it has a remedy of its own.
    """
    used = used or Used()
    texts = WITHOUT_RUN | (WITHOUT_STRATEGY if replicas == 1 else {}) | (ON_BATCH if used.on_batches else {})
    texts["optimizer-differs"] = f"optimizer = tf.keras.optimizers.{used.optimizer}(...)  # with fit's options"
    texts["optimizer-differs averages"] = AVERAGES
    if used.averages:
        texts["optimizer-differs"] += f"\n{AVERAGES}"
    texts["learning-rate-schedule-missing"] = (
        f"optimizer = tf.keras.optimizers.{used.optimizer}(schedule)  # that of fit's optimizer"
    )
    if used.sets_rate:
        texts["learning-rate-schedule-missing"] += "\noptimizer.learning_rate = schedule(epoch)  # in every epoch"
    return texts.get(f"{cause} {of}", texts.get(cause, CATALOGUE[cause].remedy))


ALONE = {
    "not-reshuffled": "for epoch in run.epochs:\n    dataset = run.train_dataset(epoch)",
    "examples-repeated": "dataset = run.train_dataset(epoch)  # without repeat()\nfor batch in dataset: ...",
    "batch-size-differs": "batch_size = run.global_batch_size  # run.train_dataset uses it",
}
"""What to write in a loop with a ``Run`` that does not use the strategy."""


def remedy_for_loop(cause: str, observation: Observation, ema: bool) -> str:
    """What to write instead in a loop with a ``Run``: only what that loop has.

    Args:
        cause: the id of a cause.
        observation: the loop, as it was observed.
        ema: whether the experiment's optimizer keeps moving averages of the weights.
    """
    texts = {} if observation.distributed or observation.replicas > 1 else WITHOUT_STRATEGY | ALONE
    texts |= ON_BATCH if observation.on_batch else {}
    texts |= {} if ema else {"optimizer-differs": OWN_OPTIMIZER}
    return texts.get(cause, CATALOGUE[cause].remedy)
