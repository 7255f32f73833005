"""The page of scripts/scaling.py: numbers, intervals, and what counts as established."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from scripts import measure
from scripts.pages import scaling


def test_the_interval_of_a_median_holds_it_as_often_as_it_says() -> None:
    generator = np.random.default_rng(0)
    intervals = [scaling.interval(pd.Series(generator.exponential(size=60))) for _ in range(1000)]
    assert np.mean([low <= np.log(2) <= high for low, high in intervals]) == pytest.approx(0.96, abs=0.02)
    assert np.isnan(scaling.interval(pd.Series([0.01] * 5))).all()
    assert scaling.interval(pd.Series([0.03, 0.01, 0.02, 0.06, 0.05, 0.04])) == (0.01, 0.06)


def recorded(shares: list[float], *, rounds: int = 1) -> pd.DataFrame:
    figures = [("seconds", 0.0205), ("variables", 8), ("weights", 121_930), *(("share", share) for share in shares)]
    rows = [("recording", number + 1, name, "cnn", 64, x) for number in range(rounds) for name, x in figures]
    return pd.DataFrame(rows, columns=scaling.COLUMNS)


@pytest.mark.parametrize(
    ("shares", "says"),
    [
        ([0.005, 0.01, 0.015] * 20, "| 1.0% (1.0% to 1.0%) | 1.0% to 1.0% | yes |"),
        ([-0.5, 0.01, 0.5] * 3, "| 1.0% (-50.0% to 50.0%) | 1.0% to 1.0% | not established |"),
        ([0.025, 0.03] * 10, "| 2.8% (2.5% to 3.0%) | 2.8% to 2.8% | **no** |"),
        ([0.01] * 5, "| 1.0% (too few pairs) | 1.0% to 1.0% | not established |"),
    ],
)
def test_a_share_is_established_only_if_its_whole_interval_meets_the_target(shares: list[float], says: str) -> None:
    page = scaling.page(recorded(shares), "")
    assert f"| the tutorial's CNN | 64 | 8 | 121,930 | 20.5 {says}" in page


def test_pairs_of_all_rounds_count_together() -> None:
    assert "| 1.0% (1.0% to 1.0%) | 1.0% to 1.0% | yes |" in scaling.page(recorded([0.01] * 5, rounds=2), "")


def test_the_page_has_the_numbers_that_were_measured_and_no_others() -> None:
    judged = [
        ("judging", 1, "CPU seconds", "judging", 400_000, 4.1),
        ("judging", 1, "peak bytes", "judging", 400_000, 2**28),
    ]
    images = [("memory", 1, "peak bytes", "shared", n, 2.0**29 + 28 * 28 * n) for n in scaling.IMAGES]
    studies = [("seeds", 1, "seconds", f"jobs {jobs}", scaling.SEEDS, 12.0 / jobs) for jobs in (1, 2)]
    commands = ["check, cnn", "check, regression", "scripts, alike", "scripts, different"]
    waits = [("waiting", 1, "seconds", each, 1, 7.0) for each in commands]
    waits += [
        ("waiting", 1, figure, "suite", scaling.SUITE, value) for figure, value in [("seconds", 9), ("bytes", 2e6)]
    ]
    page = scaling.page(pd.DataFrame([*judged, *images, *studies, *waits], columns=scaling.COLUMNS), "")
    assert "number of rounds: judging 1, memory 1, seeds 1, waiting 1." in page
    assert page.count("| 7.0 s | ≤ ") == 4 and "| 9.0 s | ≤ 25 s |" in page and "| 2.0 MB | ≤ 5 MB |" in page
    assert "two trainers with 400,000 equal steps each | 4.1 s of CPU time, 256 MiB | < 10 s, < 500 MiB |" in page
    assert "| 1.00 bytes | ≤ 1.1 |" in page and "| 120 (60 with `--jobs 1`) |" in page
    assert "share of a step" not in page
    assert "trainings per minute" not in scaling.page(pd.DataFrame(judged, columns=scaling.COLUMNS), "")


@pytest.mark.slow
def test_groups_are_measured_alone(tmp_path: Path) -> None:
    options = ["--only", "judging", "waiting", "--rounds", "1", "--steps", "40"]
    done = measure.run("scripts/scaling.py", *options, "--out", str(tmp_path), limit=300)
    rows = pd.read_csv(tmp_path / "scaling.csv")
    assert list(rows.columns) == scaling.COLUMNS and set(rows["group"]) == {"judging", "waiting"}
    assert (rows["value"] > 0).all()
    page = (tmp_path / "README.md").read_text(encoding="utf-8")
    assert page.rstrip() in "\n".join(line.text for line in done.lines) and "40 equal steps each" in page


def test_bad_sizes_are_refused_in_one_line(tmp_path: Path) -> None:
    out = str(tmp_path / "none")
    done = measure.run("scripts/scaling.py", "--pairs", "0", "--out", out, limit=60, check=False)
    assert done.failure == "status 2" and done.errors.splitlines()[-1].endswith("--pairs must be at least 1"), done
    assert not (tmp_path / "none").exists()
