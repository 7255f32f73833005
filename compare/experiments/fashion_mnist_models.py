"""The CNN of ``fashion_mnist`` in other styles: with probabilities, as a functional model and as a subclassed model.

The data is that of ``fashion-mnist``: the full dataset, or the embedded sample if it is not available.

What breaks a naive loop: ``fashion-mnist-softmax``, from TensorFlow's older tutorials, ends with a softmax, and
``tf.nn.sparse_softmax_cross_entropy_with_logits`` applies softmax again (``logits-mismatch``). Keras's own losses find
the logits behind the probabilities and use those. ``fashion-mnist-functional`` can be cloned, but the clone starts
from other weights (``weights-not-shared``). ``fashion-mnist-subclassed`` has a weight that belongs to the model and
to none of its layers: a loop that collects variables layer by layer does not train it (``variables-not-trained``).
"""

from __future__ import annotations

from functools import partial

import tensorflow as tf

from compare.experiments.fashion_mnist import build_model, fashion_mnist


def build_functional_model() -> tf.keras.Model:
    """Builds the same layers as a functional model."""
    x = images = tf.keras.Input((28, 28, 1))
    for layer in build_model().layers:
        x = layer(x)
    return tf.keras.Model(images, x)


def build_subclassed_model() -> tf.keras.Model:
    """Builds the same layers in a class, with a trainable scale of the logits."""

    class ScaledCNN(tf.keras.Model):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.cnn = build_model()
            self.scale = self.add_weight(shape=(), initializer="ones", name="scale")

        def call(self, images: tf.Tensor, training: bool = False) -> tf.Tensor:
            return self.scale * self.cnn(images, training=training)

    return ScaledCNN()


softmax = partial(
    fashion_mnist,
    name="fashion-mnist-softmax",
    build_model=lambda: tf.keras.Sequential([*build_model().layers, tf.keras.layers.Softmax()]),
    build_loss=lambda: tf.keras.losses.SparseCategoricalCrossentropy(from_logits=False),
)
functional = partial(fashion_mnist, name="fashion-mnist-functional", build_model=build_functional_model)
subclassed = partial(fashion_mnist, name="fashion-mnist-subclassed", build_model=build_subclassed_model)
