"""A small BERT: predicts masked characters of English text from the characters around them.

Token and position embeddings and two blocks of self-attention (Devlin et al. 2018, https://arxiv.org/abs/1810.04805),
trained by AdamW with warm-up and clipping. The text is the beginning of Python's language reference, which is included
in the package under Python's licence. In each example of 32 characters, 5 have to be predicted; sample weights of shape
``[batch, 32]`` select them.

What breaks a naive loop: without the sample weights it trains on all positions, most of which it only has to copy
(``sample-weights-dropped``). ``fit`` divides by the number of all positions, not by the sum of the weights: each of the
5 positions has the weight 6.4, so that the loss is their mean. A loop with its own optimizer may lack the warm-up
(``learning-rate-schedule-missing``) or the clipping (``clipping-differs``).
"""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from compare.experiment import Experiment
from compare.experiments.fashion_mnist import build_loss

TEXT = Path(__file__).parents[1] / "datasets" / "python-topics" / "topics.txt.gz"
LENGTH, TO_PREDICT = 32, 5
"""Number of characters in an example, and number of characters to predict."""
TRAINING = 8000
"""Number of training examples; the other 1,000 of the 9,000 examples are for validation."""
MASK, CHARACTERS = 0, 128
"""The token of a masked character, and the size of the vocabulary: ASCII, which contains that token."""
WIDTH, HEADS = 64, 4


def load_data() -> tuple[Any, Any]:
    """Returns (x, y, sample_weight) for training and validation.

    x has characters, some of them masked, uint8 ``[N, 32]``; y has the original characters, uint8 ``[N, 32]``; the
    sample weights are float32 ``[N, 32]``.
    """
    y = np.frombuffer(gzip.decompress(TEXT.read_bytes()), np.uint8).reshape(-1, LENGTH)
    generator = np.random.default_rng(1)
    chosen = generator.permuted(np.tile(np.arange(LENGTH), (len(y), 1)), axis=1)[:, :TO_PREDICT]
    # As in BERT, most of the chosen characters are masked; here, one is replaced at random and one is unchanged.
    shown = np.take_along_axis(y, chosen, axis=1)
    shown[:, :-2] = MASK
    shown[:, -2] = generator.integers(ord(" "), ord("~") + 1, len(y))
    x, weights = y.copy(), np.zeros(y.shape, np.float32)
    np.put_along_axis(x, chosen, shown, axis=1)
    np.put_along_axis(weights, chosen, np.float32(LENGTH / TO_PREDICT), axis=1)
    return (x[:TRAINING], y[:TRAINING], weights[:TRAINING]), (x[TRAINING:], y[TRAINING:], weights[TRAINING:])


def build_model() -> tf.keras.Model:
    """Builds a model from characters ``[batch, 32]`` to logits ``[batch, 32, 128]``."""
    layers = tf.keras.layers

    class TokenAndPosition(tf.keras.layers.Layer):  # type: ignore[misc]
        """The sum of the embeddings of the character and of its position."""

        def __init__(self) -> None:
            super().__init__()
            # With Keras's small default standard deviation, learning to attend to positions takes many more epochs.
            self.tokens = layers.Embedding(CHARACTERS, WIDTH, tf.keras.initializers.RandomNormal(stddev=0.3))
            self.positions = layers.Embedding(LENGTH, WIDTH, tf.keras.initializers.RandomNormal(stddev=0.3))

        def call(self, characters: tf.Tensor) -> tf.Tensor:
            return self.tokens(characters) + self.positions(tf.range(LENGTH))

    def add_and_normalize(x: Any, residual: Any, seed: int) -> Any:
        return layers.LayerNormalization()(x + layers.Dropout(0.1, seed=seed)(residual))

    characters = tf.keras.Input((LENGTH,), dtype="int32")
    x = TokenAndPosition()(characters)
    for block in range(2):
        x = add_and_normalize(x, layers.MultiHeadAttention(HEADS, WIDTH // HEADS)(x, x), seed=2 * block)
        hidden = layers.Dense(2 * WIDTH, activation="gelu")(x)
        x = add_and_normalize(x, layers.Dense(WIDTH)(hidden), seed=2 * block + 1)
    return tf.keras.Model(characters, layers.Dense(CHARACTERS)(x))


def build_optimizer() -> tf.keras.optimizers.Optimizer:
    """Returns AdamW with 60 steps of warm-up and cosine decay to a tenth, over 10 epochs on one replica."""
    schedule = tf.keras.optimizers.schedules.CosineDecay(
        0.0, decay_steps=1190, alpha=0.1, warmup_target=3e-3, warmup_steps=60
    )
    optimizer = tf.keras.optimizers.AdamW(schedule, weight_decay=0.01, global_clipnorm=1.0)
    optimizer.exclude_from_weight_decay(var_names=["bias", "gamma", "beta"])  # as BERT does
    return optimizer


experiment = Experiment(
    name="transformer",
    load_data=load_data,
    build_model=build_model,
    build_loss=build_loss,
    build_optimizer=build_optimizer,
    build_weighted_metrics=lambda: [tf.keras.metrics.SparseCategoricalAccuracy(name="masked_accuracy")],
    data_source="288,000 characters of Python's language reference, in examples of 32",
)
