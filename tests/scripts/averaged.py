"""A loop that trains like fit, and reports means over batches as its losses, that of validation without penalties."""

import task
import tensorflow as tf

(x, y), (x_val, y_val) = task.data()
model = task.model()
optimizer = tf.keras.optimizers.Adam()
loss_fn = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
mean = tf.keras.metrics.Mean(name="train_loss")
val_mean = tf.keras.metrics.Mean(name="val_loss")


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
    for a, b in tf.data.Dataset.from_tensor_slices((x_val, y_val)).batch(64):
        val_mean(loss_fn(b, model(a, training=False)))
    print(epoch, mean.result().numpy(), val_mean.result().numpy())
    mean.reset_state()
    val_mean.reset_state()
