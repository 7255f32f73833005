"""What a user asks for: every option declared once, and checked at the door; no TensorFlow here."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from copy import copy
from dataclasses import KW_ONLY, Field, dataclass, fields, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from compare.errors import RequestError
from compare.execution import ITERATIONS, Execution

# Needed at run time too, for the signature of compare.run.
from compare.experiment import Experiment
from compare.naming import absolute, is_file, is_folder_name, label, margin, source_and_attribute, unknown
from compare.option import TRAINING, Converted, Option, default_of, flag, number, option, switch
from compare.situations import (
    FULL_TRAINING,
    NO_CHECKPOINTS,
    OWN_PROCESSES,
    SCRIPTS,
    SINGLE_STEPS,
    SITUATIONS,
    STEP_BY_STEP,
    STUDY,
)
from compare.strategy_specs import CLUSTERS, MOST_REPLICAS, SPECS, StrategySpec
from compare.trainer import Trainer
from compare.watch.settings import MADE_ALIKE

EXPERIMENTS = (
    "fashion-mnist", "fashion-mnist-sample", "fashion-mnist-softmax", "fashion-mnist-functional",
    "fashion-mnist-subclassed", "regression", "segmentation", "weighted", "class-weighted", "regularized", "batchnorm",
    "dropout", "densenet", "transformer", "ncf", "nmt", "mixed-precision", "mixed-precision-float16",
)  # fmt: skip
"""The built-in experiments' names, as in ``compare.experiments``, which is not imported for --help."""
TRAINERS = ("fit", "loop", "train-step", "tutorial")
"""The built-in trainers' names, as in ``compare.app.loading``."""
STRATEGIES = tuple(SPECS)
Texts = str | Sequence[str]
MaybePath = Converted[str | Path | None, Path | None]
BACKENDS = ("local", "dask")

COMPARED, DEVICES, EXECUTION = "what is compared", "devices", "execution of steps"
STUDIES, RESULTS, TWO_SCRIPTS, LOGS = (
    "studies of several seeds",
    "results",
    "two scripts",
    "logs of trainings elsewhere",
)
ONE_PROCESS = {
    "check": "cannot be combined with --check, which divides its work by itself; leave it out",
    "study": "cannot be combined with --seeds: a study's runs are parallel already (--jobs); leave it out",
    "several processes": "cannot be combined with --strategy {strategy}, which has processes of its own; leave it out",
}
GROUPS = (COMPARED, TWO_SCRIPTS, LOGS, TRAINING, DEVICES, STUDIES, EXECUTION, RESULTS)
"""The headings of --help, in their order."""


def _keras_of_the_environment() -> int:
    return 2 if os.environ.get("TF_USE_LEGACY_KERAS") in ("1", "true", "True") else 3


