"""The result of a comparison, read from its folder; imports no TensorFlow."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from compare.records import read_rows, read_verdict
from compare.verdict import EXIT_STATUS

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Result:
    """The result of a comparison, and the location of its files.

    Attributes:
        path: the folder with its files.
        verdict: the overall verdict, as in ``verdict.json``.
    """

    path: Path
    verdict: str

    @property
    def metrics(self) -> pd.DataFrame:
        """``metrics.csv``: one row per trainer, seed and epoch; missing values are NaN.

        Raises:
            RecordError: if the file is damaged, or a number was changed.
        """
        import pandas as pd  # noqa: PLC0415 (lazy)

        frame = pd.DataFrame(read_rows(self.path))
        whole = {"seed": int, "epoch": int}
        # Not read_csv: in some versions of pandas its floats are off by one unit in the last place.
        return frame.replace("", np.nan).astype(
            {name: whole.get(name, float) for name in frame.columns if name != "trainer"}
        )

    @property
    def details(self) -> dict[str, Any]:
        """The content of ``verdict.json``."""
        content: dict[str, Any] = read_verdict(self.path / "verdict.json")
        return content

    @property
    def exit_status(self) -> int:
        """The exit status of the command for this verdict."""
        return EXIT_STATUS[self.verdict]

    @property
    def gaps(self) -> pd.DataFrame:
        """The weight gap after every step, with the columns candidate, seed, epoch, step, gap, equal and noise.

        ``gap`` and ``noise`` (the gap of noise twins; NaN without twins) are estimates of a Euclidean norm. ``step``
        is -1 at the end of an epoch if a trainer does not report its steps. The frame is empty if no steps were
        recorded.
        """
        import pandas as pd  # noqa: PLC0415 (lazy)

        from compare.reporting.gaps import gaps_of  # noqa: PLC0415 (lazy)

        frames = [
            pd.DataFrame(
                {
                    "candidate": entry["candidate"],
                    "seed": gaps.seed,
                    "epoch": gaps.epochs,
                    "step": gaps.steps,
                    "gap": gaps.gaps,
                    "equal": gaps.equal,
                    "noise": gaps.noise,
                }
            )
            for entry, _, gaps in gaps_of(self.path, self.details)
        ]
        columns = ["candidate", "seed", "epoch", "step", "gap", "equal", "noise"]
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
