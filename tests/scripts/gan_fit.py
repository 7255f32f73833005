"""A GAN trained by fit, with a train_step of its own."""

import keras
import tensorflow as tf
from gan_task import d_optimizer, data, discriminator, g_optimizer, generator, losses


class GAN(keras.Model):
    def __init__(self):
        super().__init__()
        self.discriminator, self.generator = discriminator, generator
        self.d_loss, self.g_loss = keras.metrics.Mean(name="d_loss"), keras.metrics.Mean(name="g_loss")

    @property
    def metrics(self):
        return [self.d_loss, self.g_loss]

    def train_step(self, batch):
        with tf.GradientTape() as d_tape, tf.GradientTape() as g_tape:
            d_loss, g_loss = losses(*batch)
        gradients = d_tape.gradient(d_loss, discriminator.trainable_variables)
        d_optimizer.apply_gradients(zip(gradients, discriminator.trainable_variables, strict=True))
        gradients = g_tape.gradient(g_loss, generator.trainable_variables)
        g_optimizer.apply_gradients(zip(gradients, generator.trainable_variables, strict=True))
        self.d_loss.update_state(d_loss)
        self.g_loss.update_state(g_loss)
        return {"d_loss": self.d_loss.result(), "g_loss": self.g_loss.result()}


gan = GAN()
gan.compile()
gan.fit(data, epochs=2, verbose=2)
