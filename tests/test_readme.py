"""The examples in README and guide run, and do what the text says."""

from __future__ import annotations

import csv
import json
import re
import shlex
import statistics
import subprocess
import sys
from pathlib import Path

import pytest

import compare
from compare.app import cli
from compare.options import Options

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
GUIDE = {path: path.read_text(encoding="utf-8") for path in sorted((ROOT / "reports" / "guide").glob("*.md"))}


def example(name, text=README):
    """Returns the python block that begins with the comment ``# name``."""
    (found,) = [code for code in re.findall(r"```python\n(.*?)```", text, re.DOTALL) if code.startswith(f"# {name}\n")]
    return found


def before_and_after():
    """Returns ``my_loop.py`` without and with the lines that its diff adds."""
    (block,) = re.findall(r"```diff\n(.*?)```", README, re.DOTALL)
    lines = [line or " " for line in block.splitlines()]
    assert {line[0] for line in lines} == set(" -+")
    return tuple("".join(f"{line[1:]}\n" for line in lines if line[0] != left_out) for left_out in "+-")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A working directory with the README's files, which every test imports anew."""
    (tmp_path / "my_task.py").write_text(example("my_task.py"))
    (tmp_path / "my_loop.py").write_text(before_and_after()[1])
    (tmp_path / "test_my_loop.py").write_text(example("test_my_loop.py"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    for name in ("my_task", "my_loop", "test_my_loop"):
        sys.modules.pop(name, None)


# In the gate, the README's command does the same and prints the 30 steps.
@pytest.mark.slow
def test_the_readmes_task_and_loop_train_identically(tensorflow, folder):
    result = compare.run(
        "my_task.py", trainers=("fit", "my_loop.py:MyLoop"), strategy="default", epochs=2, reports=folder, quiet=True
    )
    (comparison,) = result.details["comparisons"]
    assert comparison["candidate"] == "my-loop"
    assert comparison["training"]["verdict"] == comparison["reporting"]["verdict"] == result.verdict == "identical"
    assert comparison["training"]["steps_compared"] == 2 * 15
    assert set(comparison["reporting"]["metrics"]) == {"loss", "accuracy", "val_loss", "val_accuracy"}


def test_the_loop_before_the_change_trains(tensorflow, folder, capsys):
    (folder / "my_loop.py").write_text(before_and_after()[0])
    import my_loop

    tensorflow.keras.utils.set_random_seed(0)  # other tests of this process make operations deterministic
    my_loop.train(epochs=3)
    losses = [float(line.split()[1]) for line in capsys.readouterr().out.splitlines()]
    assert len(losses) == 3 and losses[2] < losses[0]


def test_the_change_adds_few_lines():
    before, after = (code.splitlines() for code in before_and_after())
    new = [line for line in after if line.strip() and line not in before]
    assert len(new) <= 12


def test_its_test_passes_and_names_the_cause_where_the_loop_is_wrong(tensorflow, folder):
    import test_my_loop

    test_my_loop.test_my_loop_trains_like_fit()

    loop = before_and_after()[1]
    wrong = loop.replace(", sample_weight=tf.shape(y)[0]", "")
    assert wrong != loop
    (folder / "my_wrong_loop.py").write_text(wrong)
    with pytest.raises(AssertionError, match="loss-averaged-over-batches"):
        compare.assert_alike("my_task.py", "my_wrong_loop.py:MyLoop")


def test_its_python_lines_run(tensorflow, folder):
    (block,) = [code for code in re.findall(r"```python\n(.*?)```", README, re.DOTALL) if "compare.run(" in code]
    (folder / "reports").mkdir()
    (folder / "reports" / "example").symlink_to(ROOT / "reports" / "example")
    names = {}
    exec(block, names)
    assert names["result"].verdict == "identical" and len(names["result"].metrics) == 2 * 2


def commands():
    """Parameters: the README's commands with their output."""
    for block in re.findall(r"```text\n\$ (.*?)```", README, re.DOTALL):
        command, _, output = block.partition("\n")
        command = command.removeprefix("python scripts/compare.py ")
        yield pytest.param(command, output, id=command)


@pytest.mark.parametrize(("command", "output"), list(commands()))
def test_its_commands_print_what_it_says(folder, command, output):
    if "--scripts" in command:
        for path in (ROOT / "tests" / "scripts").glob("*.py"):
            (folder / path.name).write_text(path.read_text().replace('if "--forget" not in sys.argv', "if False"))
    # In a separate process: this one has four logical devices, which mirrored would use as replicas.
    script = [sys.executable, ROOT / "scripts" / "compare.py", *shlex.split(command)]
    ended = subprocess.run(script, stdout=subprocess.PIPE, text=True, encoding="utf-8")
    printed = without_times(ended.stdout)
    for part in filter(None, without_times(output).split("…\n")):  # stands for the end of a line or whole lines
        assert part in printed
        printed = printed.partition(part)[2]
    assert ended.returncode == ("\ndifferent: " in output)


def without_times(text):
    return re.sub(r"\d[\d.,]* (s|examples/s)\b", r"some \1", text)


def test_the_output_of_its_first_command_is_the_recorded_examples():
    run = ROOT / "reports" / "example"
    with open(run / "metrics.csv", newline="") as file:
        last = {row["trainer"]: row for row in csv.DictReader(file) if row["epoch"] == "10"}
    rows = re.findall(r"^(?:10| ) +(fit|loop) +(.*)$", README, re.MULTILINE)
    shown = {trainer: numbers.split() for trainer, numbers in rows}
    names = ["loss", "accuracy", "val_loss", "val_accuracy"]
    assert shown == {trainer: [row[name] for name in names] for trainer, row in last.items()}
    (comparison,) = json.loads((run / "verdict.json").read_text())["comparisons"]
    assert comparison["verdict"] == "identical"
    steps = comparison["training"]["steps_compared"]
    assert re.search(rf"^identical: loop .* after each of {steps:,} steps", README, re.MULTILINE)


def test_the_package_docstring_runs(tensorflow, tmp_path, monkeypatch):
    import doctest

    monkeypatch.chdir(tmp_path)
    found = doctest.testmod(compare)
    assert (found.attempted, found.failed) == (4, 0)


def test_the_first_lines_of_its_shell_blocks_are_the_two_commands():
    first, second = re.findall(r"```sh\n(.*?)\n", README)
    assert first.endswith(".venv/bin/python scripts/compare.py")
    assert second.endswith(".venv/bin/python -m pytest -q -n 3 --dist loadfile --no-loadscope-reorder")


def test_the_readme_stays_short():
    assert len(README.encode()) <= 9_500


def test_the_scripts_accept_the_guides_commands(tmp_path, monkeypatch):
    from compare.app import redraw, restore

    for name in ("NAME", "keras-3"):  # recorded runs that --against names
        (tmp_path / "reports" / name).mkdir(parents=True)
        (tmp_path / "reports" / name / "metrics.csv").touch()
    monkeypatch.chdir(tmp_path)
    seen = set()
    for text in GUIDE.values():
        lines = [line for block in re.findall(r"```sh\n(.*?)```", text, re.DOTALL) for line in block.splitlines()]
        for program, script, *arguments in (shlex.split(line) for line in lines if line.startswith("python ")):
            assert program == "python"
            if script == "scripts/compare.py":
                seen |= {argument for argument in arguments if argument.startswith("--")}
                Options(**vars(cli.parser().parse_args(arguments)))
            else:
                {"scripts/report.py": redraw, "scripts/restore.py": restore}[script].parser().parse_args(arguments)
    assert len(seen) > 20
    named = {script for text in [README, *GUIDE.values()] for script in re.findall(r"scripts/\w+\.py", text)}
    assert [script for script in sorted(named) if not (ROOT / script).is_file()] == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "cause"), [("summed.py:Summed", "loss-summed"), ("my_step.py:MyStep", "regularization-missing")]
)
def test_the_guides_wrong_steps_get_the_cause_that_it_says(tensorflow, folder, capsys, name, cause):
    text = GUIDE[ROOT / "reports" / "guide" / "loops.md"]
    file = name.partition(":")[0]
    (folder / file).write_text(example(file, text))
    (command,) = re.findall(rf"^python scripts/compare\.py (.*{re.escape(name)})$", text, re.MULTILINE)
    assert cli.main(shlex.split(command)) == 1
    assert cause in capsys.readouterr().out