@dataclass(frozen=True)
class Options:
    """One request. Every field is an option of the command of the same name, and declared with its help.

    Raises:
        RequestError: when a value is not possible, alone or together with the others.
    """

    experiment: str | Experiment = option(
        "fashion-mnist",
        f"what to train: {', '.join(EXPERIMENTS)}, or an Experiment in a file of your own",
        metavar="NAME|FILE.py[:ATTR]",
        group=COMPARED,
    )
    _: KW_ONLY
    trainers: Converted[Sequence[str | Trainer], tuple[str | Trainer, ...]] = option(
        ("fit", "loop"),
        f"two or more trainers: {', '.join(TRAINERS)}, or FILE.py:ATTR or package.module:ATTR for your own; the first "
        "is the reference",
        metavar=("REF", "CAND"),
        several=True,
        shown="fit loop",
        group=COMPARED,
    )
    strategy: str = option(
        "mirrored",
        f"the tf.distribute strategy: {', '.join(STRATEGIES)}",
        metavar="NAME",
        choices=STRATEGIES,
        group=DEVICES,
    )
    replicas: int | None = number(
        None,
        "number of replicas; without a GPU, N logical CPU devices are made",
        most=MOST_REPLICAS,
        shown="all visible devices",
        refused={"several processes": "has no meaning with --strategy {strategy}: use --workers"},
        with_scripts=True,
        group=DEVICES,
    )
    workers: int | None = number(
        None,
        f"{' and '.join(CLUSTERS)}: number of local worker processes, unless TF_CONFIG names a cluster",
        shown="1",
        refused={"one process": f"is for --strategy {' and '.join(CLUSTERS)}, not {{strategy}}: use --replicas"},
        group=DEVICES,
    )
    parameter_servers: int | None = number(
        None,
        "parameter-server: number of local server processes",
        shown="1",
        refused={"no parameter servers": "is for --strategy parameter-server only"},
        group=DEVICES,
    )
    keras: int = option(
        None,
        "Keras generation; 2 is the tf-keras package",
        default_factory=_keras_of_the_environment,
        metavar="3|2",
        kind=int,
        choices=(3, 2),
    )
    epochs: int = number(10, "number of epochs", most=1_000_000)
    batch_size: int = number(64, "examples per replica and step", most=2**31 - 1)
    seed: int = number(0, "seed of the initial weights and of the order of examples", least=0, most=2**32 - 1)
    seeds: int = number(
        1,
        "a study: train every trainer with N seeds, starting at --seed, and judge by paired differences",
        most=10_000,
        group=STUDIES,
    )
    margin: Converted[str | Sequence[str] | None, tuple[str, ...] | None] = option(
        None,
        "in a study, how far apart two means may be and still count as alike; with %% relative to the reference's mean",
        metavar="METRIC=VALUE[%]",
        several=True,
        shown="val_accuracy=0.01 val_loss=2%%",
        refused={"single seed": STUDY["single seed"]},
        with_logs=True,
        group=STUDIES,
    )
    jobs: int | None = number(
        None,
        "in a study, run at most N trainings in parallel",
        shown="one per core",
        refused=STUDY | OWN_PROCESSES,
        group=STUDIES,
    )
    backend: str = option(
        "local",
        "in a study, where trainings run: in local processes or on dask workers",
        metavar="NAME",
        choices=BACKENDS,
        refused=STUDY | OWN_PROCESSES,
        group=STUDIES,
    )
    scheduler: str | None = option(
        None,
        "with --backend dask, the scheduler's address",
        metavar="tcp://HOST:PORT",
        refused=STUDY,
        group=STUDIES,
    )
    train_examples: int | None = number(
        None,
        "use only the first N training examples, for short trials",
        shown="all",
    )
    reports: Converted[str | Path, Path] = option(
        Path("reports"),
        "write results to DIR/NAME",
        metavar="DIR",
        kind=Path,
        may_change=True,
        with_scripts=True,
        group=RESULTS,
        with_logs=True,
    )
    name: str | None = option(
        None,
        "the name of the folder in DIR; an existing one is refused",
        metavar="NAME",
        shown="made from the options",
        may_change=True,
        with_scripts=True,
        group=RESULTS,
        with_logs=True,
    )
    data_dir: MaybePath = option(None, "the only folder to look for the data set's files in", metavar="DIR", kind=Path)
    iteration: str | None = option(
        None,
        "how loop iterates over an epoch: a Python for over batches, an iterator inside a tf.function, or the whole "
        "epoch in one call of a tf.function",
        metavar="WAY",
        choices=ITERATIONS,
        shown="iterator; for with several processes",
        refused=SINGLE_STEPS,
        group=EXECUTION,
    )
    steps_per_execution: int = number(
        1,
        "fit and loop run K steps per call of a tf.function; weights are compared after each call",
        metavar="K",
        refused=SINGLE_STEPS,
        group=EXECUTION,
    )
    jit: bool = switch(
        "compile the steps of fit and loop with XLA; turns op determinism off",
        refused=SINGLE_STEPS,
        group=EXECUTION,
    )
    parallel: bool = switch(
        "run all trainers at the same time, in processes that share the processor's threads; the command does so by "
        "itself where there are processors and memory for it, and no GPU",
        refused=ONE_PROCESS,
        group=EXECUTION,
    )
    sequential: bool = switch(
        "train one trainer after the other, each with all of the processor's threads",
        refused=ONE_PROCESS,
        group=EXECUTION,
    )
    truth: bool = switch(
        "also train on one replica in float64, to show which side is off",
        refused=FULL_TRAINING | {"study": "trains with one seed, and a study has {seeds}: leave one of them out"},
        group=COMPARED,
    )
    against: MaybePath = option(
        None,
        "also compare each trainer with the trainer of the same name in an earlier comparison's folder",
        metavar="DIR/NAME",
        kind=Path,
        refused=FULL_TRAINING,
        group=COMPARED,
    )
    check: bool = switch(
        "run only the short check (seconds), without a full training",
        refused={"study": "trains too little for a study: leave out --seeds {seeds}, or --check"},
        group=COMPARED,
    )
    force: bool = switch("train even where one side is known not to run (with other versions, for example)")
    checkpoint_every: int = number(
        2,
        "save model, optimizer, epoch and metrics every N epochs and after the last; 0 means never",
        least=0,
        refused=NO_CHECKPOINTS,
        group=RESULTS,
    )
    keep_checkpoints: int = number(
        3,
        "keep each trainer's last N checkpoints",
        refused=NO_CHECKPOINTS,
        group=RESULTS,
    )
    resume: bool = switch(
        "continue an interrupted comparison: give the same options, and its --name if it had one",
        refused=FULL_TRAINING,
        may_change=True,
        group=RESULTS,
    )
    export: bool = switch(
        "save each final model as a SavedModel and a .keras file",
        refused=FULL_TRAINING | {"study": "saves the models of one seed, not of {seeds}: leave out --seeds"},
        group=RESULTS,
    )
    quiet: bool = switch(
        "print errors only",
        may_change=True,
        with_scripts=True,
        with_logs=True,
        group=RESULTS,
    )
    verbose: bool = switch(
        "also print versions, checksums, the variables that differ first, and what could not be examined",
        may_change=True,
        with_scripts=True,
        with_logs=True,
        group=RESULTS,
    )
    tensorboard: bool = switch(
        "also write a TensorBoard log to DIR/NAME/tensorboard while training: one curve per trainer, the weight gap "
        "per step, the verdict as text",
        may_change=True,
        group=RESULTS,
    )
    scripts: Converted[Texts, tuple[str, ...]] = option(
        (),
        "compare two training scripts, run unedited, or one that trains twice; the first is the reference; "
        "files that they save are really written; their own arguments follow --",
        metavar=("FIT.py", "LOOP.py"),
        several=True,
        with_scripts=True,
        group=TWO_SCRIPTS,
    )
    script_arguments: Converted[Texts, tuple[str, ...]] = option(
        (),
        "with scripts, their own arguments; in the command they follow --",
        several=True,
        with_scripts=True,
        python_only=True,
        refused=SCRIPTS,
        group=TWO_SCRIPTS,
    )
    max_steps: int = number(
        2000,
        "with --scripts, end each training after N optimizer steps",
        with_scripts=True,
        refused=SCRIPTS,
        group=TWO_SCRIPTS,
    )
    write_experiment: MaybePath = option(
        None,
        "with --scripts, also write an Experiment made from what a script gives to compile and fit",
        metavar="FILE.py",
        kind=Path,
        with_scripts=True,
        refused=SCRIPTS,
        group=TWO_SCRIPTS,
    )
    stop_at_difference: bool = switch(
        "end training as soon as a step differs",
        with_scripts=True,
        refused=STEP_BY_STEP,
        group=COMPARED,
    )
    own: Converted[Texts, tuple[str, ...]] = option(
        (),
        "with --scripts, what is not made alike: seeds, weights (the initial ones), order (of examples)",
        metavar=("seeds", "weights"),
        several=True,
        with_scripts=True,
        refused=SCRIPTS,
        group=TWO_SCRIPTS,
    )
    logs: Converted[Texts, tuple[str, ...]] = option(
        (),
        "only draw and compare what trainings elsewhere have logged, without weights: CSV files, TensorBoard folders; "
        "the first is the reference; names that differ in a number are seeds",
        metavar=("FIT.csv", "LOOP.csv"),
        several=True,
        with_logs=True,
        group=LOGS,
    )

    def __post_init__(self) -> None:
        for declared in fields(self):
            value = getattr(self, declared.name)
            self._set(declared.name, declaration(declared).checked(declared.name, value, default_of(declared)))
        for name in ("scripts", "script_arguments", "own", "logs"):
            value = getattr(self, name)
            self._set(name, (str(value),) if isinstance(value, str | Path) else tuple(map(str, value)))
        several = isinstance(self.trainers, Iterable) and not isinstance(self.trainers, str)
        self._set("trainers", tuple(self.trainers) if several else (self.trainers,))
        if len(self.trainers) < 2:
            raise RequestError("--trainers needs a reference and at least one candidate, such as: fit loop")
        self._refuse_unknown_names()
        self._refuse_by_situation()
        self._refuse_combinations()
        if self.margin is not None:
            self._set("margin", (self.margin,) if isinstance(self.margin, str) else tuple(self.margin))
            for text in self.margin or ("",):
                margin(text)
        if self.tensorboard and find_spec("tensorboard") is None:
            raise RequestError('--tensorboard needs the package tensorboard: pip install "fit-vs-loop[tensorboard]"')
        if self.against is not None and not (self.against / "metrics.csv").is_file():
            raise RequestError(
                f"--against {self.against}: no recorded comparison is there (a folder with a metrics.csv)"
            )
        if self.against is not None:  # it is read again after training, and with the reports
            self._set("against", absolute(self.against))
        if self.name is not None and not is_folder_name(self.name):
            raise RequestError(f"--name {self.name!r}: give a plain folder name, it is made inside {self.reports}")

    def _refuse_unknown_names(self) -> None:
        """Refuse an experiment and trainers that are neither built in nor of the user's own."""
        wanted = self.experiment
        if isinstance(wanted, str) and wanted not in EXPERIMENTS and not is_file(wanted):
            known = unknown(wanted, EXPERIMENTS, ", or FILE.py[:ATTR] for your own")
            raise RequestError(f"--experiment {wanted}: {known}")
        for trainer in self.trainers:
            if isinstance(trainer, str) and trainer not in TRAINERS and not all(source_and_attribute(trainer)):
                known = unknown(trainer, TRAINERS, ", or FILE.py:ATTR or package.module:ATTR for your own")
                raise RequestError(f"--trainers {trainer}: {known}")

    def _refuse_by_situation(self) -> None:
        """Refuse what was declared to be refused in this situation."""
        for declared in fields(self):
            value = getattr(self, declared.name)
            if value == default_of(declared):
                continue
            if self.scripts and not declaration(declared).with_scripts:
                raise RequestError(f"{flag(declared.name)} has no meaning with --scripts, which train as written")
            if self.logs and not declaration(declared).with_logs:
                raise RequestError(f"{flag(declared.name)} has no meaning with --logs, where nothing is trained")
            for reason in self._reasons_against(declared):
                raise RequestError(f"{flag(declared.name)} {reason.format(strategy=self.strategy, seeds=self.seeds)}")

    def _reasons_against(self, declared: Field[Any]) -> list[str]:
        """Why an option is refused in this situation."""
        refused = declaration(declared).refused
        return [reason for situation, reason in refused.items() if SITUATIONS[situation](self)]

    def changed(self, **changes: Any) -> Options:
        """The same request with other values; options that these values refuse return to their defaults."""
        draft = copy(self)
        for name, value in changes.items():
            draft._set(name, value)
        for declared in fields(self):
            if declared.name not in changes and draft._reasons_against(declared):
                changes[declared.name] = default_of(declared)
        changed = replace(self, **changes)
        if "given" in vars(self):
            changed._set("given", replace(self._as_given, **changes))
        return changed

    def located(self) -> Options:
        """The same request with absolute names of files: user code may change the working directory."""
        located = copy(self)
        located._set("given", self._as_given)
        located._set("data_dir", None if self.data_dir is None else absolute(self.data_dir))
        located._set("experiment", _located(self.experiment))
        located._set("trainers", tuple(_located(trainer) for trainer in self.trainers))
        return located

    @property
    def _as_given(self) -> Options:
        given: Options = vars(self).get("given", self)
        return given

    @property
    def named_files(self) -> dict[str, str]:
        """Experiment, trainers or scripts that were asked for by a text: as it was given, and as it is now."""
        given = self._as_given
        texts = zip((given.experiment, *given.trainers), (self.experiment, *self.trainers), strict=True)
        if self.scripts:
            texts = zip(given.scripts, self.scripts, strict=True)
        return {before: now for before, now in texts if isinstance(before, str) and isinstance(now, str)}

    def _refuse_combinations(self) -> None:
        """Refuse values that exclude each other."""
        if self.seed + self.seeds > 2**32:
            raise RequestError(f"--seed {self.seed} with --seeds {self.seeds}: the largest seed is {2**32 - 1}")
        if self.spec.one_replica and (self.replicas or 1) > 1:
            raise RequestError(
                f"--strategy {self.strategy} has one replica, --replicas asks for {self.replicas}: "
                "use --strategy mirrored"
            )
        if self.write_experiment is not None and self.write_experiment.exists():
            raise RequestError(f"--write-experiment {self.write_experiment}: it exists and is not overwritten")
        if len(self.scripts) > 2:
            raise RequestError(f"--scripts takes one script or two, not {len(self.scripts)}")
        if strange := [each for each in self.own if each not in MADE_ALIKE]:
            raise RequestError(f"--own {strange[0]}: {unknown(strange[0], MADE_ALIKE)}")
        if self.parallel and self.sequential:
            raise RequestError("--parallel and --sequential contradict each other: leave out one")
        if self.quiet and self.verbose:
            raise RequestError("--quiet and --verbose contradict each other: leave out one")
        if (self.backend == "dask") != (self.scheduler is not None):
            raise RequestError("--backend dask and --scheduler tcp://HOST:PORT go together: give both, or neither")
        if self.steps_per_execution > 1 and self.iteration == "for":
            raise RequestError(
                f"--iteration for makes one step per call, not --steps-per-execution {self.steps_per_execution}: "
                "use --iteration iterator"
            )
        if self.steps_per_execution > 1 and self.iteration == "function":
            raise RequestError(
                "--iteration function makes all steps of an epoch in one call, not --steps-per-execution "
                f"{self.steps_per_execution}: leave one of them out"
            )

    @property
    def spec(self) -> StrategySpec:
        """What is known about the strategy."""
        return SPECS[self.strategy]

    @property
    def execution(self) -> Execution:
        """How the built-in trainers execute their steps."""
        from_python = self.spec.several_processes and self.steps_per_execution == 1
        iteration = self.iteration or ("for" if from_python else "iterator")
        return Execution(iteration, self.steps_per_execution, self.jit)

    def _set(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)

    @property
    def all_seeds(self) -> range:
        """The seeds of all runs: one, or those of a study."""
        return range(self.seed, self.seed + self.seeds)

    def as_json(self) -> dict[str, Any]:
        """All options as plain values, as they were given; objects by their name."""
        given = self._as_given
        content = {field.name: getattr(given, field.name) for field in fields(given)}
        content["experiment"] = _text(given.experiment)
        content["trainers"] = [_text(trainer) for trainer in given.trainers]
        plain = {name: list(value) if isinstance(value, tuple) else value for name, value in content.items()}
        return {name: str(value) if isinstance(value, Path) else value for name, value in plain.items()}

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> Options:
        """The options that ``as_json`` gave; possible where experiment and trainers were names."""
        return cls(**content)

    def default_name(self) -> str:
        """A folder name that tells runs apart by what was asked."""
        if self.scripts or self.logs:
            stems = [Path(each).stem for each in self.scripts or self.logs]
            if len(stems) > 2:  # logs of several seeds, perhaps: without their numbers
                stems = list(dict.fromkeys(stem.rstrip("0123456789").rstrip("-_.*") or stem for stem in stems))
            return _plain("-".join(["scripts" if self.scripts else "logs", *stems]))[:100]
        parts = [label(self.experiment), *(label(trainer) for trainer in self.trainers), self.strategy]
        parts += [f"x{count}" for count in (self.replicas, self.workers) if count]
        parts += ["keras-2"] if self.keras == 2 else []
        seeds = f"seed-{self.seed}" if self.seeds == 1 else f"seeds-{self.seed}-to-{self.seed + self.seeds - 1}"
        parts += ["check" if self.check else f"{self.epochs}-epochs"]
        name = "-".join([*parts, seeds])
        return _plain(name).encode()[:120].decode(errors="ignore")  # a file system counts bytes


def declaration(declared: Field[Any]) -> Option:
    """The declaration of a field of ``Options``."""
    found: Option = declared.metadata["option"]
    return found


def _plain(name: str) -> str:
    """The name with dashes in place of characters that are special in a path or on a command line."""
    return "".join(c if c.isalnum() or c in "-_." else "-" for c in name)


def _located(wanted: Any) -> Any:
    if not (isinstance(wanted, str) and is_file(wanted)):
        return wanted
    source, attribute = source_and_attribute(wanted)
    return f"{absolute(Path(source))}{f':{attribute}' if attribute else ''}"


def _text(thing: Any) -> str:
    return thing if isinstance(thing, str) else label(thing)
