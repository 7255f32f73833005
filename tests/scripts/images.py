"""The embedded sample of Fashion-MNIST, as ``tf.keras.datasets.fashion_mnist.load_data`` gives the whole."""

import gzip
from pathlib import Path

import numpy as np

FOLDER = Path(__file__).resolve().parents[2] / "compare" / "datasets" / "fashion-mnist-sample"


def load_data():
    def read(name, header):
        return np.frombuffer(gzip.decompress((FOLDER / name).read_bytes()), np.uint8, offset=header)

    def part(name):
        return read(f"{name}-images-idx3-ubyte.gz", 16).reshape(-1, 28, 28), read(f"{name}-labels-idx1-ubyte.gz", 8)

    return part("train"), part("t10k")
