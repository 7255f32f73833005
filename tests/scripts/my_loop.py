import sys

import task
import tensorflow as tf

(x, y), (x_val, y_val) = task.data()
train = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(1000).batch(64)
model = task.model()
optimizer = tf.keras.optimizers.Adam()
loss_fn = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
train_loss = tf.keras.metrics.Mean(name="train_loss")
train_accuracy = tf.keras.metrics.SparseCategoricalAccuracy(name="train_accuracy")
test_accuracy = tf.keras.metrics.SparseCategoricalAccuracy(name="test_accuracy")


@tf.function
def train_step(x, y):
    with tf.GradientTape() as tape:
        predictions = model(x, training=True)
        loss = loss_fn(y, predictions)
        if "--forget" not in sys.argv:
            loss += sum(model.losses)
    gradients = tape.gradient(loss, model.trainable_variables)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
    train_loss.update_state(loss, sample_weight=len(x))
    train_accuracy.update_state(y, predictions)


for epoch in range(2):
    for metric in (train_loss, train_accuracy, test_accuracy):
        metric.reset_state()
    for a, b in train:
        train_step(a, b)
    test_accuracy.update_state(y_val, model(x_val, training=False))
    print(f"epoch {epoch + 1}: {train_loss.result():.4f} {train_accuracy.result():.4f} {test_accuracy.result():.4f}")
