"""Finds, verifies and reads Fashion-MNIST, or the small sample of it that is part of the package."""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import math
import os
import struct
import sys
import tempfile
import zlib
from dataclasses import dataclass, replace
from io import BufferedIOBase
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from compare.engine import memory
from compare.errors import RequestError

FULL_SHA256 = {
    "train-images-idx3-ubyte": "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
    "train-labels-idx1-ubyte": "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
    "t10k-images-idx3-ubyte": "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
    "t10k-labels-idx1-ubyte": "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
}
"""The four files of Fashion-MNIST and the SHA-256 of their uncompressed content (gzip files may differ)."""

SAMPLE_SHA256 = {
    "train-images-idx3-ubyte": "cf313073c7eb485392848071d5c433571d7166043e971e3345b095cc30518084",
    "train-labels-idx1-ubyte": "097b93fbcf9bd5bc648b1a457ddc55c9e4ab49afb33f9ecae8ce068399a75e3a",
    "t10k-images-idx3-ubyte": "7cee33c3c6414b1b86c25e665a6c4f41584269de3b7cc9768b1d351922845eef",
    "t10k-labels-idx1-ubyte": "3128d790775889812b73c4f13923559c8b9e281d112c6ea7862acf60a206a909",
}
"""The same for the embedded sample: the first 600 training and 100 test images of each class, in file order."""

FILES = tuple(FULL_SHA256)
LARGEST = 60_000 * 28 * 28
"""Size of the largest file in bytes; limits the memory allocated because of a damaged header."""
DEBIAN_FOLDER = Path("/usr/share/datasets/fashion-mnist")
DEBIAN_PACKAGE = "dataset-fashion-mnist"
SAMPLE_FOLDER = Path(__file__).parents[1] / "datasets" / "fashion-mnist-sample"
ORIGIN = "https://storage.googleapis.com/tensorflow/tf-keras-datasets/"

Array = NDArray[np.uint8]
Split = tuple[Array, Array]
"""Images (N, 28, 28) with grey values 0..255 and labels (N,) 0..9, both read-only uint8."""


@dataclass(frozen=True)
class Source:
    """A folder with the four files of Fashion-MNIST or of its sample, each as ``NAME.gz`` or uncompressed as ``NAME``.

    Attributes:
        sample: whether it is the embedded sample instead of all of Fashion-MNIST.
        remedy: what to do about a damaged file.
    """

    folder: Path
    description: str
    sample: bool = False
    remedy: str = "replace it with an intact copy"


SAMPLE = Source(
    SAMPLE_FOLDER, "embedded sample of Fashion-MNIST (6,000 / 1,000 images)", True, "reinstall this package"
)


def keras_cache() -> Path:
    """Returns the folder in which ``tf.keras.datasets.fashion_mnist`` stores its files."""
    return Path(os.path.expanduser(os.environ.get("KERAS_HOME") or "~/.keras")) / "datasets" / "fashion-mnist"


def locate_fashion_mnist(data_dir: Path | None = None) -> Source:
    """Finds Fashion-MNIST without reading it.

    Data is looked for in this order: Keras's cache, Debian's package, a download into Keras's cache, and finally the
    embedded sample, whose description then gives the reason. If ``data_dir`` is given, it is only looked for there.

    Raises:
        RequestError: if ``data_dir`` is not a folder with all four files.
    """
    if data_dir is not None:
        return _given(data_dir)
    cache = keras_cache()
    reinstall = f"run apt-get install --reinstall {DEBIAN_PACKAGE}"
    if _missing(cache) and not _missing(DEBIAN_FOLDER):
        return Source(DEBIAN_FOLDER, f"Fashion-MNIST from {DEBIAN_FOLDER}", remedy=reinstall)
    try:
        if _missing(cache):
            _download(cache)
        remedy = "delete it; the next run will find or download Fashion-MNIST again"
        return Source(cache, f"Fashion-MNIST from {cache}", remedy=remedy)
    except Exception as error:  # Keras raises plain Exception; the sample is the fallback in any case
        why = (
            f"because the full dataset was not found in {cache} or {DEBIAN_FOLDER}, and the download from {ORIGIN} "
            f"failed ({' '.join(str(error).split())}); to use it, connect to the internet, install Debian's package "
            f"{DEBIAN_PACKAGE}, or specify its folder with --data-dir"
        )
        return replace(SAMPLE, description=f"{SAMPLE.description}, {why}")


