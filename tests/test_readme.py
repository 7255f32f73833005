"""The README's examples are programs: they run, and do what the README says."""

from __future__ import annotations

import csv
import re
import shlex
import statistics
from pathlib import Path

import pytest

import compare
from compare.app import cli

README = (Path(__file__).resolve().parents[1] / "README.md").read_text(encoding="utf-8")


def example(name):
    """The python block that begins with the comment ``# name``."""
    (found,) = [
        code for code in re.findall(r"```python\n(.*?)```", README, re.DOTALL) if code.startswith(f"# {name}\n")
    ]
    return found


def test_the_readmes_task_and_loop_train_identically(tensorflow, tmp_path):
    for name in ("my_task.py", "my_loop.py"):
        (tmp_path / name).write_text(example(name))
    result = compare.run(
        str(tmp_path / "my_task.py"),
        trainers=("fit", f"{tmp_path / 'my_loop.py'}:MyLoop"),
        strategy="default",
        epochs=2,
        reports=tmp_path,
        quiet=True,
    )
    (comparison,) = result.details["comparisons"]
    assert comparison["candidate"] == "my-loop"
    assert comparison["training"]["verdict"] == result.verdict == "identical"
    assert comparison["training"]["steps_compared"] == 2 * 15


def commands():
    """The commands that the README shows with what they print; those of minutes are slow tests."""
    for block in re.findall(r"```text\n\$ python scripts/compare\.py (.*?)```", README, re.DOTALL):
        command, _, output = block.partition("\n")
        if "^C" not in output:  # tests/test_resume.py interrupts runs
            long = "my_task.py" not in command
            yield pytest.param(command, output, id=command, marks=[pytest.mark.slow] if long else [])


@pytest.mark.parametrize(("command", "output"), list(commands()))
def test_its_commands_print_what_it_says(tensorflow, tmp_path, monkeypatch, capsys, command, output):
    for name in ("my_task.py", "my_loop.py"):
        (tmp_path / name).write_text(example(name))
    monkeypatch.chdir(tmp_path)
    status = cli.main(shlex.split(command))
    printed = without_times(capsys.readouterr().out)
    for part in filter(None, without_times(output).split("…\n")):
        assert part in printed
        printed = printed.partition(part)[2]
    assert status == ("\ndifferent: " in output)


def without_times(text):
    return re.sub(r"\d[\d.,]* (s|examples/s)\b", r"some \1", text)


def test_the_loop_is_as_short_as_promised():
    body = [line for line in example("my_loop.py").splitlines() if line.strip() and not line.startswith("#")]
    assert len(body) <= 20


def test_the_package_docstring_runs(tensorflow, tmp_path, monkeypatch):
    import doctest

    monkeypatch.chdir(tmp_path)
    found = doctest.testmod(compare)
    assert (found.attempted, found.failed) == (4, 0)


def test_the_first_lines_of_its_shell_blocks_are_the_two_commands():
    first, second = re.findall(r"```sh\n(.*?)\n", README)
    assert first.endswith(".venv/bin/python scripts/compare.py")
    assert second.endswith(".venv/bin/python -m pytest -q -n 3 --dist loadfile --no-loadscope-reorder")


def test_its_table_of_costs_is_the_benchmarks():
    figures = {"cpu_seconds_per_epoch": 1, "wall_seconds": 1, "peak_mib": None}
    with open(Path(__file__).resolve().parents[1] / "reports" / "benchmark" / "benchmark.csv", newline="") as file:
        measured = list(csv.DictReader(file))
    rows = re.findall(r"^\| `([\w-]+)` \| .*? \| ([\d.]+) \| ([\d.]+) \| (\d+) \|$", README, re.MULTILINE)
    assert len(rows) >= 9
    for program, *said in rows:
        of_program = [row for row in measured if row["program"] == program]
        for text, (figure, digits) in zip(said, figures.items(), strict=True):
            median = statistics.median(float(row[figure]) for row in of_program)
            assert float(text) == round(median, digits), (program, figure)


def test_its_links_lead_somewhere():
    root = Path(__file__).resolve().parents[1]
    links = [link.partition("#")[0] for link in re.findall(r"\]\(([^)\s]+)\)", README) if "://" not in link]
    assert len(links) > 10
    assert [link for link in links if link and not (root / link).exists()] == []
