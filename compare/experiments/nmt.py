"""Translation with attention: converts written dates ("3 Sep 1987") to ISO 8601 ("1987-09-03"), by character.

An encoder and a decoder with GRUs and attention (Bahdanau et al. 2014, https://arxiv.org/abs/1409.0473), trained with
teacher forcing: the decoder sees the correct characters before the one that it has to predict. The dates are generated.
Some of them lack the day, or day and month, so sources and targets differ in length and are padded with zeros.

What breaks a naive loop: the padding. The embeddings create a mask (``mask_zero``) that is propagated to the logits.
``fit`` excludes masked positions from the loss, which it divides by the number of the other positions, and from all
metrics. A loop that calls ``loss.call`` or a function of ``tf.nn`` ignores the mask: it trains to predict the padding,
and its accuracy includes the padding.
"""

from __future__ import annotations

import calendar
import datetime
from typing import Any

import numpy as np
import tensorflow as tf

from compare.experiment import Experiment
from compare.experiments.fashion_mnist import build_loss, build_metrics

TRAINING, VALIDATION = 4000, 500
SOURCE, TARGET = 18, 11
"""Maximum lengths in characters; a target ends with an end character."""
PADDING, BEGINNING, END = "\0", ">", "."
CHARACTERS = 128
"""Size of the vocabulary: ASCII, which contains the three special characters above."""
WIDTH = 32


def written(date: datetime.date, style: int) -> tuple[str, str]:
    """Returns a date in one of seven styles, and in ISO 8601, which may be of reduced precision (year, month)."""
    day, month, year, iso = date.day, calendar.month_name[date.month], date.year, date.isoformat()
    return [
        (f"{day} {month} {year}", iso),
        (f"{month} {day}, {year}", iso),
        (f"{day} {month[:3]} {year}", iso),
        (f"{date.month}/{day}/{year}", iso),
        (f"{day}.{date.month}.{year}", iso),
        (f"{month} {year}", iso[:7]),
        (f"in {year}", iso[:4]),
    ][style]


def encoded(texts: list[str], length: int) -> np.ndarray:
    """Encodes texts as padded characters, uint8 ``[texts, length]``."""
    return np.array([list(text.ljust(length, PADDING).encode()) for text in texts], np.uint8)


def load_data() -> tuple[Any, Any]:
    """Returns 4,000 training and 500 validation examples.

    x is a dict of the source, uint8 ``[N, 18]``, and the preceding character for each target character, uint8
    ``[N, 11]``; y is the target, uint8 ``[N, 11]``.
    """
    generator = np.random.default_rng(1)

    def part(count: int) -> tuple[Any, Any]:
        days = generator.integers(datetime.date(1900, 1, 1).toordinal(), datetime.date(2100, 1, 1).toordinal(), count)
        dates = map(datetime.date.fromordinal, days.tolist())
        pairs = [written(date, style) for date, style in zip(dates, generator.integers(7, size=count), strict=True)]
        sources, targets = [source for source, _ in pairs], [target + END for _, target in pairs]
        before = [BEGINNING + target[:-1] for target in targets]
        return {"source": encoded(sources, SOURCE), "before": encoded(before, TARGET)}, encoded(targets, TARGET)

    return part(TRAINING), part(VALIDATION)


def build_model() -> tf.keras.Model:
    """Builds a model from {"source": ``[batch, 18]``, "before": ``[batch, 11]``} to logits ``[batch, 11, 128]``.

    The logits have the same mask as "before".
    """
    layers = tf.keras.layers
    source = tf.keras.Input((SOURCE,), dtype="int32", name="source")
    before = tf.keras.Input((TARGET,), dtype="int32", name="before")

    def recurrent(characters: Any, state: Any = None) -> Any:
        embedded = layers.Embedding(CHARACTERS, WIDTH, mask_zero=True)(characters)
        return layers.GRU(WIDTH, return_sequences=True, return_state=True)(embedded, initial_state=state)

    encoded_source, state = recurrent(source)
    decoded, _ = recurrent(before, state)
    context = layers.AdditiveAttention()([decoded, encoded_source])
    hidden = layers.Dense(2 * WIDTH, activation="relu")(layers.Concatenate()([decoded, context]))
    return tf.keras.Model({"source": source, "before": before}, layers.Dense(CHARACTERS)(hidden))


experiment = Experiment(
    name="nmt",
    load_data=load_data,
    build_model=build_model,
    build_loss=build_loss,
    build_optimizer=lambda: tf.keras.optimizers.Adam(0.01),
    build_metrics=build_metrics,
    data_source="generated dates, as people write them and in ISO 8601",
)
