"""What a user asks for, checked once, at the door; no TensorFlow here."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from importlib.util import find_spec
from numbers import Integral
from pathlib import Path
from typing import TYPE_CHECKING, Any

from compare.errors import RequestError

if TYPE_CHECKING:
    from compare.experiment import Experiment
    from compare.trainer import Trainer

EXPERIMENTS = (
    "fashion-mnist", "fashion-mnist-sample", "fashion-mnist-softmax", "fashion-mnist-functional",
    "fashion-mnist-subclassed", "regression", "segmentation", "weighted", "class-weighted", "regularized", "batchnorm",
    "dropout", "densenet", "transformer", "ncf", "nmt", "mixed-precision", "mixed-precision-float16",
)  # fmt: skip
"""The built-in experiments' names, as in ``compare.experiments``, which is not imported for --help."""
STRATEGIES = ("default", "one-device", "mirrored", "central-storage", "multi-worker", "parameter-server", "tpu")
ONE_REPLICA = ("default", "one-device")
BACKENDS = ("local", "dask")
ITERATIONS = ("for", "iterator", "function")
CLUSTERS = ("multi-worker", "parameter-server")
"""Strategies of several processes; each worker is one replica, or as many as it has GPUs."""


@dataclass(frozen=True)
class Execution:
    """How a trainer executes its steps, where that changes no number.

    Attributes:
        iteration: one of ``ITERATIONS``.
        steps_per_execution: optimizer steps per call of a ``tf.function``.
        jit_compile: whether XLA compiles them.
    """

    iteration: str = "for"
    steps_per_execution: int = 1
    jit_compile: bool = False


