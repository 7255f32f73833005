"""The examples in README and guide run, and do what the text says."""

from __future__ import annotations

import csv
import difflib
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
from compare.app.command_line import parsed

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
    assert {"accuracy", "val_accuracy"} <= set(comparison["reporting"]["metrics"])


def test_the_loop_before_the_change_trains(tensorflow, folder, capsys):
    (folder / "my_loop.py").write_text(before_and_after()[0])
    import my_loop
    from my_task import experiment

    tensorflow.keras.utils.set_random_seed(0)  # other tests of this process make operations deterministic
    model, loss = experiment.build_model(), experiment.build_loss()
    datasets = [tensorflow.data.Dataset.from_tensor_slices(part).batch(64) for part in experiment.load_data()]
    my_loop.train(model, tensorflow.keras.optimizers.Adam(0.01), loss, *datasets, epochs=3)
    accuracies = [[float(number) for number in line.split()] for line in capsys.readouterr().out.splitlines()]
    assert [epoch for epoch, _, _ in accuracies] == [1, 2, 3]
    assert accuracies[2][1] > accuracies[0][1] and accuracies[2][2] > 0.5


def test_the_change_is_twenty_lines_at_most():
    """Added and removed lines, empty ones included, as git and the reader count them."""
    (block,) = re.findall(r"```diff\n(.*?)```", README, re.DOTALL)
    changed = [line for line in block.splitlines() if line.startswith(("+", "-"))]
    assert 10 < len(changed) <= 20
    counted = list(difflib.ndiff(*(code.splitlines() for code in before_and_after())))
    assert len(changed) == len([line for line in counted if line.startswith(("+", "-"))]), "no smaller than it is"


def test_the_loop_before_the_change_is_that_of_keras_guide():
    """Most of its lines; others are shorter here."""
    text = (ROOT / "tests" / "scripts" / "guide.py").read_text()
    guide = {line.strip().replace("keras.metrics", "tf.keras.metrics") for line in text.splitlines()}
    before = [line.strip() for line in before_and_after()[0].splitlines() if line.strip()]
    own = [line for line in before if line not in guide]
    assert len(own) < len(before) / 2, own


def test_its_test_passes_and_names_the_cause_where_the_loop_is_wrong(tensorflow, folder):
    import test_my_loop

    test_my_loop.test_my_loop_trains_like_fit()

    loop = before_and_after()[1]
    wrong = loop.replace("        train_acc_metric.reset_state()\n", "")
    assert wrong != loop
    (folder / "my_wrong_loop.py").write_text(wrong)
    with pytest.raises(AssertionError, match="metrics-not-reset"):
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
        command = command.removeprefix("fit-vs-loop ")
        yield pytest.param(command, output, id=command)


@pytest.mark.parametrize(("command", "output"), list(commands()))
def test_its_commands_print_what_it_says(folder, command, output):
    if command.startswith("scripts "):
        for path in (ROOT / "tests" / "scripts").glob("*.py"):
            (folder / path.name).write_text(path.read_text().replace('if "--forget" not in sys.argv', "if False"))
    # In a separate process: this one has four logical devices, which mirrored would use as replicas.
    script = [Path(sys.executable).with_name("fit-vs-loop"), *shlex.split(command)]
    ended = subprocess.run(script, stdout=subprocess.PIPE, text=True, encoding="utf-8")
    printed = alike_on_all_machines(ended.stdout)
    for part in filter(None, alike_on_all_machines(output).split("…\n")):  # stands for the end of a line or whole lines
        assert part in printed
        printed = printed.partition(part)[2]
    assert ended.returncode == ("\ndifferent: " in output)


def alike_on_all_machines(text):
    """Without times, what was waited for, and the last of many decimals, which differ between processors."""
    text = re.sub(r"^.* (… \d+ s|[━─]{28} .*)\n", "", text, flags=re.MULTILINE)
    text = re.sub(r"\d[\d.,]* (s|examples/s)\b", r"some \1", text)
    return re.sub(r"\d+\.\d{5,6}\b", lambda number: f"{float(number[0]):.3f}", text)


