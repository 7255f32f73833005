"""The built-in experiments, by name."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

from compare.errors import RequestError
from compare.experiment import Experiment
from compare.experiments import (
    densenet,
    fashion_mnist_models,
    long_tail,
    mixed_precision,
    ncf,
    nmt,
    regression,
    regularized,
    segmentation,
    training_mode,
    transformer,
)
from compare.experiments.fashion_mnist import fashion_mnist, fashion_mnist_sample

WITHOUT_FILES = (
    regression.experiment,
    segmentation.experiment,
    long_tail.weighted,
    long_tail.class_weighted,
    regularized.experiment,
    training_mode.batchnorm,
    training_mode.dropout,
    densenet.experiment,
    transformer.experiment,
    ncf.experiment,
    nmt.experiment,
    mixed_precision.bfloat16,
    mixed_precision.float16,
)
"""Experiments whose data is part of the package or generated."""


def _without_files(experiment: Experiment, data_dir: Path | None) -> Experiment:
    if data_dir is not None:
        raise RequestError(
            f"--data-dir has no effect with {experiment.name}, which reads no external files: leave it out"
        )
    return experiment


BUILT_IN: dict[str, Callable[[Path | None], Experiment]] = {
    "fashion-mnist": fashion_mnist,
    "fashion-mnist-sample": fashion_mnist_sample,
    "fashion-mnist-softmax": fashion_mnist_models.softmax,
    "fashion-mnist-functional": fashion_mnist_models.functional,
    "fashion-mnist-subclassed": fashion_mnist_models.subclassed,
    **{experiment.name: partial(_without_files, experiment) for experiment in WITHOUT_FILES},
}
"""Maps names to functions that create the experiment from the value of --data-dir, a folder or None."""
