"""The result of a comparison, read from its folder; imports no TensorFlow."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from compare.check.causes import CATALOGUE
from compare.check.causes.base import REPORTING
from compare.errors import RequestError
from compare.naming import shown_path
from compare.records.model import RecordError
from compare.records.reader import has_records, read_rows
from compare.records.run_json import read_run, read_verdict
from compare.reporting.run_files import usable
from compare.reporting.sentences import worst_first
from compare.reporting.terminal import as_text
from compare.verdict.findings import Finding
from compare.verdict.model import Comparison, Difference, Verdict
from compare.verdict.outcomes import EXIT_STATUS

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Cause(Finding):
    """A named cause of a difference; ``title`` is what the mistake looks like from outside, a sentence."""

    title: str = ""

    @classmethod
    def of(cls, found: Finding) -> Cause:
        """The cause, with what the catalogue says about it."""
        known = CATALOGUE.get(found.id)
        more = {"kind": known.kind, "title": known.symptom} if known else {}
        return cls(**{each.name: getattr(found, each.name) for each in fields(found)} | more)


@dataclass(frozen=True)
class Result:
    """The result of a comparison, and the location of its files; ``print`` says what the terminal said.

    For example::

        print(result)
        if result.causes:
            print(result.causes[0].title, result.causes[0].remedy)
        if result.first_difference:
            print(result.first_difference.epoch, result.first_difference.step, result.stage)

    Attributes:
        path: the folder with its files.
        verdict: the overall verdict, as in ``verdict.json``.
    """

    path: Path
    verdict: str

    @property
    def between_trainers(self) -> str:
        """The verdict on this run's own trainers: the overall one but for a run with a baseline."""
        return self._verdict.between_trainers or self.verdict

    @property
    def since_baseline(self) -> str | None:
        """The verdict on what is compared with the baseline; None without one."""
        return self._verdict.since_baseline or None

    @property
    def causes(self) -> list[Cause]:
        """The causes that all comparisons name, those of training first."""
        found = [Cause.of(cause) for comparison in self._verdict.comparisons for cause in comparison.causes]
        return sorted(found, key=lambda cause: cause.kind == REPORTING)

    @property
    def evidence(self) -> list[str]:
        """What was seen that may explain a difference without proving a cause, of all comparisons, as sentences."""
        return [text for comparison in self._verdict.comparisons for text in comparison.evidence or ()]

    @property
    def notes(self) -> list[str]:
        """What a reader must know besides the verdict, such as what two scripts do otherwise and is not compared."""
        return list(read_run(self.path).get("notes") or [])

    @property
    def first_difference(self) -> Difference | None:
        """The first place where weights differ, of the worst comparison: ``epoch``, ``step``, ``stage`` and ``where``.

        None if no weights differ, or the place is unknown. ``stage`` is None if nobody looked inside this step, as in a
        full training whose short check, which looks into a step of its own, differs, too.
        """
        first = self._first.training.first_difference if self._first else None
        return None if first is None else replace(first, stage=first.stage or None)

    @property
    def stage(self) -> str | None:
        """The first stage that differs inside that step or, of a full training, in the short check; None if unknown."""
        if self._first is None:
            return None
        places = self._first.training.first_difference, self._first.stages_at
        return next((place.stage for place in places if place and place.stage), None)

    @property
    def _first(self) -> Comparison | None:
        """The worst comparison whose weights differ."""
        return next((each for each in worst_first(self._verdict) if each.training.first_difference), None)

    @property
    def _verdict(self) -> Verdict:
        with usable(self.path):
            found = Verdict.read(self.path / "verdict.json")
        if found.verdict != self.verdict:
            raise RequestError(f"{shown_path(self.path)} holds another run by now: compare.load reads it")
        return found

    def to_json(self) -> str:
        """The text of ``verdict.json``."""
        return self._verdict.to_json()

    def __str__(self) -> str:
        """What the terminal says at the end of a comparison, and the notes that it says before."""
        return "\n".join([*(f"Note: {note}" for note in self.notes), as_text(self._verdict)])

    @property
    def metrics(self) -> pd.DataFrame:
        """``metrics.csv``: one row per trainer, seed and epoch; missing values are NaN.

        Raises:
            RecordError: if the file is damaged, or a number was changed.
        """
        import pandas as pd  # noqa: PLC0415 (lazy)

        read_run(self.path)  # without a run, no rows are no result
        frame = pd.DataFrame(read_rows(self.path))
        whole = {"seed": int, "epoch": int}
        # Not read_csv: in some versions of pandas its floats are off by one unit in the last place.
        return frame.replace("", np.nan).astype(
            {name: whole.get(name, float) for name in frame.columns if name != "trainer"}
        )

    @property
    def details(self) -> dict[str, Any]:
        """The content of ``verdict.json``."""
        return dict(read_verdict(self.path / "verdict.json"))

    @property
    def exit_status(self) -> int:
        """The exit status of the command for this verdict."""
        return EXIT_STATUS[self.verdict]

    @property
    def gaps(self) -> pd.DataFrame:
        """The weight gap after every step, with the columns candidate, seed, epoch, step, gap, equal and noise.

        ``gap`` and ``noise`` (the gap of perturbed runs; NaN without any in the folder) are estimates of a Euclidean
        norm. ``step`` is -1 at the end of an epoch if a trainer does not report its steps. The frame is empty if no
        steps were recorded.

        Raises:
            RecordError: if records are damaged or missing.
        """
        import pandas as pd  # noqa: PLC0415 (lazy)

        from compare.reporting.gaps import gaps_of  # noqa: PLC0415 (lazy)

        columns, verdict = ["candidate", "seed", "epoch", "step", "gap", "equal", "noise"], self._verdict
        recorded = verdict.scope != "check" and any(each.training.steps_compared for each in verdict.comparisons)
        if recorded and not has_records(self.path):
            raise RecordError(self.path / "records", "is missing")
        found = [
            (each.candidate, gaps.seed, gaps.epochs, gaps.steps, gaps.gaps, gaps.equal, gaps.noise)
            for each, _, gaps in gaps_of(self.path, verdict)
        ]
        frames = [pd.DataFrame(dict(zip(columns, values, strict=True))) for values in found]
        return pd.concat(frames, ignore_index=True) if frames else pd.DataFrame(columns=columns)

    @property
    def figures(self) -> dict[str, Figure]:
        """The Matplotlib figures by name: ``comparison``, or none if no epoch was reported."""
        from compare.reporting import plots  # noqa: PLC0415 (lazy)

        figure = plots.figure_of(self.path)
        return {} if figure is None else {"comparison": figure}

    def _repr_html_(self) -> str:
        """The HTML that notebooks display."""
        from compare.reporting import html  # noqa: PLC0415 (lazy)

        return html.notebook(self.path)
