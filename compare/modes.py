"""What can be asked for: each mode is a type, with the options that mean something in it; no TensorFlow here."""

from __future__ import annotations

import os
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import ClassVar

from compare.errors import RequestError
from compare.execution import ITERATIONS, Execution
from compare.naming import MADE_ALIKE, absolute, plain, refuse_output, refuse_unreadable, shown_path, unknown
from compare.option import Converted
from compare.request import (
    COMPARED,
    EXECUTION,
    LOGGED,
    RESULTS,
    STUDIES,
    TRAINING,
    TWO_SCRIPTS,
    Margins,
    MaybePath,
    Replicas,
    Request,
    StepByStep,
    Task,
    Texts,
)

BACKENDS = ("local", "dask")


@dataclass(frozen=True, kw_only=True)
class ShortCheck(Task):
    """The short check of every candidate."""

    word: ClassVar[str] = "check"
    title: ClassVar[str] = "in a short check"
    ignored: ClassVar[str] = "epochs"


@dataclass(frozen=True, kw_only=True)
class Trained(Task):
    """What full trainings and studies share."""

    epochs: int = TRAINING.number(10, "number of epochs", most=1_000_000)
    iteration: str | None = EXECUTION.option(
        None,
        "how loop iterates over an epoch: a Python for over batches, an iterator inside a tf.function, or the whole "
        "epoch in one call of a tf.function",
        metavar="WAY",
        choices=ITERATIONS,
        shown="iterator; for with several processes",
        rare=True,
    )
    steps_per_execution: int = EXECUTION.number(
        1,
        "fit and loop run K steps per call of a tf.function; weights are compared after each call",
        metavar="K",
        rare=True,
    )
    jit: bool = EXECUTION.switch("compile the steps of fit and loop with XLA; turns op determinism off", rare=True)
    baseline: MaybePath = COMPARED.option(
        None,
        "also compare each trainer with the one of the same name in an earlier comparison's folder",
        metavar="DIR/NAME",
        kind=Path,
    )
    force: bool = TRAINING.switch("train even if a side is known to fail, for example with other versions", rare=True)
    checkpoint_every: int = RESULTS.number(
        2,
        "save model, optimizer, epoch and metrics every N epochs and after the last; 0 means never",
        least=0,
        rare=True,
    )
    keep_checkpoints: int = RESULTS.number(3, "keep each trainer's last N checkpoints", rare=True)
    tensorboard: bool = RESULTS.switch(
        "also write a TensorBoard log to DIR/NAME/tensorboard while training",
        more="one curve per trainer, the weight gap per step, the verdict as text",
        may_change=True,
        rare=True,
    )
    resume: bool = RESULTS.switch(
        "continue an interrupted comparison: give the same options, and its --name if it had one", may_change=True
    )

    def _refuse(self) -> None:
        super()._refuse()
        if self.spec.parameter_servers:
            why = "does not work with parameter servers: their coordinator sends out single steps; leave it out"
            self.refuse_given(["iteration", "steps_per_execution", "jit"], why)
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
        if self.tensorboard and find_spec("tensorboard") is None:
            raise RequestError('--tensorboard needs the package tensorboard: pip install "fit-vs-loop[tensorboard]"')
        if self.baseline is not None:
            refuse_unreadable(self.baseline)
            if not os.path.isfile(self.baseline / "metrics.csv"):
                why = "no recorded comparison is there (a folder with a metrics.csv)"
                raise RequestError(f"--baseline {shown_path(self.baseline)}: {why}")
            self._set("baseline", absolute(self.baseline))  # it is read again after training, and with the reports

    @property
    def goes_on(self) -> bool:
        return self.resume

    @property
    def checkpointed(self) -> bool:
        """Whether trainings save checkpoints: those of a study only under a strategy of several processes."""
        return self.checkpoint_every > 0 and (self.spec.several_processes or len(self.all_seeds) == 1)

    @property
    def execution(self) -> Execution:
        """How the built-in trainers execute their steps."""
        from_python = self.spec.several_processes and self.steps_per_execution == 1
        iteration = self.iteration or ("for" if from_python else "iterator")
        return Execution(iteration, self.steps_per_execution, self.jit)


@dataclass(frozen=True, kw_only=True)
class Training(Trained, StepByStep):
    """A full training with one seed."""

    title: ClassVar[str] = "in a full training"
    of_one_size: ClassVar[bool] = False

    parallel: bool = EXECUTION.switch(
        "run all trainers at the same time, in processes that share the processor's threads",
        more="the default where there are processors and memory for it, and no GPU",
        rare=True,
    )
    sequential: bool = EXECUTION.switch(
        "train one trainer after the other, each with all of the processor's threads", rare=True
    )
    float64_reference: bool = COMPARED.switch(
        "also train on one replica in float64, to show which side is off", rare=True
    )
    export: bool = RESULTS.switch("save each final model as a SavedModel and a .keras file", rare=True)

    def _refuse(self) -> None:
        super()._refuse()
        if self.sizes and self.baseline is not None:
            raise RequestError("--replicas with two numbers compares with the first of them: leave out --baseline")
        if self.spec.several_processes:
            why = f"cannot be combined with --strategy {self.strategy}, which has processes of its own; leave it out"
            self.refuse_given(["parallel", "sequential", "stop_at_difference"], why)
        if self.parallel and self.sequential:
            raise RequestError("--parallel and --sequential contradict each other: leave out one")


