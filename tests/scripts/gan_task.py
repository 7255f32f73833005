"""What the scripts of a GAN share: data, two models, their optimizers."""

import keras
import numpy as np
import tensorflow as tf
from keras import layers

x = np.random.default_rng(0).normal(size=(512, 6)).astype("float32")
noise = np.random.default_rng(1).normal(size=(512, 4)).astype("float32")
data = tf.data.Dataset.from_tensor_slices((x, noise)).batch(64)

discriminator = keras.Sequential([keras.Input((6,)), layers.Dense(16, "relu"), layers.Dense(1)], name="discriminator")
generator = keras.Sequential([keras.Input((4,)), layers.Dense(16, "relu"), layers.Dense(6)], name="generator")
d_optimizer = keras.optimizers.Adam(1e-3, beta_1=0.5)
g_optimizer = keras.optimizers.Adam(1e-3, beta_1=0.5)
bce = keras.losses.BinaryCrossentropy(from_logits=True)


def losses(real, z):
    """The losses of the discriminator and of the generator."""
    on_real = discriminator(real, training=True)
    on_fake = discriminator(generator(z, training=True), training=True)
    d_loss = bce(tf.ones_like(on_real), on_real) + bce(tf.zeros_like(on_fake), on_fake)
    return d_loss, bce(tf.ones_like(on_fake), on_fake)
