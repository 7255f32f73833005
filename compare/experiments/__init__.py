"""The built-in experiments, by name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from compare.experiment import Experiment
from compare.experiments.fashion_mnist import fashion_mnist, fashion_mnist_sample

BUILT_IN: dict[str, Callable[[Path | None], Experiment]] = {
    "fashion-mnist": fashion_mnist,
    "fashion-mnist-sample": fashion_mnist_sample,
}
"""Name to maker; a maker takes the folder to read from (None: wherever the data set is found)."""
