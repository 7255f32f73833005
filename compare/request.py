"""What requests of several modes have in common: where results go, and what is trained; no TensorFlow here."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from compare.errors import RequestError

# Needed at run time too, for the signature of compare.run.
from compare.experiment import Experiment
from compare.naming import (
    PAGES_OF_RUNS,
    absolute,
    is_file,
    is_folder_name,
    is_utf8,
    label,
    margin,
    plain,
    refuse_missing,
    refuse_unwritten,
    source_and_attribute,
    unknown,
)
from compare.option import Converted, Group, flag, options_of
from compare.strategy_specs import CLUSTERS, MOST_REPLICAS, SPECS, StrategySpec
from compare.trainer import Trainer

EXPERIMENTS = {
    "fashion-mnist": "fashion_mnist:fashion_mnist",
    "fashion-mnist-sample": "fashion_mnist:fashion_mnist_sample",
    "fashion-mnist-softmax": "fashion_mnist:softmax",
    "fashion-mnist-functional": "fashion_mnist:functional",
    "fashion-mnist-subclassed": "fashion_mnist:subclassed",
    "regression": "regression:experiment",
    "segmentation": "segmentation:experiment",
    "weighted": "long_tail:weighted",
    "class-weighted": "long_tail:class_weighted",
    "regularized": "regularized:experiment",
    "batchnorm": "training_mode:batchnorm",
    "dropout": "training_mode:dropout",
    "densenet": "densenet:experiment",
    "transformer": "transformer:experiment",
    "ncf": "ncf:experiment",
    "nmt": "nmt:experiment",
    "mixed-precision": "mixed_precision:bfloat16",
    "mixed-precision-float16": "mixed_precision:float16",
}
"""The built-in experiments by name, each in a module of ``compare.experiments``, or a function that makes it there."""
TRAINERS = {
    "fit": "compare.trainers.keras_fit:KerasFit",
    "loop": "compare.trainers.custom_loop:CustomLoop",
    "train-step": "compare.trainers.train_step:TrainStep",
    "tutorial": "compare.trainers.tutorial:Tutorial",
}
"""The built-in trainers by name, each a class of a module."""
STRATEGIES = tuple(SPECS)
Texts = str | Sequence[str]
MaybePath = Converted[str | Path | None, Path | None]

COMPARED, DEVICES, EXECUTION = Group("what is compared"), Group("devices"), Group("execution of steps")
STUDIES, TWO_SCRIPTS = Group("studies of several seeds"), Group("two scripts")
LOGGED, TRAINING, RESULTS = Group("logs of trainings elsewhere"), Group("training"), Group("results")
GROUPS = (COMPARED, TWO_SCRIPTS, LOGGED, TRAINING, DEVICES, STUDIES, EXECUTION, RESULTS)
"""The headings of --help, in their order."""


LEGACY_KERAS = "TF_USE_LEGACY_KERAS"
"""The variable of the environment that has TensorFlow use tf-keras in place of Keras 3."""


def keras_of_the_environment() -> int:
    """The generation of Keras that ``LEGACY_KERAS`` asks for now, as TensorFlow reads it."""
    return 2 if os.environ.get(LEGACY_KERAS) in ("1", "true", "True") else 3


@dataclass(frozen=True, kw_only=True)
class Request:
    """One request, whatever its mode. Fields are options of the command of the same name, and declared with their help.

    Names of files begin ``here``, the working directory when it was asked for, which user code may change.
    """

    word: ClassVar[str] = ""
    """The subcommand, and the keyword of ``compare.run``, that choose the mode; the full training has none."""
    title: ClassVar[str] = ""
    """What the mode is called in messages."""
    ignored: ClassVar[str] = ""
    """An option of the full training that may stay where the mode is asked for by an option, as by ``--check``."""

    reports: Converted[str | Path, Path] = RESULTS.option(
        Path("reports"), "write results to DIR/NAME", metavar="DIR", kind=Path, may_change=True
    )
    name: str | None = RESULTS.option(
        None,
        "name of the folder in DIR; an existing one is refused",
        metavar="NAME",
        shown="made from the options",
        may_change=True,
    )
    quiet: bool = RESULTS.switch("print errors only, and a verdict that is not good", may_change=True)
    verbose: bool = RESULTS.switch(
        "also print versions, checksums and other details",
        more="the variables that differ first, and what could not be examined",
        may_change=True,
    )
    here: Path = field(default_factory=lambda: absolute(Path()), compare=False, repr=False)

    def __post_init__(self) -> None:
        for name, each in options_of(self).items():
            self._set(name, each.checked(name, getattr(self, name)))
        self._refuse()

    def _refuse(self) -> None:
        if self.name is not None and not is_folder_name(self.name):
            no_text = isinstance(self.name, str) and not is_utf8(self.name)
            advice = "this locale (LC_ALL, LANG) cannot read it; " if no_text else ""
            advice = "it is the name of a page beside the runs; " if self.name in PAGES_OF_RUNS else advice
            raise RequestError(
                f"--name {self.name!r}: {advice}give a plain folder name, it is made inside {self.reports}"
            )
        if self.quiet and self.verbose:
            raise RequestError("--quiet and --verbose contradict each other: leave out one")

    def refuse_given(self, names: Iterable[str], why: str) -> None:
        """Refuse options that have another value than their default."""
        for name in names:
            if getattr(self, name) != options_of(self)[name].default:
                raise RequestError(f"{flag(name)} {why}")

    def _set(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)

    def located(self, wanted: Any) -> Any:
        """A path, or the name of an experiment or a trainer, from the root if it is a file's; else as it is."""
        if isinstance(wanted, Path):
            return absolute(self.here / wanted)
        if not (isinstance(wanted, str) and is_file(wanted)):
            return wanted
        source, attribute = source_and_attribute(wanted)
        return f"{absolute(self.here / source)}{f':{attribute}' if attribute else ''}"

    @property
    def named(self) -> list[str]:
        """The experiment, trainers or scripts that were asked for by a text."""
        return []

    @property
    def goes_on(self) -> bool:
        """Whether an interrupted run is resumed."""
        return False

    def default_name(self) -> str:
        """A folder name that tells runs apart by what was asked."""
        raise NotImplementedError

    def _differing(self, *named: str) -> list[str]:
        """For a name, the options that change what is compared and have no default, but for those it has already."""
        parts = []
        for name, each in options_of(self).items():
            value = getattr(self, name)
            told = name in named or each.may_change or each.kind is Path or each.group in (STUDIES, RESULTS)
            if not told and value != each.default:
                values = () if value is True else value if isinstance(value, tuple) else (value,)
                parts += [name.replace("_", "-"), *(str(one).lstrip("-") for one in values)]
        return parts


