#!/usr/bin/env python3
"""Measures how long a user waits for the cause of a difference, counted from the step where it begins.

Trains with fit and with the tutorial's loop, which differ from the last step of the first epoch on (its batch is
short). Training goes on while the short check runs; it is ended once the cause has been printed. Writes
time_to_cause.csv, a row per round, and README.md.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import pandas as pd

ROOT = Path(__file__).resolve().parents[1]
sys.path[0] = str(ROOT)

from scripts import measure, tables  # noqa: E402

TARGET = 60
DIFFERS, CAUSE = "weights differ from step", "the short check has found why"


def seconds(data_dir: Path, epochs: int) -> dict[str, float]:
    """Wall seconds from the start of the command to the line that tells the difference, and to the cause."""
    asked = ["--trainers", "fit", "tutorial", "--epochs", str(epochs), "--data-dir", str(data_dir)]
    with tempfile.TemporaryDirectory() as reports:
        done = measure.run("scripts/compare.py", *asked, "--reports", reports, until=CAUSE)
    found = {text: line for line in done.lines for text in (DIFFERS, CAUSE) if text in line.text}
    if len(found) < 2:
        raise SystemExit("\n".join(["no difference or no cause was printed:", *(line.text for line in done.lines)]))
    return {"difference": found[DIFFERS].wall_seconds, "cause": found[CAUSE].wall_seconds}


def main() -> None:
    parser = measure.parser(__doc__, "reports/benchmark/time-to-cause")
    measure.add_data_dir(parser)
    parser.add_argument("--epochs", type=int, default=10, help="epochs asked for (default: 10)")
    parser.add_argument("--rounds", type=int, default=5, help="repetitions (default: 5)")
    options = parser.parse_args()
    if min(options.epochs, options.rounds) < 1:
        parser.error("--epochs and --rounds must be at least 1")
    options.out.mkdir(parents=True, exist_ok=True)
    path = options.out / "time_to_cause.csv"
    path.unlink(missing_ok=True)
    for number in range(1, options.rounds + 1):
        row = {"round": number} | seconds(options.data_dir, options.epochs)
        tables.append(path, row, list(row))
        print(row, flush=True)
    text = page(pd.read_csv(path), measure.origin("scripts/time_to_cause.py"))
    (options.out / "README.md").write_text(text, encoding="utf-8")
    print(text)


def page(rows: pd.DataFrame, origin: str) -> str:
    """The measurements as a Markdown document."""
    waits = {
        "from the start to the line that the weights differ": rows["difference"],
        f"from there to the cause; target: ≤ {TARGET}": rows["cause"] - rows["difference"],
    }
    table = pd.DataFrame(
        [{"wall seconds": what, "median (range)": measure.spread(x, "{:.1f}")} for what, x in waits.items()]
    )
    return "\n".join(
        [
            "# How long one waits for the cause",
            "",
            origin,
            f"Medians and ranges of {len(rows)} round(s). While the short check runs, both trainings go on.",
            "",
            tables.markdown(table),
            "",
        ]
    )


if __name__ == "__main__":
    main()
