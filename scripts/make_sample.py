"""Writes the embedded sample: the first 600 training and 100 test images of each class, in file order."""

from __future__ import annotations

import argparse
import gzip
import hashlib
import struct
import sys
from pathlib import Path

import numpy as np

# Replaces this folder, whose compare.py would shadow the package.
sys.path[0] = str(Path(__file__).resolve().parents[1])

from compare.engine.data import FILES, SAMPLE_FOLDER, Array, locate_fashion_mnist, read_fashion_mnist  # noqa: E402
from compare.errors import RequestError  # noqa: E402


def first_of_each_class(labels: Array, count: int) -> list[int]:
    """Returns ascending indices of the first ``count`` examples of each class; Fashion-MNIST's order is random."""
    return sorted(i for label in range(10) for i in np.flatnonzero(labels == label)[:count].tolist())


def idx(array: Array) -> bytes:
    """Encodes a uint8 array as an idx file."""
    return bytes((0, 0, 8, array.ndim)) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data-dir", type=Path, help="folder with all of Fashion-MNIST (default: search)")
    parser.add_argument("--out", type=Path, default=SAMPLE_FOLDER, help="output folder (default: the package)")
    args = parser.parse_args()
    try:
        source = locate_fashion_mnist(args.data_dir)
        if source.sample:
            raise RequestError(f"the full data set is required, but only the {source.description} was found")
        splits = read_fashion_mnist(source)
    except RequestError as error:
        parser.error(str(error))

    args.out.mkdir(parents=True, exist_ok=True)
    arrays = []
    for (images, labels), count in zip(splits, (600, 100), strict=True):
        chosen = first_of_each_class(labels, count)
        arrays += [images[chosen], labels[chosen]]
    for name, array in zip(FILES, arrays, strict=True):
        content = idx(array)
        # The header omits name and time, so that equal content gives an equal file.
        with (
            open(args.out / f"{name}.gz", "wb") as raw,
            gzip.GzipFile(filename="", mode="wb", compresslevel=9, fileobj=raw, mtime=0) as packed,
        ):
            packed.write(content)
        print(f'    "{name}": "{hashlib.sha256(content).hexdigest()}",')


if __name__ == "__main__":
    main()
