"""Mistakes of loops that take their examples from ``load_data``, not from the run; see ``faults.py``."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from corpus.loop import Loop


class OwnArrays(Loop):
    """The examples as NumPy arrays, in an order of their own."""

    def make(self) -> None:
        super().make()
        self.arrays, _ = self.load_data()
        self.examples = len(tf.nest.flatten(self.arrays)[0])

    def batches(self, epoch: int) -> tf.data.Dataset:
        return self.cut(self.order(epoch))

    def order(self, epoch: int) -> np.ndarray:
        return np.random.default_rng(epoch).permutation(self.examples)

    def cut(self, order: np.ndarray) -> tf.data.Dataset:
        chosen = tf.nest.map_structure(lambda array: array[order], self.arrays)
        return tf.data.Dataset.from_tensor_slices(chosen).batch(self.size())

    def size(self) -> int:
        return self.run.global_batch_size


class OwnPermutation(OwnArrays):
    """A new permutation for each epoch: as good as the run's, only another one."""


class WholeSteps(OwnArrays):
    """``int(count / batch_size)`` steps."""

    def order(self, epoch: int) -> np.ndarray:
        steps = int(self.examples / self.size())
        return super().order(epoch)[: steps * self.size()]


class RemainderDropped(OwnArrays):
    """The usual pipeline, with drop_remainder."""

    def batches(self, epoch: int) -> tf.data.Dataset:
        examples = tf.data.Dataset.from_tensor_slices(self.arrays)
        return examples.shuffle(self.examples, seed=epoch).batch(self.size(), drop_remainder=True)


class IndexNeverReset(OwnArrays):
    """The index of the next batch is set to 0 before the first epoch only, so that the second has no batches."""

    def order(self, epoch: int) -> np.ndarray:
        return super().order(epoch) if epoch == self.run.epochs[0] else np.arange(0)


class IndexGoesOn(OwnArrays):
    """Batches follow each other round and round, all of them full, wherever an epoch ends."""

    def order(self, epoch: int) -> np.ndarray:
        steps = -(-self.examples // self.size())
        start = (epoch - 1) * steps * self.size()
        indices = np.arange(start, start + steps * self.size()) % self.examples
        return np.random.default_rng(0).permutation(self.examples)[indices]


class RandomBatches(OwnArrays):
    """Each batch is drawn from all examples, with replacement."""

    def order(self, epoch: int) -> np.ndarray:
        return np.random.default_rng(epoch).integers(0, self.examples, self.examples)


class ArraysInOrder(OwnArrays):
    """No shuffling at all."""

    def order(self, epoch: int) -> np.ndarray:
        return np.arange(self.examples)


class ShuffledOnce(OwnArrays):
    """Shuffled before the first epoch."""

    def order(self, epoch: int) -> np.ndarray:
        return super().order(0)


class OwnLabelsApart(OwnArrays):
    """Inputs and labels get a permutation each."""

    def cut(self, order: np.ndarray) -> tf.data.Dataset:
        x, *others = self.arrays
        other_order = np.random.default_rng(order).permutation(order)
        chosen = [x[order], *tf.nest.map_structure(lambda array: array[other_order], others)]
        return tf.data.Dataset.from_tensor_slices(tuple(chosen)).batch(self.size())


class OwnSmallerBatches(OwnArrays):
    def size(self) -> int:
        return self.run.global_batch_size // 2


class OwnLargerBatches(OwnArrays):
    def size(self) -> int:
        return self.run.global_batch_size * 3 // 2
