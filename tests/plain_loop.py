"""A correct loop on one replica, in parts that tests override; it never uses the strategy."""

from __future__ import annotations


class Loop:
    """A correct loop on one replica, in parts."""

    name = "loop"
    eager = False

    def train(self, run):
        import tensorflow as tf

        self.run = run
        self.model, self.optimizer, self.loss, self.metrics = run.build()
        self.mean = tf.keras.metrics.Mean()
        self.begin()
        step = self.step if self.eager else tf.function(self.step, reduce_retracing=True)
        for epoch in run.epochs:
            for metric in [self.mean, *self.metrics]:
                metric.reset_state()
            for x, y in self.batches(epoch):
                step(x, y)
                self.after_step()
                run.end_step()
            logs = {"loss": float(self.mean.result())}
            run.end_epoch(epoch, self.logs(logs | {each.name: float(each.result()) for each in self.metrics}))

    def begin(self):
        """Before the first step."""

    def batches(self, epoch):
        return self.run.train_dataset(epoch)

    def after_step(self):
        """After each step."""

    def step(self, x, y):
        import tensorflow as tf

        with tf.GradientTape() as tape:
            predictions = self.call(x)
            value = self.value(y, predictions) + self.penalty()
        variables = self.model.trainable_variables
        self.record(x, y, predictions, value)
        self.apply(tape.gradient(value, variables), variables)
        self.after_update(x, y)

    def call(self, x):
        return self.model(x, training=True)

    def value(self, y, predictions):
        import tensorflow as tf

        return tf.reduce_mean(self.loss.call(y, predictions))

    def penalty(self):
        import tensorflow as tf

        return tf.add_n(self.model.losses) if self.model.losses else 0.0

    def record(self, x, y, predictions, value):
        self.mean.update_state(value, sample_weight=len(x))
        for metric in self.metrics:
            metric.update_state(y, predictions)

    def apply(self, gradients, variables):
        self.optimizer.apply_gradients(zip(gradients, variables, strict=True))

    def after_update(self, x, y):
        """After the update, in the step's function."""

    def logs(self, logs):
        return logs