@dataclass(frozen=True, kw_only=True)
class Replicas(Request):
    """Modes that run on several replicas."""

    replicas: Converted[int | Sequence[int] | None, int | None] = DEVICES.number(
        None,
        "number of replicas; without a GPU, N logical CPU devices are made; two numbers compare two sizes (not in a "
        "check)",
        most=MOST_REPLICAS,
        pair=True,
        shown="all visible devices",
    )

    @property
    def sizes(self) -> tuple[int, ...]:
        """The two numbers of replicas that are compared; empty if there is only one."""
        given: Any = self.replicas
        return given if isinstance(given, tuple) else ()

    @property
    def replica_count(self) -> int | None:
        """The one number of replicas; None for all devices."""
        given: Any = self.replicas
        return given if isinstance(given, int) else None


@dataclass(frozen=True, kw_only=True)
class Margins(Request):
    """Modes that may compare means over several seeds."""

    margin: Converted[Texts | None, tuple[str, ...] | None] = STUDIES.option(
        None,
        "with several seeds, the largest difference of two means that still counts as alike; with %% relative to the "
        "reference's mean",
        metavar="METRIC=VALUE[%]",
        several=True,
        shown="val_accuracy=0.01 val_loss=2%%",
        rare=True,
    )

    def _refuse(self) -> None:
        super()._refuse()
        metrics = [margin(text)[0] for text in (("",) if self.margin == () else self.margin or ())]
        if twice := next((each for each in metrics if metrics.count(each) > 1), None):
            raise RequestError(f"--margin has two values for {twice}: give one")


@dataclass(frozen=True, kw_only=True)
class StepByStep(Request):
    """Modes that compare single steps while training goes on."""

    stop_at_difference: bool = COMPARED.switch("end training as soon as a step differs")


