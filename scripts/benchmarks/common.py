"""What the benchmark's programs share; it works without this project's package."""

import argparse
import gzip
from pathlib import Path

import numpy as np


def parser(description, **leading):
    """Returns a parser for the leading arguments (name and help), the data's folder, the epochs and the examples."""
    created = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, text in leading.items():
        created.add_argument(name, help=text)
    created.add_argument("folder", type=Path, help="folder with Fashion-MNIST's files")
    created.add_argument("epochs", type=int, help="number of epochs")
    created.add_argument("examples", type=int, help="train on the first N images")
    return created


def load(folder, examples):
    """Returns the first training images and labels, then all test images and labels, as uint8 arrays."""
    x_train, y_train = _read(folder, "train-images-idx3-ubyte", 16), _read(folder, "train-labels-idx1-ubyte", 8)
    x_test, y_test = _read(folder, "t10k-images-idx3-ubyte", 16), _read(folder, "t10k-labels-idx1-ubyte", 8)
    images = x_train.reshape(-1, 28, 28)[:examples], x_test.reshape(-1, 28, 28)
    return (images[0], y_train[:examples]), (images[1], y_test)


def _read(folder, name, header):
    packed = folder / f"{name}.gz"
    content = gzip.decompress(packed.read_bytes()) if packed.exists() else (folder / name).read_bytes()
    return np.frombuffer(content, np.uint8, offset=header)


def cnn(keras):
    """Builds the tutorial's CNN with a known input shape."""
    return keras.Sequential(
        [
            keras.layers.Input((28, 28, 1)),
            keras.layers.Conv2D(32, 3, activation="relu"),
            keras.layers.MaxPooling2D(),
            keras.layers.Conv2D(64, 3, activation="relu"),
            keras.layers.MaxPooling2D(),
            keras.layers.Flatten(),
            keras.layers.Dense(64, activation="relu"),
            keras.layers.Dense(10),
        ]
    )


def report(epoch, epochs, logs):
    """Prints the line that the benchmark waits for at the end of an epoch."""
    values = (f"{name} {float(logs[name]):.4f}" for name in ("loss", "accuracy", "val_loss", "val_accuracy"))
    print(f"epoch {epoch}/{epochs}  " + "  ".join(values))
