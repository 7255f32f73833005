"""What the process of a watched script is asked to do; imports no TensorFlow."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import KW_ONLY, dataclass
from pathlib import Path

from compare import naming
from compare.records.codec import decode, encode
from compare.watch.cells import citing_cells, place_in_cells

SEEDS, WEIGHTS, ORDER = naming.MADE_ALIKE
MADE_ALIKE = {
    SEEDS: "the same in both, for layers and TensorFlow's random operations; op determinism is on",
    WEIGHTS: "both start from the initial weights of the reference",
    ORDER: "the same in both: Dataset.shuffle and fit(shuffle=...) do not shuffle",
}
"""What is made alike in two scripts; ``--keep`` switches each off."""

ALL_BEGUN = "all-begun"
"""The file among the initial weights that says that the reference has made a step, so that those are all there that
its first training begins with."""

ENDED = "ended"
"""The file among them that says that the reference has ended, so that no more will come at all."""

AWAITED = "awaited"
"""The file among them that says, by its time, since when another script has waited for any."""

MOST_TRAININGS = 16
"""The most trainings of one script, such as of a GAN's models or a cross-validation, that are watched."""


@dataclass(frozen=True)
class Nudge:
    """The noise of a twin: all weights are moved by units in the last place before every step from one on.

    Attributes:
        start: the first step that starts from moved weights, counted over the whole training, from 1.
        twin: the twin's number, which determines the noise.
        units: the size of the noise, in units in the last place.
        others: the first step of trainings that make more or fewer steps meanwhile, each with the training's number.
    """

    start: int
    twin: int
    units: int = 1
    others: tuple[tuple[int, int], ...] = ()

    def start_of(self, number: int) -> int:
        return dict(self.others).get(number, self.start)


@dataclass(frozen=True, kw_only=True)
class Detail:
    """What is watched in a process, and what is recorded of its steps.

    Attributes:
        alone: whether a script is compared with itself: its first training with its second.
        max_steps: the number of optimizer steps after which a training ends.
        own: which of ``MADE_ALIKE`` is not made alike.
        close_up: the first and the last step of each stretch whose stages are recorded; empty for no stages.
        latest_only: whether only the last two of these steps are kept, up to the first whose weights are not finite.
        losses_only: whether only losses are kept of the stages, those of validation too, and the numbers of examples.
        one: whether all that this process trains with the same variables is one training, whatever sets them back.
        awaits: the trainings, by number, without which the script does not end early.
        by_hand: whether the script changes its weights by hand, though it makes optimizers, which it never applies.
    """

    alone: bool = False
    max_steps: int = 2000
    own: tuple[str, ...] = ()
    nudge: Nudge | None = None
    close_up: tuple[tuple[int, int], ...] = ()
    latest_only: bool = False
    losses_only: bool = False
    one: bool = False
    awaits: tuple[int, ...] = ()
    by_hand: bool = False

    @property
    def trainings(self) -> int:
        """The largest number of trainings that are watched."""
        return 2 * MOST_TRAININGS if self.alone else MOST_TRAININGS

    def place(self, file: str, line: int) -> tuple[str, int]:
        """The file as the user calls it, and the line in it."""
        return file, line


@dataclass(frozen=True)
class Program:
    """What runs on a side.

    Attributes:
        script: the user's file, or its copy in a commit.
        source: the path from the root of the Python file that is run: the script, or what was made of a notebook.
        python: the interpreter that runs it.
        replicas: the number of replicas of a ``MirroredStrategy()`` without devices; None for TensorFlow's own choice.
        checkout: the temporary folder of its commit, from which files are cited; empty, as are those below, for the
            files as they are.
        repository: the folder of the repository that has the commit.
        cwd: its current folder, there that of the comparison.
    """

    script: str
    source: str
    _: KW_ONLY
    python: str = sys.executable
    replicas: int | None = None
    checkout: str = ""
    repository: str = ""
    cwd: str = ""


@dataclass(frozen=True)
class Settings(Detail, Program):
    """How to run a script, and what to record.

    Attributes:
        folder: where the trace is written.
        initial: the folder of the initial weights.
        arguments: what ``sys.argv`` has after the script.
        begins: whether this script provides the initial weights, rather than taking those that are there.
        write_experiment: where to write an ``Experiment`` made from what the script gives to ``fit``; None for nowhere.
    """

    folder: str
    initial: str
    arguments: tuple[str, ...] = ()
    begins: bool = True
    write_experiment: str | None = None

    @property
    def notebook(self) -> bool:
        """Whether the script is a notebook."""
        return self.script.endswith(".ipynb")

    def cited(self, text: str) -> str:
        """A text in which the script is called as the user calls it.

        The lines of a notebook are cited by cell, and the files of a commit without their folder.
        """
        own = citing_cells(text, self.script, self.source) if self.notebook else text.replace(self.source, self.script)
        return own.replace(self.checkout + os.sep, "") if self.checkout else own

    def place(self, file: str, line: int) -> tuple[str, int]:
        """The file as the user calls it, and the line in it; of a notebook, in its cell."""
        if file == self.source:
            file, line = place_in_cells(line, self.script, self.source) if self.notebook else (self.script, line)
        if self.checkout and Path(file).is_relative_to(self.checkout):
            file = str(Path(file).relative_to(self.checkout))
        return file, line

    def write(self, path: Path) -> None:
        path.write_text(json.dumps(encode(self)), encoding="utf-8")

    @classmethod
    def read(cls, path: Path) -> Settings:
        return decode(cls, json.loads(path.read_text(encoding="utf-8")))