@pytest.mark.parametrize("name", ["example", "example-different"])
def test_the_output_of_recorded_examples_is_theirs(name):
    run = ROOT / "reports" / name
    said = f"{compare.load(run)}\n"
    verdict = json.loads((run / "verdict.json").read_text())["verdict"]
    (block,) = re.findall(rf"```text\n({verdict}: (?:loop|tutorial) .*?)```", README, re.DOTALL)
    for part in filter(None, (each.strip(" ") for each in block.split("…\n"))):
        assert part in said
        said = said.partition(part)[2]


def test_the_package_docstring_runs(tensorflow, tmp_path, monkeypatch):
    import doctest

    monkeypatch.chdir(tmp_path)
    found = doctest.testmod(compare)
    assert (found.attempted, found.failed) == (4, 0)


def test_the_first_lines_of_its_shell_blocks_are_the_two_commands():
    first, second = re.findall(r"```sh\n(.*?)\n", README)
    assert first == "python3 -m venv .venv && . .venv/bin/activate && pip install -q -e . && fit-vs-loop --epochs 2"
    assert second.startswith(". .venv/bin/activate && ")
    assert second.endswith(" && python -m pytest -q -n 3 --dist loadfile --no-loadscope-reorder")


def test_the_readme_stays_short():
    assert len(README.encode()) <= 9_000


def test_the_scripts_accept_the_guides_commands(tmp_path, monkeypatch):
    from compare.app import redraw, restore

    for name in ("NAME", "keras-3"):  # recorded runs that --baseline names
        (tmp_path / "reports" / name).mkdir(parents=True)
        (tmp_path / "reports" / name / "metrics.csv").touch()
    monkeypatch.chdir(tmp_path)
    seen = set()
    for text in GUIDE.values():
        lines = [line for block in re.findall(r"```sh\n(.*?)```", text, re.DOTALL) for line in block.splitlines()]
        for program, *arguments in filter(None, (shlex.split(line, comments=True) for line in lines)):
            if program == "fit-vs-loop":
                seen |= {argument for argument in arguments if argument.startswith("--")}
                parsed(arguments)
            elif program == "python":
                script, *arguments = arguments
                {"scripts/report.py": redraw, "scripts/restore.py": restore}[script].parser().parse_args(arguments)
    assert len(seen) > 20
    named = {script for text in [README, *GUIDE.values()] for script in re.findall(r"scripts/\w+\.py", text)}
    assert [script for script in sorted(named) if not (ROOT / script).is_file()] == []


def test_the_guides_loop_for_several_replicas_is_identical(tensorflow, folder):
    (folder / "my_replicas.py").write_text(example("my_replicas.py", GUIDE[ROOT / "reports" / "guide" / "loops.md"]))
    trainers = "fit", "my_replicas.py:MyReplicas"
    result = compare.run("my_task.py", trainers=trainers, epochs=1, replicas=2, reports=folder, quiet=True)
    assert result.verdict == "identical"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "cause"), [("summed.py:Summed", "loss-summed"), ("my_step.py:MyStep", "regularization-missing")]
)
def test_the_guides_wrong_steps_get_the_cause_that_it_says(tensorflow, folder, capsys, name, cause):
    text = GUIDE[ROOT / "reports" / "guide" / "loops.md"]
    file = name.partition(":")[0]
    (folder / file).write_text(example(file, text))
    (command,) = re.findall(rf"^fit-vs-loop (.*{re.escape(name)})$", text, re.MULTILINE)
    assert cli.main(shlex.split(command)) == 1
    assert cause in capsys.readouterr().out


def test_the_guides_table_of_costs_is_the_benchmarks():
    figures = {"wall_seconds": 1, "cpu_seconds": 1, "peak_mib": None}
    with open(ROOT / "reports" / "benchmark" / "benchmark.csv", newline="") as file:
        measured = list(csv.DictReader(file))
    text = GUIDE[ROOT / "reports" / "guide" / "benchmarks.md"]
    rows = re.findall(r"^\| `([\w-]+)` \| .*? \| ([\d.]+) \| ([\d.]+) \| (\d+) \|$", text, re.MULTILINE)
    assert len(rows) == len({row["program"] for row in measured})
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