@dataclass(frozen=True, kw_only=True)
class Options:
    """One request; every field is the command's option of the same name.

    Attributes:
        experiment: a built-in experiment's name, ``FILE.py[:ATTR]``, or an ``Experiment``.
        trainers: two or more names, ``FILE.py:ATTR``, ``package.module:ATTR`` or trainers; the first
            is the reference.
        strategy: one of ``STRATEGIES``.
        replicas: how many replicas in this process; None for all visible devices.
        workers: local worker processes under a strategy of ``CLUSTERS``.
        parameter_servers: local parameter server processes under ``parameter-server``.
        keras: the Keras generation, 3, or 2 for the tf-keras package; by default 3, unless the environment
            variable TF_USE_LEGACY_KERAS says 2.
        epochs: how many epochs.
        batch_size: examples per replica and step.
        seed: of the initial weights, of the order of examples and of whatever else is random.
        seeds: a study: so many seeds, from ``seed`` on, for every trainer.
        margin: for a study, ``METRIC=VALUE`` or ``METRIC=VALUE%`` each: how far apart two means may be and
            still count as alike, absolutely or as a fraction of the reference; None for the defaults of
            ``compare.verdict.seeds``.
        jobs: how many of a study's runs at the same time, the processor's threads divided between them;
            None for as many as there are cores.
        backend: where a study's runs are made: ``local`` processes or ``dask`` workers.
        scheduler: the address of the Dask scheduler, such as ``tcp://127.0.0.1:8786``.
        train_examples: use only the first so many training examples; None for all.
        reports: the folder that holds the runs.
        name: the run's folder in ``reports``; None for one made from the options.
        data_dir: where the data set's files are; None for wherever they are found.
        iteration: how the built-in loop goes through an epoch: a Python ``for`` over batches, an ``iterator`` that a
            ``tf.function`` takes its batches from, or the whole epoch in one call of that ``function``. By default
            ``iterator``, the faster one, and ``for`` where there are several processes.
        steps_per_execution: optimizer steps per call of a ``tf.function``, in the built-in ``fit`` and ``loop``.
        jit: have XLA compile the steps of the built-in ``fit`` and ``loop``, without op determinism.
        parallel: train with all trainers at the same time, each in a process of its own, the processor's threads
            divided between them.
        truth: also train on one replica in float64, to tell which side is off.
        against: the folder of a recorded run to compare each trainer with its namesake there.
        check: only the short check, without a full training.
        force: train even where the preflight says that it cannot run.
        checkpoint_every: save model, optimizer, epoch and metrics whenever so many epochs have ended, and at
            the last; 0 for never.
        keep_checkpoints: how many of a trainer's checkpoints are kept.
        resume: go on with the run of this name after an interruption.
        export: save each trainer's final model as a SavedModel and as a ``.keras`` file.
        quiet: print errors only.
        verbose: also print versions, checksums, which variables differ first and what could not be looked at.
        tensorboard: also write a TensorBoard log, both trainers being runs of it.

    Raises:
        RequestError: when a value is not possible, alone or with the others.
    """

    experiment: str | Experiment = "fashion-mnist"
    trainers: tuple[str | Trainer, ...] = ("fit", "loop")
    strategy: str = "mirrored"
    replicas: int | None = None
    workers: int | None = None
    parameter_servers: int | None = None
    keras: int = field(
        default_factory=lambda: 2 if os.environ.get("TF_USE_LEGACY_KERAS") in ("1", "true", "True") else 3
    )
    epochs: int = 10
    batch_size: int = 64
    seed: int = 0
    seeds: int = 1
    margin: tuple[str, ...] | None = None
    jobs: int | None = None
    backend: str = "local"
    scheduler: str | None = None
    train_examples: int | None = None
    reports: Path = Path("reports")
    name: str | None = None
    data_dir: Path | None = None
    iteration: str | None = None
    steps_per_execution: int = 1
    jit: bool = False
    parallel: bool = False
    truth: bool = False
    against: Path | None = None
    check: bool = False
    force: bool = False
    checkpoint_every: int = 2
    keep_checkpoints: int = 3
    resume: bool = False
    export: bool = False
    quiet: bool = False
    verbose: bool = False
    tensorboard: bool = False

    def __post_init__(self) -> None:
        self._set("reports", _folder("reports", self.reports))
        if self.data_dir is not None:
            self._set("data_dir", _folder("data_dir", self.data_dir))
        if self.against is not None:
            self._set("against", _folder("against", self.against))
        for name in ("epochs", "batch_size", "seeds", "keep_checkpoints", "steps_per_execution"):
            self._set(name, _count(name, getattr(self, name), least=1))
        self._set("checkpoint_every", _count("checkpoint_every", self.checkpoint_every, least=0))
        for name in ("replicas", "workers", "parameter_servers", "train_examples", "jobs"):
            if getattr(self, name) is not None:
                self._set(name, _count(name, getattr(self, name), least=1))
        self._set("seed", _count("seed", self.seed, least=0, most=2**32 - 1))
        if self.seed + self.seeds > 2**32:
            raise RequestError(f"--seed {self.seed} with --seeds {self.seeds}: seeds end at {2**32 - 1}")
        self._check_study()
        self._check_execution()
        several = isinstance(self.trainers, Iterable) and not isinstance(self.trainers, str)
        self._set("trainers", tuple(self.trainers) if several else (self.trainers,))
        if len(self.trainers) < 2:
            raise RequestError("--trainers needs a reference and at least one candidate, such as: fit loop")
        if self.strategy not in STRATEGIES:
            raise RequestError(f"--strategy {self.strategy}: unknown; there are {', '.join(STRATEGIES)}")
        if self.strategy in ONE_REPLICA and (self.replicas or 1) > 1:
            raise RequestError(
                f"--strategy {self.strategy} has one replica, --replicas asks for {self.replicas}: "
                "use --strategy mirrored"
            )
        if self.strategy in CLUSTERS and self.replicas is not None:
            raise RequestError(
                f"--strategy {self.strategy} has a replica per worker, not --replicas {self.replicas}: use --workers"
            )
        if self.strategy not in CLUSTERS and self.workers is not None:
            raise RequestError(
                f"--workers {self.workers} is for --strategy {' and '.join(CLUSTERS)}, not {self.strategy}: "
                "use --replicas"
            )
        if self.strategy != "parameter-server" and self.parameter_servers is not None:
            raise RequestError(f"--parameter-servers {self.parameter_servers} is for --strategy parameter-server only")
        if self.quiet and self.verbose:
            raise RequestError("--quiet and --verbose ask for opposites: leave out one")
        if self.tensorboard and find_spec("tensorboard") is None:
            raise RequestError('--tensorboard needs the package tensorboard: pip install "fit-vs-loop[tensorboard]"')
        if self.keras not in (2, 3):
            raise RequestError(f"--keras {self.keras}: there are 3 and 2")
        if self.against is not None and not (self.against / "metrics.csv").is_file():
            raise RequestError(f"--against {self.against}: no recorded run is there (a folder with a metrics.csv)")
        for name, given in {"--resume": self.resume, "--export": self.export}.items():
            if given and self.check:
                raise RequestError(f"{name} is for a full training, and --check is none: leave one of them out")
        if self.export and self.seeds > 1:
            raise RequestError(f"--export saves the models of one seed, not of {self.seeds}: leave out --seeds")
        if self.name is not None and not _is_folder_name(self.name):
            raise RequestError(f"--name {self.name!r}: give a plain folder name, it is made inside {self.reports}")

    def _check_study(self) -> None:
        if self.margin is not None:
            self._set("margin", (self.margin,) if isinstance(self.margin, str) else tuple(self.margin))
            for text in self.margin or ("",):
                margin(text)
        asked = {"--margin": self.margin, "--jobs": self.jobs, "--scheduler": self.scheduler}
        given = [name for name, value in asked.items() if value is not None]
        given += ["--backend"] if self.backend != "local" else []
        if given and self.seeds == 1:
            raise RequestError(f"{given[0]} is for a study of several seeds: add --seeds N")
        if self.seeds > 1 and self.check:
            raise RequestError(f"--check trains too little for a study: leave out --seeds {self.seeds}, or --check")
        if self.backend not in BACKENDS:
            raise RequestError(f"--backend {self.backend}: unknown; there are {', '.join(BACKENDS)}")
        if (self.backend == "dask") != (self.scheduler is not None):
            raise RequestError("--backend dask and --scheduler tcp://HOST:PORT go together: give both, or neither")
        if self.strategy in CLUSTERS and (self.backend != "local" or self.jobs is not None):
            raise RequestError(
                f"--strategy {self.strategy} starts processes of its own for every run: leave out --jobs and --backend"
            )

    def _check_execution(self) -> None:
        if self.iteration is not None and self.iteration not in ITERATIONS:
            raise RequestError(f"--iteration {self.iteration}: unknown; there are {', '.join(ITERATIONS)}")
        several = self.steps_per_execution > 1
        if several and self.iteration == "for":
            raise RequestError(
                f"--iteration for makes one step per call, not --steps-per-execution {self.steps_per_execution}: "
                "use --iteration iterator"
            )
        if several and self.iteration == "function":
            raise RequestError(
                "--iteration function makes all steps of an epoch in one call, not --steps-per-execution "
                f"{self.steps_per_execution}: leave one of them out"
            )
        asked = {"--iteration": self.iteration, "--steps-per-execution": several, "--jit": self.jit}
        given = [name for name, value in asked.items() if value]
        if given and self.strategy == "parameter-server":
            raise RequestError(f"{given[0]}: a parameter server's coordinator sends out single steps: leave it out")
        if given and self.check:
            raise RequestError(
                f"{given[0]} is for a full training; --check looks at single steps: leave one of them out"
            )

        if self.parallel and (self.check or self.seeds > 1 or self.strategy in CLUSTERS):
            why = {
                "--check is one process": self.check,
                "a study's runs are parallel already (--jobs)": self.seeds > 1,
                f"--strategy {self.strategy} has processes of its own": self.strategy in CLUSTERS,
            }
            raise RequestError(f"--parallel: {next(text for text, so in why.items() if so)}; leave it out")

    @property
    def execution(self) -> Execution:
        """How the built-in trainers execute their steps."""
        from_python = self.strategy in CLUSTERS and self.steps_per_execution == 1
        iteration = self.iteration or ("for" if from_python else "iterator")
        return Execution(iteration, self.steps_per_execution, self.jit)

    def _set(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)

    @property
    def all_seeds(self) -> range:
        """The seeds of all runs: one, or those of a study."""
        return range(self.seed, self.seed + self.seeds)

    def as_json(self) -> dict[str, Any]:
        """All options as plain values; objects by their name."""
        content = {field.name: getattr(self, field.name) for field in fields(self)}
        content["experiment"] = _text(self.experiment)
        content["trainers"] = [_text(trainer) for trainer in self.trainers]
        return {name: str(value) if isinstance(value, Path) else value for name, value in content.items()}

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> Options:
        """The options that ``as_json`` gave; possible where experiment and trainers were names."""
        return cls(**content)

    def default_name(self) -> str:
        """A folder name that tells runs apart by what was asked."""
        parts = [label(self.experiment), *(label(trainer) for trainer in self.trainers), self.strategy]
        parts += [f"x{count}" for count in (self.replicas, self.workers) if count]
        parts += ["keras-2"] if self.keras == 2 else []
        parts += ["check"] if self.check else []
        seeds = f"seed-{self.seed}" if self.seeds == 1 else f"seeds-{self.seed}-to-{self.seed + self.seeds - 1}"
        name = "-".join([*parts, f"{self.epochs}-epochs", seeds])
        plain = "".join(c if c.isalnum() or c in "-_." else "-" for c in name)
        return plain.encode()[:120].decode(errors="ignore")  # a file system counts bytes