@dataclass(frozen=True)
class Task(Replicas):
    """What the modes share that train an experiment with trainers."""

    of_one_size: ClassVar[bool] = True

    experiment: str | Experiment = COMPARED.option(
        "fashion-mnist",
        "what to train: a built-in experiment, or an Experiment in a file of your own",
        more=f"built in are {', '.join(EXPERIMENTS)}",
        metavar="NAME|FILE.py[:ATTR]",
    )
    _: KW_ONLY
    trainers: Converted[Sequence[str | Trainer], tuple[str | Trainer, ...]] = COMPARED.option(
        ("fit", "loop"),
        f"two or more trainers: {', '.join(TRAINERS)}, or FILE.py:ATTR for your own; the first is the reference",
        more="a trainer of your own may be package.module:ATTR too",
        metavar=("REF", "CAND"),
        kind=object,
        several=True,
        shown="fit loop",
    )
    strategy: str = DEVICES.option(
        "mirrored", f"the tf.distribute strategy: {', '.join(STRATEGIES)}", metavar="NAME", choices=STRATEGIES
    )
    workers: int | None = DEVICES.number(
        None,
        f"{' and '.join(CLUSTERS)}: number of local worker processes, unless TF_CONFIG names a cluster",
        shown="1",
        rare=True,
    )
    parameter_servers: int | None = DEVICES.number(
        None, "parameter-server: number of local server processes", shown="1", rare=True
    )
    keras: int = TRAINING.option(
        keras_of_the_environment, "generation of Keras; 2 is tf-keras", metavar="3|2", kind=int, choices=(3, 2)
    )
    batch_size: int = TRAINING.number(64, "examples per replica and step", most=2**31 - 1)
    seed: int = TRAINING.number(0, "seed of weights and order of examples", least=0, most=2**32 - 1)
    train_examples: int | None = TRAINING.number(
        None, "use only the first N training examples, for short trials", shown="all"
    )
    data_dir: MaybePath = TRAINING.option(
        None, "look for the data set's files in this folder only", metavar="DIR", kind=Path, rare=True
    )

    def _refuse(self) -> None:
        if len(self.trainers) < 2:
            raise RequestError("--trainers needs a reference and at least one candidate, such as: fit loop")
        wanted = self.experiment
        if isinstance(wanted, str) and wanted not in EXPERIMENTS and not is_file(wanted):
            known = unknown(wanted, EXPERIMENTS, ", or FILE.py[:ATTR] for your own")
            raise RequestError(f"--experiment {wanted}: {known}")
        for trainer in self.trainers:
            if isinstance(trainer, str) and trainer not in TRAINERS and not all(source_and_attribute(trainer)):
                if is_file(trainer):
                    raise RequestError(
                        f"--trainers {trainer}: name the trainer after a colon, as in {trainer}:MyLoop; "
                        "a script without one is compared by fit-vs-loop scripts"
                    )
                known = unknown(trainer, TRAINERS, ", or FILE.py:ATTR or package.module:ATTR for your own")
                raise RequestError(f"--trainers {trainer}: {known}")
        if self.spec.several_processes:
            self.refuse_given(["replicas"], f"has no meaning with --strategy {self.strategy}: use --workers")
        else:
            only = f"is for --strategy {' and '.join(CLUSTERS)}, not {self.strategy}: use --replicas"
            self.refuse_given(["workers"], only)
        if not self.spec.parameter_servers:
            self.refuse_given(["parameter_servers"], "is for --strategy parameter-server only")
        if self.spec.one_replica and max(self.replica_count or 1, *self.sizes, 1) > 1:
            raise RequestError(
                f"--strategy {self.strategy} has one replica, --replicas asks for {self.replicas}: "
                "use --strategy mirrored"
            )
        if self.sizes and self.of_one_size:
            raise RequestError("--replicas with two numbers is for a full training with one seed, and for scripts")
        super()._refuse()

    @property
    def spec(self) -> StrategySpec:
        return SPECS[self.strategy]

    @property
    def named(self) -> list[str]:
        return [each for each in (self.experiment, *self.trainers) if isinstance(each, str)]

    def refuse_missing_files(self) -> None:
        """Refuse files that are not there; at once, since TensorFlow is imported before files of users are."""
        for name in filter(is_file, self.named):
            file, attribute = source_and_attribute(self.located(name))
            refuse_missing(file)
            refuse_unwritten(file, attribute)

    @property
    def all_seeds(self) -> range:
        """The seeds of all trainings: one, or those of a study."""
        return range(self.seed, self.seed + 1)

    def default_name(self) -> str:
        parts = [label(self.experiment, "experiment"), *(label(trainer) for trainer in self.trainers), self.strategy]
        parts += [f"x{count}" for count in (*self.sizes, self.replica_count, self.workers) if count]
        parts += ["keras-2"] if self.keras == 2 else []
        first, *_, last = (*self.all_seeds, self.all_seeds[-1])
        seeds = f"seed-{first}" if len(self.all_seeds) == 1 else f"seeds-{first}-to-{last}"
        named = ("experiment", "trainers", "strategy", "replicas", "workers", "keras", "epochs", "seed")
        length = self.word or f"{vars(self)['epochs']}-epochs"
        name = "-".join([*parts, length, seeds, *self._differing(*named)])
        return plain(name).encode()[:120].decode(errors="ignore")  # a file system counts bytes
