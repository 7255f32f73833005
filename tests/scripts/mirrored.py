import keras
import task
import tensorflow as tf

strategy = tf.distribute.MirroredStrategy()
(x, y), _ = task.data()
with strategy.scope():
    model = task.model()
    optimizer = keras.optimizers.Adam()
    optimizer.build(model.trainable_variables)
    loss_fn = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")


def step(x, y):
    with tf.GradientTape() as tape:
        losses = loss_fn(y, model(x, training=True))
        loss = tf.nn.compute_average_loss(losses) + tf.nn.scale_regularization_loss(sum(model.losses))
    optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)


@tf.function
def distributed_step(batch):
    strategy.run(step, batch)


for _ in range(2):
    for batch in strategy.experimental_distribute_dataset(tf.data.Dataset.from_tensor_slices((x, y)).batch(64)):
        distributed_step(batch)