def read_fashion_mnist(source: Source) -> tuple[Split, Split]:
    """Reads and verifies Fashion-MNIST or its sample.

    Source: Xiao, Rasul, Vollgraf (2017), https://github.com/zalandoresearch/fashion-mnist.

    Returns:
        ``((x_train, y_train), (x_val, y_val))``. All arrays are read-only uint8: images (N, 28, 28) and labels (N,).
        N is 60,000 for training and 10,000 for validation (the test set of Fashion-MNIST), or 6,000 and 1,000 for the
        sample.
    """
    digests = SAMPLE_SHA256 if source.sample else FULL_SHA256
    x_train, y_train, x_val, y_val = (_read(source, name, digest) for name, digest in digests.items())
    return (x_train, y_train), (x_val, y_val)


def _given(folder: Path) -> Source:
    expected = f"expected a folder with {', '.join(FILES)}, each with or without .gz"
    if not os.path.isdir(folder):
        problem = "is not a folder" if os.path.exists(folder) else "does not exist"
        raise RequestError(f"{folder} {problem}: {expected}")
    if missing := _missing(folder):
        raise RequestError(f"{folder} lacks {', '.join(missing)}: {expected}")
    return Source(folder, f"Fashion-MNIST from {folder}")


def _path(folder: Path, name: str) -> Path:
    """Returns the path of ``NAME.gz``, or of ``NAME`` if only the uncompressed file exists."""
    packed, plain = folder / f"{name}.gz", folder / name
    # Unlike Path.is_file, os.path.isfile returns False for a folder without access permission.
    return plain if os.path.isfile(plain) and not os.path.isfile(packed) else packed


def _missing(folder: Path) -> list[str]:
    return [name for name in FILES if not os.path.isfile(_path(folder, name))]


def _read(source: Source, name: str, digest: str) -> Array:
    path = _path(source.folder, name)
    try:
        with open(path, "rb") as packed, gzip.open(packed) if path.suffix == ".gz" else packed as file:
            return _read_idx(file, dimensions=3 if "images" in name else 1, digest=digest)
    except (OSError, EOFError, zlib.error, ValueError) as error:
        raise RequestError(f"{path} cannot be used ({error}): {source.remedy}") from error


def _read_idx(file: BufferedIOBase, dimensions: int, digest: str) -> Array:
    """Reads a file in the idx format of http://yann.lecun.com/exdb/mnist/: magic number, shape, then the data.

    The data is read directly into memory that TensorFlow can use without copying.
    """
    start, unsigned_bytes = 4 + 4 * dimensions, 8
    header = file.read(start)
    if len(header) < start or header[:4] != bytes((0, 0, unsigned_bytes, dimensions)):
        raise ValueError(f"it is not an idx file of bytes with {dimensions} dimension(s)")
    shape = struct.unpack(f">{dimensions}I", header[4:])
    size = math.prod(shape)
    if size > LARGEST:
        raise ValueError(f"it has at most {LARGEST} bytes of data where its header says {size}")
    array = memory.empty(size)
    total = file.readinto(array.data) + len(file.read(1))
    if total != size:
        actual = total if total < size else f"more than {size}"
        raise ValueError(f"it has {actual} bytes of data where its header says {size}")
    content = hashlib.sha256(header)
    content.update(array.data)
    if content.hexdigest() != digest:
        raise ValueError("its content differs from the original, by SHA-256")
    array.flags.writeable = False
    return array.reshape(shape)


def _download(folder: Path) -> None:
    """Downloads all four files into ``folder`` and verifies them; on failure, no file is left behind."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".download-", dir=folder) as name:
        staging = Source(Path(name), "the download", remedy="try again")
        for file, digest in FULL_SHA256.items():
            _fetch(f"{file}.gz", staging.folder)
            _read(staging, file, digest)
        for path in staging.folder.iterdir():
            path.replace(folder / path.name)


def _fetch(file: str, folder: Path) -> None:
    """Downloads one file as ``tf.keras.datasets.fashion_mnist`` does."""
    import tensorflow as tf  # noqa: PLC0415 (lazy)

    with contextlib.redirect_stdout(sys.stderr):  # the progress bar must not mix with results on stdout
        tf.keras.utils.get_file(file, origin=ORIGIN + file, cache_subdir=str(folder.absolute()))
