"""Memory that NumPy and TensorFlow share, so that data are there once; TensorFlow comes with the first tensor."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import tensorflow as tf

ALIGNMENT = 64
"""Bytes: TensorFlow ends the process over tensors that begin elsewhere."""


def empty(size: int) -> np.ndarray:
    """uint8 ``[size]``, not filled, where a tensor may begin."""
    memory = np.empty(size + ALIGNMENT, np.uint8)
    begin = -memory.ctypes.data % ALIGNMENT
    return memory[begin : begin + size]


def tensor(array: np.ndarray) -> tf.Tensor:
    """The same values as a tensor: in the array's own memory if nobody can write there, else in a copy.

    Args:
        array: any, of numbers or text. Shared is what ``empty`` gave and was made read-only since.
    """
    import tensorflow as tf

    if array.dtype.kind not in "uif" or array.size == 0:
        return tf.constant(array)  # DLPack knows no text
    if not _is_shareable(array):
        copy = empty(array.nbytes).view(array.dtype).reshape(array.shape)
        copy[...] = array  # by way of tf.constant it would be there three times for a moment
        copy.flags.writeable = False
        array = copy
    owner: Any = array.base
    begin = array.ctypes.data - owner.ctypes.data
    # DLPack does not take read-only arrays: this one is the same memory.
    same = owner[begin : begin + array.nbytes].view(array.dtype).reshape(array.shape)
    return tf.experimental.dlpack.from_dlpack(same.__dlpack__())


def _is_shareable(array: np.ndarray) -> bool:
    """Whether it is a part of what ``empty`` gave, begins where a tensor may, and can be read only."""
    owner: Any = array.base
    ours = isinstance(owner, np.ndarray) and owner.ndim == 1 and owner.dtype == np.uint8 and owner.flags.writeable
    aligned = array.flags.c_contiguous and array.ctypes.data % ALIGNMENT == 0
    return ours and aligned and not array.flags.writeable
