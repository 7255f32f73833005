import keras
import task

(x, y), validation = task.data()
model = task.model()
model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])
model.fit(x, y, epochs=2, batch_size=64, validation_data=validation, verbose=0)
