import numpy as np
import task
import tensorflow as tf

(x, y), _ = task.data()
np.random.permutation(10)  # other use of random numbers changes nothing
model = task.model()
optimizer = tf.keras.optimizers.Adam()
for _ in range(2):
    for i in range(0, len(x), 64):
        with tf.GradientTape() as tape:
            predictions = model(x[i : i + 64], training=True)
            losses = tf.keras.losses.sparse_categorical_crossentropy(y[i : i + 64], predictions, from_logits=True)
            loss = tf.reduce_mean(losses) + sum(model.losses)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
