"""A loop that trains like fit, and reports the mean over batches as its loss."""

import task
import tensorflow as tf

(x, y), _ = task.data()
model = task.model()
optimizer = tf.keras.optimizers.Adam()
loss_fn = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
mean = tf.keras.metrics.Mean(name="train_loss")


@tf.function(reduce_retracing=True)
def step(x, y):
    with tf.GradientTape() as tape:
        loss = loss_fn(y, model(x, training=True)) + sum(model.losses)
    gradients = tape.gradient(loss, model.trainable_variables)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
    mean(loss)


for epoch in range(2):
    for batch in tf.data.Dataset.from_tensor_slices((x, y)).batch(64):
        step(*batch)
    print(epoch, mean.result().numpy())
    mean.reset_state()
