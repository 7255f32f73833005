"""What a user asks for, checked once, at the door; no TensorFlow here."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from compare.errors import RequestError

if TYPE_CHECKING:
    from compare.experiment import Experiment
    from compare.trainers.base import Trainer

STRATEGIES = ("default", "one-device", "mirrored", "central-storage")
ONE_REPLICA = ("default", "one-device")


@dataclass(frozen=True, kw_only=True)
class Options:
    """One request; every field is the command's option of the same name.

    Attributes:
        experiment: a built-in experiment's name, ``FILE.py[:ATTR]``, or an ``Experiment``.
        trainers: two or more names, ``FILE.py:ATTR``, ``package.module:ATTR`` or trainers; the first
            is the reference.
        strategy: one of ``STRATEGIES``.
        replicas: how many replicas; None for all visible devices.
        epochs: how many epochs.
        batch_size: examples per replica and step.
        seed: of the initial weights, of the order of examples and of whatever else is random.
        train_examples: use only the first so many training examples; None for all.
        reports: the folder that holds the runs.
        name: the run's folder in ``reports``; None for one made from the options.
        data_dir: where the data set's files are; None for wherever they are found.
        quiet: print the verdict only.

    Raises:
        RequestError: when a value is not possible, alone or with the others.
    """

    experiment: str | Experiment = "fashion-mnist"
    trainers: tuple[str | Trainer, ...] = ("fit", "loop")
    strategy: str = "mirrored"
    replicas: int | None = None
    epochs: int = 10
    batch_size: int = 64
    seed: int = 0
    train_examples: int | None = None
    reports: Path = Path("reports")
    name: str | None = None
    data_dir: Path | None = None
    quiet: bool = False

    def __post_init__(self) -> None:
        for name in ("reports", "data_dir"):
            if getattr(self, name) is not None:
                object.__setattr__(self, name, Path(getattr(self, name)))
        object.__setattr__(self, "trainers", tuple(self.trainers))
        for name in ("replicas", "epochs", "batch_size", "train_examples"):
            _check_count(name, getattr(self, name), least=1, optional=name in ("replicas", "train_examples"))
        _check_count("seed", self.seed, least=0, most=2**32 - 1)
        if len(self.trainers) < 2:
            raise RequestError("--trainers needs a reference and at least one candidate, such as: fit loop")
        if self.strategy not in STRATEGIES:
            raise RequestError(f"--strategy {self.strategy}: unknown; there are {', '.join(STRATEGIES)}")
        if self.strategy in ONE_REPLICA and (self.replicas or 1) > 1:
            raise RequestError(
                f"--strategy {self.strategy} has one replica, --replicas asks for {self.replicas}: "
                "use --strategy mirrored"
            )
        if self.name is not None and (self.name in ("", ".", "..") or "/" in self.name or "\\" in self.name):
            raise RequestError(f"--name {self.name!r}: give a plain folder name, it is made inside {self.reports}")

    def as_json(self) -> dict[str, Any]:
        """All options as plain values; objects by their name."""
        content = {field.name: getattr(self, field.name) for field in fields(self)}
        content["experiment"] = label(self.experiment)
        content["trainers"] = [label(trainer) for trainer in self.trainers]
        return {name: str(value) if isinstance(value, Path) else value for name, value in content.items()}

    def default_name(self) -> str:
        """A folder name that tells runs apart by what was asked."""
        parts = [label(self.experiment), *(label(trainer) for trainer in self.trainers), self.strategy]
        parts += [f"x{self.replicas}"] if self.replicas else []
        name = "-".join([*parts, f"{self.epochs}-epochs", f"seed-{self.seed}"])
        return "".join(c if c.isalnum() or c in "-_." else "-" for c in name)[:120]


def label(thing: Any) -> str:
    """What an experiment or trainer is called: the text it was asked for by, or its own name."""
    if isinstance(thing, str):
        return Path(thing.partition(":")[0]).stem if ".py" in thing else thing
    return str(getattr(thing, "name", type(thing).__name__))


def _check_count(name: str, value: Any, *, least: int, most: int | None = None, optional: bool = False) -> None:
    if value is None and optional:
        return
    option = "--" + name.replace("_", "-")
    if isinstance(value, bool) or not isinstance(value, int):
        raise RequestError(f"{option} {value!r}: give a whole number")
    if value < least or (most is not None and value > most):
        bounds = f"at least {least}" if most is None else f"from {least} to {most}"
        raise RequestError(f"{option} {value}: give a whole number, {bounds}")