def margin(text: str) -> tuple[str, float, bool]:
    """``METRIC=VALUE`` or ``METRIC=VALUE%``: the metric, the value or fraction, and whether it is a fraction.

    Raises:
        RequestError: when it is neither.
    """
    metric, equals, value = str(text).rpartition("=")
    relative = value.endswith("%")
    try:
        number = float(value.removesuffix("%")) / (100 if relative else 1)
    except ValueError:
        number = 0.0
    if not (metric and equals and 0 < number < float("inf")):
        raise RequestError(f"--margin {text!r}: give METRIC=VALUE or METRIC=VALUE%, such as val_accuracy=0.01")
    return metric, number, relative


def _text(thing: Any) -> str:
    return thing if isinstance(thing, str) else label(thing)


def label(thing: Any) -> str:
    """What an experiment or trainer is called: the text it was asked for by, or its own name."""
    if isinstance(thing, str):
        return Path(source_and_attribute(thing)[0]).stem if is_file(thing) else thing
    return str(getattr(thing, "name", type(thing).__name__))


def is_file(wanted: str) -> bool:
    """Whether a name means a Python file, with or without an attribute."""
    return source_and_attribute(wanted)[0].endswith(".py")


def source_and_attribute(wanted: str) -> tuple[str, str]:
    """``SOURCE:ATTR`` in its two parts; the second is empty where there is none."""
    source, colon, attribute = wanted.rpartition(":")
    return (source, attribute) if colon and not wanted.endswith(".py") else (wanted, "")


def _count(name: str, value: Any, *, least: int, most: int | None = None) -> int:
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise RequestError(f"{_option(name)} {value!r}: give a whole number")
    number = int(value)  # NumPy's own would not do for JSON
    if number < least or (most is not None and number > most):
        bounds = f"at least {least}" if most is None else f"from {least} to {most}"
        raise RequestError(f"{_option(name)} {number}: give a whole number, {bounds}")
    return number


def _folder(name: str, value: Any) -> Path:
    if not isinstance(value, str | os.PathLike) or "\0" in str(value):
        raise RequestError(f"{_option(name)} {value!r}: give a folder")
    return Path(value)


def _is_folder_name(name: Any) -> bool:
    if not isinstance(name, str) or name in ("", ".", "..") or any(c in name for c in "/\\"):
        return False
    return name.isprintable() and len(name.encode()) < 256  # what file systems allow


def _option(name: str) -> str:
    return "--" + name.replace("_", "-")
