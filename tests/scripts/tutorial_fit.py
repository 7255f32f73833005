import images as fashion_mnist
import tensorflow as tf

(train_images, train_labels), test = fashion_mnist.load_data()
strategy = tf.distribute.MirroredStrategy()
with strategy.scope():
    model = tf.keras.Sequential(
        [
            tf.keras.Input((28, 28, 1)),
            tf.keras.layers.Conv2D(32, 3, activation="relu"),
            tf.keras.layers.MaxPooling2D(),
            tf.keras.layers.Conv2D(64, 3, activation="relu"),
            tf.keras.layers.MaxPooling2D(),
            tf.keras.layers.Flatten(),
            tf.keras.layers.Dense(64, activation="relu"),
            tf.keras.layers.Dense(10),
        ]
    )
    loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("adam", loss, metrics=["accuracy"])


def prepared(images):
    return images[..., None] / 255.0


batch = 64 * strategy.num_replicas_in_sync
train_images = prepared(train_images).astype("float32")
model.fit(train_images, train_labels, batch_size=batch, validation_data=(prepared(test[0]), test[1]), verbose=0)
