"""What the code at fault uses, as far as remedies depend on it; no TensorFlow."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from compare.watch.trace import BY_OWN_STEP, ON_BATCHES, Trace

RUN, SCRIPT = "run", "script"
"""Code that is given a ``Run``, and code that has none."""
FIT = "fit"
"""A script that calls ``fit`` and leaves the step to Keras."""
OWN_STEP = "own-step"
"""A script that calls ``fit`` on a model with its own ``train_step``."""
ALONE = "alone"
"""One replica, and no use of the strategy."""
AVERAGES = "averages"
"""An optimizer that keeps moving averages of the weights."""
DIVIDED = "divided"
"""A loss of validation that Keras divides by the number of replicas."""
SETS_RATE = "sets-rate"
"""A callback of fit that sets the learning rate."""


@dataclass(frozen=True)
class Used:
    """What the code at fault uses.

    Attributes:
        words: those of ``RUN``, ``SCRIPT``, ``FIT``, ``OWN_STEP``, ``ALONE``, ``ON_BATCHES``, ``AVERAGES``, ``DIVIDED``
            and ``SETS_RATE`` that hold.
        optimizer: the class of the other side's optimizer, as code names it.
        options: what gives it its learning rate, in code.
    """

    words: frozenset[str]
    optimizer: str = "tf.keras.optimizers.Adam"
    options: str = "..."

    @classmethod
    def of(cls, words: Mapping[str, bool], **code: str) -> Used:
        """What is used, from whether each word holds."""
        return cls(frozenset(word for word, holds in words.items() if holds), **code)

    def seeing(self, divided: Collection[str]) -> Used:
        """The same, with what was seen of the parts, training and validation, whose loss Keras divides."""
        return replace(self, words=self.words | {DIVIDED}) if "validation" in divided else self

    def of_numbers(self, names: Sequence[str]) -> Used:
        """What matters to these reported numbers: a loss that Keras divides in validation is none of training."""
        of_training = not all(name.startswith("val_") for name in names)
        return replace(self, words=self.words - {DIVIDED}) if of_training else self


NOTHING = Used(frozenset())
"""Nothing on which a remedy depends."""
SCRIPT_ALONE = Used(frozenset((SCRIPT, ALONE)))
"""A script on one replica."""


OPTIONS = (
    "weight_decay", "momentum", "nesterov", "rho", "beta_1", "beta_2", "epsilon", "amsgrad", "centered", "clipnorm",
    "clipvalue", "global_clipnorm",
)  # fmt: skip
"""Options of optimizers that advice repeats, unless they are as usual."""
USUAL = {"beta_1": 0.9, "beta_2": 0.999, "epsilon": 1e-7}


def used_by(other: Trace, right: Trace, step: int = 1) -> Used:
    """What a script at fault uses, next to the right one, in a step."""
    words = {
        SCRIPT: True,
        FIT: other.trained_by == "fit",
        OWN_STEP: other.trained_by == BY_OWN_STEP,
        ALONE: other.replicas == 1,
        ON_BATCHES: other.trained_by == ON_BATCHES,
        AVERAGES: bool(right.config.get("use_ema")),
        SETS_RATE: any("LearningRate" in name for name in right.fit.get("callbacks", ())),
    }
    optimizer = right.optimizer_at(step) or {"class": "Adam"}
    config = optimizer.get("config", {})
    rate = config.get("learning_rate")
    options = [f"learning_rate={rate:.6g}" if isinstance(rate, float) else "schedule" if rate else "..."]
    given = {name: config[name] for name in OPTIONS if config.get(name) and config[name] != USUAL.get(name)}
    given = {name: value for name, value in given.items() if isinstance(value, int | float)}
    options += [f"{name}={value if isinstance(value, bool) else format(value, '.6g')}" for name, value in given.items()]
    return Used.of(words, optimizer=class_of(optimizer), options=", ".join(options))


def class_of(optimizer: Mapping[str, Any]) -> str:
    """The class of an optimizer, as the code of a script names it."""
    return f"{'' if optimizer.get('own') else 'tf.keras.optimizers.'}{optimizer['class']}"
