"""The benchmark: it runs, and its yardstick does the same work as the trainer that it is held against."""

from __future__ import annotations

import csv
import re
import subprocess
import sys
from pathlib import Path

import pytest

from compare.engine.data import DEBIAN_FOLDER, keras_cache

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture
def data_dir() -> Path:
    for folder in (keras_cache(), DEBIAN_FOLDER):
        if (folder / "train-images-idx3-ubyte.gz").exists():
            return folder
    pytest.skip("the benchmark takes all of Fashion-MNIST, which is not on this machine")


@pytest.mark.slow
def test_a_pair_is_measured_doing_the_same_work(data_dir: Path, tmp_path: Path) -> None:
    options = ["--rounds", "1", "--epochs", "2", "--train-examples", "200", "--only", "bare-loop", "loop"]
    command = [sys.executable, "scripts/benchmark.py", *options, "--data-dir", str(data_dir), "--out", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]

    with open(tmp_path / "benchmark.csv", newline="") as file:
        bare, ours = csv.DictReader(file)
    assert (bare["program"], ours["program"]) == ("bare-loop", "loop")
    figures = ("seconds_per_epoch", "wall_seconds", "cpu_seconds", "peak_mib")
    assert all(float(row[figure]) > 0 for row in (bare, ours) for figure in figures)
    assert re.fullmatch(r"epoch 2/2  loss \S+  accuracy \S+  val_loss \S+  val_accuracy \S+", bare["said"])
    assert ours["said"].startswith(f"loop  {bare['said']}  ")

    page = (tmp_path / "README.md").read_text(encoding="utf-8")
    assert page in done.stdout
    assert "| loop / bare-loop | CPU seconds |" in page
    assert "tutorial" not in page


def test_one_epoch_has_no_figure_per_epoch_and_no_ratio_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    import benchmark

    def measured(program: str, per_epoch: float | None, peak: float) -> benchmark.Measurement:
        return benchmark.Measurement(1, program, per_epoch, per_epoch, None, 1.0, 10.0, 12.0, peak, "epoch 1/1")

    for per_epoch, ratios in ((None, 1), (2.0, 2)):
        page = benchmark.markdown([measured("loop", per_epoch, 50), measured("tutorial", per_epoch, 100)], "", [])
        assert page.count("| loop / tutorial |") == ratios, page
        assert "| loop / tutorial | peak memory, MiB | 0.500" in page
