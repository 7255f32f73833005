"""Data are in memory once: what is read-only and begins where TensorFlow needs it is shared, all else is copied."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import pytest

from compare.engine import memory
from compare.engine.insides_tensorflow import own_graph


def address(array: Any) -> int:
    return int(np.asarray(array).__array_interface__["data"][0])


def filled(size: int) -> np.ndarray:
    array = memory.empty(size)
    array[:] = np.arange(size) % 251
    return array


@pytest.mark.parametrize("size", [1, 63, 64, 6000])
def test_what_nobody_can_write_is_shared(tensorflow: Any, size: int) -> None:
    array = filled(size)
    array.flags.writeable = False
    tensor = memory.tensor(array)
    assert address(tensor) == address(array) and np.array_equal(tensor, array)
    kept = array.copy()
    del array
    assert np.array_equal(tensorflow.gather(tensor, tensorflow.range(size)), kept), "the tensor keeps the memory"


def test_shapes_and_types_are_kept(tensorflow: Any) -> None:
    array = filled(240).view(np.int16).reshape(4, 30)
    array.flags.writeable = False
    tensor = memory.tensor(array)
    assert (tensor.dtype, tensor.shape) == (tensorflow.int16, (4, 30))
    assert address(tensor) == address(array) and np.array_equal(tensor, array)


def copied(array: np.ndarray) -> None:
    tensor = memory.tensor(array)
    assert address(tensor) != address(array) and np.array_equal(tensor, array)


def test_all_else_is_copied(tensorflow: Any) -> None:
    array = filled(6000)
    copied(array)  # somebody may write there
    array.flags.writeable = False
    copied(array[1:])  # begins where TensorFlow would end the process
    copied(array.reshape(60, 100)[:, :64])  # has gaps
    copied(array[:0])
    (owned := np.arange(6000)).flags.writeable = False
    copied(owned)
    view = np.asarray(memory.tensor(array.reshape(60, 100)))  # as data are seen once they are a tensor's
    copied(view[:32])
    (text := np.array(["a", "b"], object)).flags.writeable = False
    assert memory.tensor(text).numpy().tolist() == [b"a", b"b"]


def test_fashion_mnist_is_there_once(tensorflow: Any) -> None:
    from compare.engine import input_pipeline
    from compare.engine.data import SAMPLE, read_fashion_mnist
    from compare.experiments.fashion_mnist import fashion_mnist_sample

    (images, labels), _ = read_fashion_mnist(SAMPLE)
    assert not images.flags.writeable and not labels.flags.writeable
    assert address(memory.tensor(images)) == address(images)
    train, _ = input_pipeline.load(fashion_mnist_sample)
    first = train.first(100)
    assert first.count == 100 and np.array_equal(first.arrays[0], images[:100])


def test_graphs_of_this_toolkit_cause_no_warning_that_many_are_traced(
    tensorflow: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger("tensorflow"), "propagate", True)
    for make, warned in ((own_graph, False), (tensorflow.function, True)):
        caplog.clear()
        for i in range(8):
            make(lambda i=i: tensorflow.constant(i))()
        assert ("triggered tf.function retracing" in caplog.text) == warned