def test_the_guides_table_of_costs_is_the_benchmarks():
    figures = {"cpu_seconds_per_epoch": 1, "wall_seconds": 1, "peak_mib": None}
    with open(ROOT / "reports" / "benchmark" / "benchmark.csv", newline="") as file:
        measured = list(csv.DictReader(file))
    text = GUIDE[ROOT / "reports" / "guide" / "benchmarks.md"]
    rows = re.findall(r"^\| `([\w-]+)` \| .*? \| ([\d.]+) \| ([\d.]+) \| (\d+) \|$", text, re.MULTILINE)
    assert len(rows) >= 9
    for program, *said in rows:
        of_program = [row for row in measured if row["program"] == program]
        for shown, (figure, digits) in zip(said, figures.items(), strict=True):
            median = statistics.median(float(row[figure]) for row in of_program)
            assert float(shown) == round(median, digits), (program, figure)


def links(text):
    return [link for link in re.findall(r"\]\(([^)\s]+)\)", text) if "://" not in link]


def anchors(path):
    """Returns the ids of an HTML page, or the anchors that GitHub creates from a page's headings."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".html":
        return set(re.findall(r' id="([^"]+)"', text))
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", [ROOT / "README.md", *GUIDE], ids=lambda page: page.name)
def test_links_have_targets(page):
    found = links(page.read_text(encoding="utf-8"))
    assert found
    for link in found:
        file, _, anchor = link.partition("#")
        target = page.parent / file if file else page
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link


def test_every_page_of_the_guide_is_linked_from_the_readme():
    linked = {(ROOT / link.partition("#")[0]).resolve() for link in links(README)}
    assert set(GUIDE) <= linked


def test_the_files_that_contributors_are_sent_to_exist():
    text = GUIDE[ROOT / "reports" / "guide" / "contributing.md"]
    files = re.findall(r"`((?:compare|tests)/[\w/.]*)`", text)
    assert len(files) > 10
    assert not [name for name in files if not (ROOT / name).exists()]
    rooms = set(re.findall(r"`(\w+)`", text.partition("## Where")[0]))
    assert {path.parent.name for path in (ROOT / "compare").glob("*/__init__.py")} <= rooms
