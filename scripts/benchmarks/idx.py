"""Reads Fashion-MNIST's idx files for the scripts that must do without the package."""

import gzip
from pathlib import Path

import numpy as np


def load(folder, examples):
    """The first so many training images and labels, then all test images and labels: uint8 arrays."""
    x_train, y_train = _read(folder, "train-images-idx3-ubyte", 16), _read(folder, "train-labels-idx1-ubyte", 8)
    x_test, y_test = _read(folder, "t10k-images-idx3-ubyte", 16), _read(folder, "t10k-labels-idx1-ubyte", 8)
    images = x_train.reshape(-1, 28, 28)[:examples], x_test.reshape(-1, 28, 28)
    return (images[0], y_train[:examples]), (images[1], y_test)


def _read(folder, name, header):
    packed = Path(folder) / f"{name}.gz"
    content = gzip.decompress(packed.read_bytes()) if packed.exists() else (Path(folder) / name).read_bytes()
    return np.frombuffer(content, np.uint8, offset=header)
