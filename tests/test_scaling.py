"""The page of scripts/scaling.py: exponents, intervals, and what counts as established."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from scripts.pages import growth, scaling

ROOT = Path(__file__).resolve().parents[1]


@pytest.mark.parametrize("power", [0, 0.5, 1, 2])
def test_the_exponent_is_that_of_a_power_of_n(power: float) -> None:
    sizes = np.array([4_000, 40_000, 400_000])
    values = pd.Series(3.0 * sizes**power, index=sizes)
    assert growth.exponent(values) == pytest.approx(power)
    assert np.isnan(growth.exponent(values.iloc[:1]))


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


def test_the_page_has_what_was_measured_and_nothing_else() -> None:
    sizes = [(group, 1, figure, of, n, 1e6 * n) for group, figure, of, n in [("judging", "bytes", "report.html", 20)]]
    studies = [("seeds", 1, "seconds", kind, n, 10.0 * n) for kind in ("jobs 1", "dask 1") for n in (2, 4)]
    page = scaling.page(pd.DataFrame([*sizes, *studies], columns=scaling.COLUMNS), "")
    assert "number of rounds: judging 1, seeds 1." in page
    assert "| size of report.html | steps | 20 | 19,531 KiB | – |" in page
    assert "| time of a study, `--jobs 1` | seeds | 2 / 4 | 20.0 s / 40.0 s | 1.00 |" in page
    assert "| 4 | 12 | 12 |" in page and "by +0.0 s (+0%), +0.0 s (+0%)." in page
    assert "recording" not in page.replace("what recording costs", "") and "replicas" not in page
    without = scaling.page(pd.DataFrame(studies[:2], columns=scaling.COLUMNS), "")
    assert "Dask was skipped" in without and "Dask was skipped" not in page


@pytest.mark.slow
def test_groups_are_measured_alone(tmp_path: Path) -> None:
    options = ["--only", "large", "judging", "--rounds", "1", "--weights", "100000", "--steps", "20", "40"]
    command = [sys.executable, "scripts/scaling.py", *options, "--out", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    rows = pd.read_csv(tmp_path / "scaling.csv")
    assert list(rows.columns) == scaling.COLUMNS and set(rows["group"]) == {"large", "judging"}
    assert (rows["value"] > 0).all()
    page = (tmp_path / "README.md").read_text(encoding="utf-8")
    assert page in done.stdout
    assert re.search(r"\| size of report.html \| steps \| 20 / 40 \| \d+ KiB / \d+ KiB \| -?\d\.\d\d \|", page)
    assert "One variable of 100,000 float32 weights" in page


def test_bad_sizes_are_refused_in_one_line(tmp_path: Path) -> None:
    for options, says in (
        (["--pairs", "0"], "--pairs must be at least 1"),
        (["--epochs", "10", "5000"], "--epochs must be at most 4000, the number of steps"),
        (["--replicas", "3"], "--replicas must divide the global batch size, 64"),
    ):
        command = [sys.executable, "scripts/scaling.py", *options, "--out", str(tmp_path / "none")]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
        assert done.returncode == 2 and done.stderr.splitlines()[-1].endswith(says), done.stderr
    assert not (tmp_path / "none").exists()
