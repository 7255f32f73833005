"""The benchmark: it runs, and what it holds a comparison against."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pandas as pd
import pytest

from compare.engine.data import DEBIAN_FOLDER, keras_cache
from scripts import measure, tables
from scripts.pages import benchmark


@pytest.fixture
def data_dir() -> Path:
    for folder in (keras_cache(), DEBIAN_FOLDER):
        if (folder / "train-images-idx3-ubyte.gz").exists():
            return folder
    pytest.skip("the benchmark takes all of Fashion-MNIST, which is not on this machine")


@pytest.mark.slow
def test_a_comparison_is_measured_beside_the_tutorial(data_dir: Path, tmp_path: Path) -> None:
    programs = ["main-job", "yardstick", "tutorial", "bare-fit", "both-at-once"]
    options = ["--rounds", "1", "--epochs", "2", "--train-examples", "200", "--only", *programs]
    options += ["--data-dir", str(data_dir), "--out", str(tmp_path)]
    done = measure.run("scripts/benchmark.py", *options, limit=300)

    rows = tables.read(tmp_path / "benchmark.csv").to_dict("records")
    assert [row["program"] for row in rows] == programs
    ours, yardstick, tutorial, bare, _ = rows
    assert all(float(row[figure]) > 0 for row in rows for figure in ("wall_seconds", "peak_mib"))
    assert [row["seconds_per_epoch"] != "" for row in (ours, tutorial, bare)] == [False, True, True]
    assert (job := re.match(r"(?:fit|loop|fit/loop)  epoch 2/2  loss ([\d.]+)", ours["said"]))
    assert (alone := re.match(r"(?:fit|loop)  epoch 2  loss ([\d.]+)", yardstick["said"]))
    assert f"{float(alone[1]):.4f}" == job[1], "the yardstick is the same training"
    assert tutorial["said"].startswith("Epoch 2, Loss: ")
    assert re.match(r"4/4 - .* loss: ", bare["said"]), "200 images in batches of 64"

    page = (tmp_path / "README.md").read_text(encoding="utf-8")
    assert page.rstrip() in "\n".join(line.text for line in done.lines)
    for ratio in ("yardstick", "both-at-once", "(tutorial + bare-fit)"):
        assert f"| main-job / {ratio} | wall seconds |" in page


def test_a_ratio_is_taken_within_a_round_and_only_of_what_was_measured() -> None:
    figures = [math.nan, math.nan, math.nan, 1.0, 10.0, 12.0]
    rows = [[n, name, *figures, n * mib] for n in (1, 2) for name, mib in (("main-job", 50.0), ("tutorial", 100.0))]
    page = benchmark.page(pd.DataFrame(rows, columns=[*benchmark.COLUMNS, *benchmark.FIGURES]), "")
    assert "| main-job / tutorial | peak memory, MiB | 0.500 (0.500–0.500) | ≤ 1.2 | yes |" in page
    assert page.count("main-job / ") == 1, page


def test_a_program_is_measured_with_its_lines(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text("import sys, time; print('one'); time.sleep(0.3); sys.exit('two')")
    done = measure.run(str(tmp_path / "program.py"), check=False)
    (line,) = done.lines
    assert (line.text, done.errors, done.failure) == ("one", "two\n", "status 1")
    assert 0 < line.wall_seconds <= done.wall_seconds - 0.3
    assert done.cpu_seconds > 0 and done.peak_mib > 1
    with pytest.raises(SystemExit, match=r"status 1\):\none\ntwo"):
        measure.run(str(tmp_path / "program.py"))


def test_a_program_without_end_is_killed_with_all_its_processes(tmp_path: Path) -> None:
    code = "import subprocess; subprocess.run(['sleep', '60'])"
    (tmp_path / "program.py").write_text(code)
    done = measure.run(str(tmp_path / "program.py"), limit=1, check=False)
    assert done.failure == "no end after 1 s" and done.wall_seconds < 20


def test_a_program_is_ended_by_a_line(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(
        "import time\nprint('epoch 1', flush=True)\nprint('found', flush=True)\ntime.sleep(60)"
    )
    done = measure.run(str(tmp_path / "program.py"), until="found", limit=60, check=False)
    assert [line.text for line in done.lines] == ["epoch 1", "found"]
    assert done.failure == ""


def test_parts_take_turns() -> None:
    turns = list(measure.in_turn({"a": lambda: 1, "b": lambda: 2}, rounds=2))
    assert turns == [(1, "a", 1), (1, "b", 2), (2, "a", 1), (2, "b", 2)]
