"""The same GAN trained by a loop; with "wrong", the loss of its generator counts twice."""

import sys

import keras
import tensorflow as tf
from gan_task import d_optimizer, data, discriminator, g_optimizer, generator, losses

wrong = "wrong" in sys.argv
d_mean, g_mean = keras.metrics.Mean(name="d_loss"), keras.metrics.Mean(name="g_loss")


@tf.function
def step(real, z):
    with tf.GradientTape() as d_tape, tf.GradientTape() as g_tape:
        d_loss, g_loss = losses(real, z)
        if wrong:
            g_loss = 2 * g_loss
    d_gradients = d_tape.gradient(d_loss, discriminator.trainable_variables)
    g_gradients = g_tape.gradient(g_loss, generator.trainable_variables)
    g_optimizer.apply_gradients(zip(g_gradients, generator.trainable_variables, strict=True))
    d_optimizer.apply_gradients(zip(d_gradients, discriminator.trainable_variables, strict=True))
    d_mean.update_state(d_loss)
    g_mean.update_state(g_loss)


for epoch in range(2):
    for real, z in data:
        step(real, z)
    print(epoch, d_mean.result().numpy(), g_mean.result().numpy())
    d_mean.reset_state()
    g_mean.reset_state()