@dataclass(frozen=True, kw_only=True)
class Study(Trained, Margins):
    """Full trainings with several seeds, judged by paired differences."""

    title: ClassVar[str] = "in a study of several seeds"

    seeds: int = STUDIES.number(
        1, "a study: train with N seeds, from --seed on, and judge by paired differences", most=10_000
    )
    jobs: int | None = STUDIES.number(
        None, "in a study, run at most N trainings in parallel", shown="one per core", rare=True
    )
    backend: str = STUDIES.option(
        "local",
        "in a study, where trainings run: in local processes or on dask workers",
        metavar="NAME",
        choices=BACKENDS,
        rare=True,
    )
    scheduler: str | None = STUDIES.option(
        None, "with --backend dask, the scheduler's address", metavar="tcp://HOST:PORT", may_change=True, rare=True
    )

    def _refuse(self) -> None:
        super()._refuse()
        if self.seed + self.seeds > 2**32:
            raise RequestError(f"--seed {self.seed} with --seeds {self.seeds}: the largest seed is {2**32 - 1}")
        if self.spec.several_processes:
            why = f"cannot be combined with --strategy {self.strategy}, which starts its own processes for every run: "
            self.refuse_given(["jobs", "backend"], why + "leave it out")
        else:
            why = "has no effect in a study, whose runs are not checkpointed: leave it out"
            self.refuse_given(["checkpoint_every", "keep_checkpoints"], why)
        if (self.backend == "dask") != (self.scheduler is not None):
            raise RequestError("--backend dask and --scheduler tcp://HOST:PORT go together: give both, or neither")

    @property
    def all_seeds(self) -> range:
        return range(self.seed, self.seed + self.seeds)


@dataclass(frozen=True, kw_only=True)
class Files(Request):
    """Modes that compare files, which are the option of the mode's own name."""

    def default_name(self) -> str:
        stems = [Path(each).stem for each in getattr(self, self.word)]
        if len(stems) > 2:  # logs of several seeds, perhaps: without their numbers
            stems = list(dict.fromkeys(stem.rstrip("0123456789").rstrip("-_.*") or stem for stem in stems))
        return plain("-".join([self.word, *stems, *self._differing(self.word)])).encode()[:120].decode(errors="ignore")


@dataclass(frozen=True, kw_only=True)
class Scripts(Files, Replicas, StepByStep):
    """Two scripts, or one that trains twice."""

    word: ClassVar[str] = "scripts"
    title: ClassVar[str] = "with scripts, which train as written"

    scripts: Converted[Texts, tuple[str, ...]] = TWO_SCRIPTS.texts(
        "compare two training scripts, run unedited, or one that trains twice; the first is the reference; "
        "the scripts can overwrite files; their own arguments follow --",
        metavar=("FIT.py", "LOOP.py"),
    )
    script_arguments: Converted[Texts, tuple[str, ...]] = TWO_SCRIPTS.texts(
        "with scripts, their own arguments; in the command they follow --", python_only=True
    )
    python: Converted[Texts, tuple[str, ...]] = TWO_SCRIPTS.texts(
        "with scripts, the Python that runs each side, the reference's first; its environment needs TensorFlow, but "
        "not this package",
        metavar=("OLD/bin/python", "NEW/bin/python"),
    )
    commits: Converted[Texts, tuple[str, ...]] = TWO_SCRIPTS.texts(
        "with scripts, compare the script as it is in two commits, the reference's first; each is checked out into a "
        "temporary clone",
        metavar=("A", "B"),
    )
    max_steps: int = TWO_SCRIPTS.number(2000, "with scripts, end each training after N optimizer steps")
    write_experiment: MaybePath = TWO_SCRIPTS.option(
        None,
        "with scripts, also write an Experiment, made from what a script gives to compile and fit",
        metavar="FILE.py",
        kind=Path,
    )
    keep: Converted[Texts, tuple[str, ...]] = TWO_SCRIPTS.texts(
        "with scripts, keep as each has it, instead of making it the same in both: seeds, weights (the initial ones), "
        "order (of examples)",
        metavar=("seeds", "weights"),
    )

    def _refuse(self) -> None:
        super()._refuse()
        if not 0 < len(self.scripts) < 3:
            raise RequestError(
                f"scripts takes one script or two, not {len(self.scripts)}; for more, run it once for each: "
                'for each in loops/*.py; do fit-vs-loop scripts FIT.py "$each"; done'
            )
        if len(self.python) > 2:
            raise RequestError(f"--python takes one interpreter for both sides or one for each, not {len(self.python)}")
        if self.commits and len(self.commits) != 2:
            raise RequestError(f"--commits takes two commits, not {len(self.commits)}")
        if self.write_experiment is not None:
            if self.write_experiment.suffix != ".py":
                raise RequestError(f"--write-experiment {self.write_experiment}: give a name that ends in .py")
            for path in (self.write_experiment, self.write_experiment.with_suffix(".npz")):
                refuse_output("--write-experiment", path)
        if strange := [each for each in self.keep if each not in MADE_ALIKE]:
            raise RequestError(f"--keep {strange[0]}: {unknown(strange[0], MADE_ALIKE)}")

    @property
    def named(self) -> list[str]:
        return list(self.scripts)


@dataclass(frozen=True, kw_only=True)
class Logs(Files, Margins):
    """What trainings elsewhere have logged."""

    word: ClassVar[str] = "logs"
    title: ClassVar[str] = "with logs, where nothing is trained"

    logs: Converted[Texts, tuple[str, ...]] = LOGGED.texts(
        "draw and compare the logs of finished trainings, without weights: CSV files or TensorBoard folders; the first "
        "is the reference; logs whose names differ only in a number are seeds of one training",
        metavar=("FIT.csv", "LOOP.csv"),
    )
