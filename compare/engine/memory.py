"""Memory shared by NumPy and TensorFlow, so that data is not duplicated.

TensorFlow is imported only when the first tensor is created.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import tensorflow as tf

ALIGNMENT = 64
"""Alignment of tensors in bytes. TensorFlow aborts the process if a tensor is not aligned."""


def empty(size: int) -> np.ndarray:
    """Returns an uninitialized, aligned array, uint8 ``[size]``."""
    memory = np.empty(size + ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % ALIGNMENT
    return memory[start : start + size]


def tensor(array: np.ndarray) -> tf.Tensor:
    """Converts an array of numbers or text to a tensor; read-only arrays from ``empty`` are not copied."""
    import tensorflow as tf  # noqa: PLC0415 (lazy)

    if array.dtype.kind not in "uif" or array.size == 0:
        return tf.constant(array)  # DLPack does not support text
    if not _is_shareable(array):
        copy = empty(array.nbytes).view(array.dtype).reshape(array.shape)
        copy[...] = array  # tf.constant would temporarily hold three copies
        copy.flags.writeable = False
        array = copy
    owner: Any = array.base
    start = array.ctypes.data - owner.ctypes.data
    # DLPack rejects read-only arrays, so use a writeable view of the same memory.
    writeable = owner[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    return tf.experimental.dlpack.from_dlpack(writeable.__dlpack__())


def _is_shareable(array: np.ndarray) -> bool:
    """Returns whether an array is an aligned, read-only part of an array from ``empty``."""
    owner: Any = array.base
    is_buffer = isinstance(owner, np.ndarray) and owner.ndim == 1 and owner.dtype == np.uint8 and owner.flags.writeable
    aligned = array.flags.c_contiguous and array.ctypes.data % ALIGNMENT == 0
    return is_buffer and aligned and not array.flags.writeable
