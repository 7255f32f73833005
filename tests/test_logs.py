"""``--logs``: curves of trainings elsewhere are drawn and compared, and marked as curves without weights."""

from __future__ import annotations

import json
import math
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
import recorded

import compare
from compare.app.cli import main
from compare.errors import RequestError, StorageError
from compare.records.log_sides import read_sides
from compare.records.logs import fit_name
from compare.records.metrics_csv import read_metrics, shortest
from compare.records.run_json import read_verdict
from compare.reporting import plots, tensorboard

LOSS = [0.9125381708145142, 0.6071239113807678, 0.48823288083076477]  # as Keras's CSVLogger writes float32


def csv(path: Path, columns: Mapping[str, Sequence[object]], first: int = 0, separator: str = ",") -> Path:
    """A log as ``CSVLogger`` writes it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = zip(*columns.values(), strict=True)
    lines = [["epoch", *columns], *([epoch, *row] for epoch, row in enumerate(rows, start=first))]
    path.write_text("".join(separator.join(map(str, line)) + "\n" for line in lines))
    return path


def run(folder: Path, *logs: object, options: Sequence[str] = ()) -> tuple[int, dict]:
    """The exit status, and the content of ``verdict.json``."""
    status = main(["--logs", *map(str, logs), "--reports", str(folder / "reports"), "--name", "run", *options])
    return status, read_verdict(folder / "reports" / "run" / "verdict.json")


def refused(capsys: pytest.CaptureFixture[str], folder: Path, *arguments: object) -> str:
    """The one line of a request that is refused, and leaves nothing."""
    assert main([*map(str, arguments), "--reports", str(folder / "reports")]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert not list((folder / "reports").glob("*/*"))
    return line


def test_the_numbers_of_a_comparison_are_verified(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    metrics = recorded.identical(tmp_path / "run") / "metrics.csv"
    whole = metrics.read_text()
    metrics.write_text(whole.replace("0.5", "0.6"))
    for log in (metrics, metrics.parent):
        assert "does not match its checksum" in refused(capsys, tmp_path, "--logs", log)
    assert metrics.read_text() != whole


def test_equal_logs_are_alike_and_never_identical(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fit = csv(tmp_path / "fit.csv", {"accuracy": [0.5, 0.75, 0.875], "loss": LOSS})
    loop = csv(tmp_path / "loop.csv", {"Time (s)": [1, 2, 3], "acc": [0.5, 0.75, 0.875], "loss": LOSS}, first=1)
    status, verdict = run(tmp_path, fit, loop)
    assert (status, verdict["verdict"], verdict["scope"]) == (0, "alike", "logs")
    (entry,) = verdict["comparisons"]
    assert entry["weights_seen"] is False and entry["training"]["max_weight_gap"] is None
    assert {name: gap["max_gap"] for name, gap in entry["reporting"]["metrics"].items()} == {"accuracy": 0, "loss": 0}
    assert "identical" not in json.dumps(verdict)
    said = capsys.readouterr().out
    assert "alike: curves only, weights not seen: loop compared with fit: the logged numbers are equal in 3 epochs" in (
        said
    )
    assert "acc is compared as accuracy" in said and "not compared: Time (s)" in said
    folder = tmp_path / "reports" / "run"
    page = (folder / "report.html").read_text()
    assert (
        "Curves only: the weights were not seen, so the verdict is never identical." in page
        and "Their curves are alike." in page
    )
    assert "Not seen: only logged numbers were compared." in page and "Rounding: the two" not in page
    assert (folder / "comparison.png").stat().st_size > 10_000
    rows = read_metrics(folder / "metrics.csv")
    assert [(row["trainer"], row["epoch"]) for row in rows][2:4] == [("fit", "3"), ("loop", "1")]
    assert rows[0]["loss"] == "0.9125382" and np.float32(rows[0]["loss"]) == LOSS[0]
    assert "curves only" in (tmp_path / "reports" / "index.html").read_text()
    assert len(compare.load(folder).gaps) == 0 and "curves only" in compare.load(folder)._repr_html_()
    run_json = json.loads((folder / "run.json").read_text())
    assert run_json["status"] == "finished" and str(fit) in run_json["code"]


def test_one_pair_of_unequal_logs_is_inconclusive_and_says_what_would_tell(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fit = csv(tmp_path / "fit.csv", {"loss": LOSS, "val_loss": LOSS, "mae": [0.5, 0.25, 0.5]})
    loss = [LOSS[0], LOSS[1] + 0.25, LOSS[2]]
    loop = csv(tmp_path / "loop.csv", {"loss": loss, "val_loss": LOSS, "mae": [0.5, 0.25, 0.5]})
    status, verdict = run(tmp_path, fit, loop)
    assert (status, verdict["verdict"]) == (3, "inconclusive")
    assert verdict["comparisons"][0]["training"]["first_difference"] == {"epoch": 2, "step": None}
    said = " ".join(capsys.readouterr().out.split())
    equal = "val_loss and mae agree to the last digit, as with equal weights: look at how loss is calculated"
    assert f"differ (loss from epoch 2 on, by up to 2.5e-01); {equal}" in said and "cannot tell" not in said
    shutil.rmtree(tmp_path / "reports")
    fit = csv(tmp_path / "fit.csv", {"loss": LOSS, "mae": [0.5, 0.25, 0.5]})
    run(tmp_path, fit, loop)
    said = " ".join(capsys.readouterr().out.split())
    assert "differ (loss from epoch 2 on, by up to 2.5e-01); one log of each cannot tell" in said
    assert "fit-vs-loop scripts" in said and "several seeds" in said
    page = (tmp_path / "reports" / "run" / "report.html").read_text()
    assert page.count("one log of each cannot tell") == 1 and "In the numbers of epoch 2" in page
    assert "Not seen: only logged numbers were compared." in page
    assert "compared bit for bit at the end of every epoch" not in page


def test_an_accuracy_in_percent_is_noticed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fit = csv(tmp_path / "fit.csv", {"accuracy": [0.5, 1.0]})
    loop = csv(tmp_path / "loop.csv", {"accuracy": [51.0, 99.0]})
    run(tmp_path, fit, loop)
    said = capsys.readouterr().out
    assert said.count("in percent") == 1 and "Note: loop: accuracy is above 1, as in percent: divide it" in said


def test_numbers_with_a_decimal_comma_are_read(tmp_path: Path) -> None:
    csv(tmp_path / "a.csv", {"loss": ["1.5", "0.25", "1e-06"]})
    csv(tmp_path / "b.csv", {"loss": ["1,5", ",25", "1e-6"]}, separator=";")
    (one,), (other,) = read_sides([str(tmp_path / name) for name in ("a.csv", "b.csv")]).values()
    assert one.epochs == other.epochs


@pytest.mark.parametrize(
    ("columns", "why"),
    [
        ({"accuracy": [0.5, 0.75, 0.875]}, "no loss has 6 digits"),
        ({"loss": [0.9, 0.6, 0.5]}, "no loss has 6 digits"),  # rounded for reading
        ({"loss": [LOSS[0]] * 3}, "no loss has 6 digits or more and changes"),  # nothing was trained
    ],
)
def test_equal_numbers_that_say_little_are_inconclusive(
    tmp_path: Path, columns: dict[str, list[float]], why: str
) -> None:
    fit, loop = (csv(tmp_path / f"{name}.csv", columns) for name in ("fit", "loop"))
    status, verdict = run(tmp_path, fit, loop)
    assert (status, verdict["verdict"]) == (3, "inconclusive")
    assert why in verdict["comparisons"][0]["training"]["reason"]


def test_numbers_that_are_paired_by_their_values_are_said_and_stand_in_one_column(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fit = csv(tmp_path / "fit.csv", {"loss": LOSS, "other": [1, 2, 3]})
    loop = csv(tmp_path / "loop.csv", {"q": LOSS, "another": [3, 2, 1]})
    assert run(tmp_path, fit, loop)[1]["verdict"] == "alike"
    lines = capsys.readouterr().out.splitlines()
    said = "q of loop is compared with loss of fit, which has the same values."
    assert f"Note: {said}" in lines and said in (tmp_path / "reports" / "run" / "report.html").read_text()
    table = lines.index(next(line for line in lines if line.startswith("epoch")))
    assert [line.split() for line in lines[table : table + 4]] == [
        ["epoch", "trainer", "loss", "other", "another"],
        ["1", "fit", "0.9125382", "1.0"],
        ["loop", "0.9125382", "3.0"],
        ["gap", "0"],
    ]


def test_other_lengths_missing_columns_blanks_and_nan(tmp_path: Path) -> None:
    fit = csv(tmp_path / "fit.csv", {"loss": LOSS, "val_loss": ["NA", LOSS[1], "nan"], "extra": LOSS})
    loop = csv(tmp_path / "loop.csv", {"loss": LOSS[:2], "val_loss": ["", LOSS[1]]}, separator=";")
    _, verdict = run(tmp_path, fit, loop)
    (entry,) = verdict["comparisons"]
    assert entry["training"]["reason"].endswith(
        "equal in 2 epochs (loss, val_loss in 1 epoch), but loss is logged in 3 epochs by fit and in 2 epochs by loop"
    )
    assert entry["reporting"]["metrics"]["extra"]["not_reported_by"] == "loop"
    shutil.rmtree(tmp_path / "reports")
    one = csv(tmp_path / "one.csv", {"loss": [LOSS[0], "nan"]})
    _, verdict = run(tmp_path, one, loop)
    assert (
        f"loss from epoch 2 on, in epoch 2 nan in one and {shortest(LOSS[1])} in loop"
        in (verdict["comparisons"][0]["training"]["reason"])
    )
    assert verdict["comparisons"][0]["training"]["first_difference"]["epoch"] == 2
    shutil.rmtree(tmp_path / "reports")
    other = csv(tmp_path / "other.csv", {"mae": LOSS})
    _, verdict = run(tmp_path, one, other)
    reason = verdict["comparisons"][0]["training"]["reason"]
    assert "the logs have no number in common: one has loss, other has mae" in reason


def test_two_infinities_of_other_signs_are_neither_equal_nor_one_sided(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one, other = (csv(tmp_path / f"{sign}.csv", {"loss": [*LOSS[:2], sign]}) for sign in ("inf", "-Infinity"))
    status, verdict = run(tmp_path, one, other)
    (entry,) = verdict["comparisons"]
    said = capsys.readouterr().out
    assert status == 3 and "loss from epoch 3 on, in epoch 3 inf in inf and -inf in -Infinity" in said
    assert "not_finite" not in entry and "WARNING" not in said
    gaps = [line.split() for line in said.splitlines() if line.strip().startswith("gap")]
    assert gaps == [["gap", "0"], ["gap", "0"], ["gap", "-inf"]], "the other epochs are equal"


def seeds(folder: Path, name: str, shift: float, spread: float = 1e-3) -> list[Path]:
    """Logs of five seeds, their validation loss shifted."""
    generator = np.random.default_rng(len(name))
    return [
        csv(
            folder / f"{name}-{seed}.csv",
            {"loss": LOSS, "val_loss": [value + shift + spread * generator.normal() for value in LOSS]},
        )
        for seed in range(5)
    ]


def test_logs_differ_from_the_first_epoch_on_in_which_they_say_something_else(tmp_path: Path) -> None:
    # Numbers with few digits are taken for float32, but only where the whole column has few.
    fit = csv(tmp_path / "fit.csv", {"loss": [0.1, 0.7, 0.30000000000000004]})
    loop = csv(tmp_path / "loop.csv", {"loss": [0.1, 0.6, 0.25]})
    for logs in ((fit, loop), (loop, fit)):
        status, verdict = run(tmp_path, *logs)
        (comparison,) = verdict["comparisons"]
        assert (status, comparison["training"]["first_difference"]) == (3, {"epoch": 2, "step": None})
        assert "loss from epoch 2 on, by up to 1.0e-01" in comparison["training"]["reason"]
        shutil.rmtree(tmp_path / "reports")


@pytest.mark.parametrize(
    ("shift", "spread", "word", "status"),
    [(0.0, 1e-3, "alike", 0), (0.2, 1e-3, "different", 1), (0.0, 0.1, "inconclusive", 3)],
)
def test_logs_of_several_seeds_are_judged_as_a_study(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], shift: float, spread: float, word: str, status: int
) -> None:
    logs = [path for pair in zip(seeds(tmp_path, "fit", 0), seeds(tmp_path, "loop", shift, spread), strict=True)
            for path in pair]  # fmt: skip
    found, verdict = run(tmp_path, *logs)
    assert (found, verdict["verdict"]) == (status, word)
    (entry,) = verdict["comparisons"]
    assert (entry["study"]["seeds"], entry["study"]["verdict"], entry["candidate"]) == (5, word, "loop")
    said = " ".join(capsys.readouterr().out.split())
    assert f"{word}: curves only, weights not seen: loop compared with fit" in said and "5 seeds" in said


def test_a_log_without_a_partner_is_said_not_to_be_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    logs = [*seeds(tmp_path, "fit", 0), *seeds(tmp_path, "loop", 0)[:-2]]
    csv(logs[4], {"loss": [0.5, math.nan]})
    status, verdict = run(tmp_path, *logs)
    assert (status, verdict["comparisons"][0]["study"]["seeds"]) == (0, 3)
    told, alone = capsys.readouterr().out, "has no partner among the logs of loop and is not compared"
    assert f"Note: fit, seed 3 ({logs[3]}), {alone}.\n" in told
    assert f"Note: fit, seed 4 ({logs[4]}), {alone}; its loss is nan in epoch 2.\n" in told


def test_what_only_one_side_logs_in_an_epoch_is_said_not_to_be_compared(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    logs = [
        csv(
            tmp_path / f"{name}-{i}.csv",
            {"loss": LOSS[: 2 + more], "val_loss": [0.5, 0.4 + i / 1000, "NA"][: 2 + more]},
        )
        for name, more in (("fit", 0), ("loop", 1))
        for i in range(3)
    ]
    assert run(tmp_path, *logs)[0] == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "Note: loss of epoch 3: not compared, since fit does not log it there." in said and "val_loss of" not in said
    assert "agree within the margins in every epoch that both log (3 seeds" in said


@pytest.mark.parametrize(
    ("short", "word"),
    [(["loop-2"], "inconclusive"), (["fit-0"], "inconclusive"), (["fit-1", "loop-1"], "alike"), ([], "alike")],
)
def test_a_log_that_ends_before_its_partner_is_told_and_nothing_is_called_alike_without_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], short: list[str], word: str
) -> None:
    logs = [
        csv(
            tmp_path / f"{name}-{i}.csv",
            {
                "loss": LOSS[: 1 if f"{name}-{i}" in short else 2],
                "val_loss": [0.5, 0.4][: 1 if f"{name}-{i}" in short else 2],
            },
        )
        for name in ("fit", "loop")
        for i in range(4)
    ]
    assert run(tmp_path, *logs)[1]["verdict"] == word
    said = " ".join(capsys.readouterr().out.split())
    assert (
        f"{short[0]}.csv lacks loss, val_loss of epoch 2, so nothing is called alike" in said
        if len(short) == 1
        else "lacks" not in said
    )


@pytest.mark.parametrize(
    ("names", "told"),
    [(("1", "01"), "fit-1.csv: it is of seed 1, and so is fit-01.csv"), (("1", "9" * 20), "must be below")],
)
def test_numbers_that_cannot_be_the_seeds_of_logs_are_refused(tmp_path: Path, names: Sequence[str], told: str) -> None:
    for number in names:
        csv(tmp_path / f"fit-{number}.csv", {"loss": LOSS})
    with pytest.raises(RequestError, match=told):
        read_sides([f"{tmp_path}/fit-*.csv", f"{tmp_path}/loop-*.csv"])


def test_an_epoch_that_no_log_of_one_side_has_is_no_difference_of_a_study(tmp_path: Path) -> None:
    logs = [
        csv(tmp_path / f"{name}-{i}.csv", {"loss": LOSS[:epochs], "val_loss": [0.5, 0.4 + i / 1000, 0.3][:epochs]})
        for name, epochs in (("fit", 2), ("loop", 3))
        for i in range(3)
    ]
    assert run(tmp_path, *logs)[1]["verdict"] == "alike"


def test_a_number_that_is_not_finite_on_one_side_says_nothing_of_weights(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    logs = [
        csv(tmp_path / f"{name}-{i}.csv", {"loss": [first, 0.5], "val_loss": [0.5, 0.4]})
        for name, first in (("fit", 1.0), ("loop", math.inf))
        for i in range(3)
    ]
    assert run(tmp_path, *logs)[0] == 1
    said = " ".join(capsys.readouterr().out.split())
    assert "loss of epoch 1 is inf with loop and 1.0 with fit; curves only, weights not seen." in said


def test_a_margin_is_for_several_seeds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    logs = [*seeds(tmp_path, "fit", 0), *seeds(tmp_path, "loop", 0.2)]
    status, verdict = run(tmp_path, *logs, options=["--margin", "val_loss=0.5"])
    assert (status, verdict["verdict"]) == (0, "alike")
    said = " ".join(capsys.readouterr().out.split())
    assert "margins val_loss ±0.5; other numbers have none, and were not judged)" in said
    shutil.rmtree(tmp_path / "reports")
    capsys.readouterr()
    said = refused(capsys, tmp_path, "--logs", *logs, "--margin", "nosuch=1")
    assert "--margin nosuch=1: fit reports no nosuch, but " in said
    assert "--margin is for several seeds" in refused(
        capsys, tmp_path, "--logs", logs[0], logs[5], "--margin", "loss=1"
    )


def test_seeds_are_found_in_folders_patterns_and_names(tmp_path: Path) -> None:
    for name in ("fit", "loop"):
        seeds(tmp_path / name, "log", 0)
        seeds(tmp_path, name, 0)
        for seed in (3, 12):
            csv(tmp_path / f"seed{seed}" / f"{name}.csv", {"loss": LOSS})
    five = {"fit": [0, 1, 2, 3, 4], "loop": [0, 1, 2, 3, 4]}

    def found(*wanted: str) -> dict[str, list[int | None]]:
        return {name: [log.seed for log in logs] for name, logs in read_sides(wanted).items()}

    assert found(f"{tmp_path}/fit", f"{tmp_path}/loop") == five
    assert found(f"{tmp_path}/fit-*.csv", f"{tmp_path}/loop-*.csv") == five
    assert found(*(str(path) for name in five for path in sorted(tmp_path.glob(f"{name}-*.csv")))) == five
    in_folders = [f"{tmp_path}/seed{seed}/{name}.csv" for seed in (3, 12) for name in ("fit", "loop")]
    assert found(*in_folders) == {"fit": [3, 12], "loop": [3, 12]}
    assert list(found(f"{tmp_path}/fit-0.csv", f"{tmp_path}/fit-1.csv")) == ["fit-0", "fit-1"]
    for pattern in ("{}/seed{}", "{}/{}", "{}-seed{}"):
        files = [
            csv(tmp_path / "unequal" / pattern / f"{pattern.format(name, i)}.csv", {"loss": LOSS})
            for name, count in (("fit", 3), ("loop", 1))
            for i in range(count)
        ]
        wanted = [files, [files[0].parent, files[-1].parent]] if "/" in pattern else [files]
        for each in wanted:
            with pytest.raises(RequestError, match=r"^fit has the seeds 0, 1, 2, and loop has one log; "):
                found(*map(str, each))
    for one, other in (("a/fit", "loop"), ("run1", "run2")):
        said, others = ("seed{}", "Seed-{}", "seed{}.epoch10"), ("{}", "run-{}", "log{}", "{}.log", "log_({})_final")
        for pattern in said if other == "run2" else said + others:
            folders = [tmp_path / "alone" / pattern / name for name in (one, other)]
            files = [csv(folder / f"{pattern.format(i)}.csv", {"loss": LOSS}) for folder in folders for i in (0, 1, 2)]
            sides = {folder.name: [0, 1, 2] for folder in folders}
            assert found(*map(str, files)) == found(*map(str, folders)) == sides, (pattern, one)
            assert found(*(f"{folder}/*.csv" for folder in folders)) == sides
    together = [csv(tmp_path / "flat" / f"{name}_{i}_log.csv", {"loss": LOSS}) for name in five for i in (0, 1, 2)]
    assert found(*map(str, together)) == {"fit_log": [0, 1, 2], "loop_log": [0, 1, 2]}
    for file in ("train", "0"):
        above = [
            csv(tmp_path / "above" / name / f"seed{i}" / f"{file}.csv", {"loss": LOSS}) for name in five for i in (0, 4)
        ]
        assert found(*map(str, above)) == {"fit": [0, 4], "loop": [0, 4]}
    assert len(found(*map(str, above[:2]))) == 2, "two trainings, if there is no other"
    in_front = [csv(tmp_path / "front" / f"{i}_{name}.csv", {"loss": LOSS}) for i in (0, 1) for name in five]
    assert found(*map(str, in_front)) == {"fit": [0, 1], "loop": [0, 1]}
    trainings = [csv(tmp_path / f"seed{i}" / f"run{j}.csv", {"loss": LOSS}) for i in (1, 2) for j in (1, 2)]
    assert found(*map(str, trainings)) == {"run1": [1, 2], "run2": [1, 2]}
    unclear = [csv(tmp_path / f"s{i}" / f"run{j}.csv", {"loss": LOSS}) for i in (1, 2) for j in (1, 2)]
    with pytest.raises(RequestError, match="the number of the file the seed, or that of its folder"):
        found(*map(str, unclear))
    mixed = [csv(tmp_path / "lr" / f"lr{rate}-{i}.csv", {"loss": LOSS}) for rate in (0.1, 0.01) for i in (0, 1)]
    expected = {"lr0.1": [0, 1], "lr0.01": [0, 1]}
    assert found(*map(str, mixed)) == found(*(f"{tmp_path}/lr/lr{rate}-*.csv" for rate in (0.1, 0.01))) == expected
    assert list(found(f"{tmp_path}/fit/log-0.csv", f"{tmp_path}/loop/log-0.csv")) == ["fit", "loop"]


def test_our_own_metrics_file_holds_both_sides(tmp_path: Path) -> None:
    folder = recorded.different(tmp_path / "run")
    status, verdict = run(tmp_path, folder)
    assert (status, [entry["verdict"] for entry in verdict["comparisons"]]) == (3, ["alike", "inconclusive"])
    assert [entry["candidate"] for entry in verdict["comparisons"]] == ["loop", "mine"]
    log = tensorboard.write(folder)
    assert list(read_sides([str(log / "fit"), str(log / "mine")])["mine"][0].epochs[3]) == (
        ["loss", "accuracy", "val_loss", "val_accuracy"]
    )


def test_logs_are_compared_from_python_too(tmp_path: Path) -> None:
    folder = recorded.identical(tmp_path / "run")
    result = compare.run(logs=folder / "metrics.csv", reports=tmp_path / "reports", name="logs", quiet=True)
    assert result.verdict == "alike" and set(result.metrics.trainer) == {"fit", "loop"}
    assert result.figures["comparison"] is not None


def test_times_are_no_metrics_and_the_epoch_may_be_called_Epoch(tmp_path: Path) -> None:
    names = "elapsed", "Elapsed Time", "train_time", "seconds", "duration_s", "samples_per_sec", "time_elapsed"
    names += "step", "global_step", "Iterations"
    logs = []
    for first in (0, 1):
        times = {name: [first + 1.5, first + 2.5, first + 3.5] for name in names}
        log = csv(tmp_path / f"log{first}.csv", {"loss": LOSS, "time_mae": LOSS, **times}, first)
        log.write_text("\n" * first + log.read_text().replace("epoch", ("Epoch", "EPOCH")[first]))
        logs.append(str(log))
    for (log,) in read_sides(logs).values():
        assert list(log.epochs) == [1, 2, 3] and list(log.epochs[1]) == ["loss", "time_mae"]


def test_names_of_loops_become_those_of_fit() -> None:
    names = {
        "train_loss": "loss", "Test Accuracy": "val_accuracy", "valid_acc": "val_accuracy", "acc": "accuracy",
        "val_sparse_categorical_accuracy": "val_accuracy", "validation_mae": "val_mae", "mIoU": "mIoU",
    }  # fmt: skip
    assert {name: fit_name(name) for name in names} == names


@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # Keras's own, in its callback
def test_what_keras_itself_writes(tensorflow, tmp_path: Path) -> None:
    keras = tensorflow.keras
    keras.utils.set_random_seed(0)
    generator = np.random.default_rng(0)
    x, y = generator.normal(size=(64, 4)).astype("float32"), generator.integers(0, 2, 64)
    model = keras.Sequential([keras.layers.Dense(2)])
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True),
                  metrics=[keras.metrics.SparseCategoricalAccuracy()])  # fmt: skip
    callbacks = [keras.callbacks.CSVLogger(tmp_path / "logger.csv"), keras.callbacks.TensorBoard(tmp_path / "board")]
    history = model.fit(x, y, validation_data=(x, y), epochs=3, verbose=0, callbacks=callbacks).history
    status, verdict = run(tmp_path, tmp_path / "logger.csv", tmp_path / "board")
    assert (status, verdict["verdict"]) == (0, "alike")
    metrics = verdict["comparisons"][0]["reporting"]["metrics"]
    compared = {name for name, gap in metrics.items() if gap["max_gap"] == 0}
    assert compared == {"loss", "accuracy", "val_loss", "val_accuracy"}
    rows = compare.load(tmp_path / "reports" / "run").metrics
    np.testing.assert_array_equal(np.float32(rows[rows.trainer == "board"].val_loss), np.float32(history["val_loss"]))


def test_a_blank_on_one_side_is_said_and_not_taken_for_equal(tmp_path: Path) -> None:
    fit = csv(tmp_path / "fit.csv", {"loss": LOSS})
    loop = csv(tmp_path / "loop.csv", {"loss": [LOSS[0], "", LOSS[2]]})
    status, verdict = run(tmp_path, fit, loop)
    assert (status, verdict["verdict"]) == (3, "inconclusive")
    reason = verdict["comparisons"][0]["training"]["reason"]
    assert reason.endswith("but loss is logged in 3 epochs by fit and in 2 epochs by loop")
    shutil.rmtree(tmp_path / "reports")
    both = [csv(tmp_path / f"{name}.csv", {"loss": LOSS, "val_loss": ["", LOSS[1], ""]}) for name in ("a", "b")]
    _, verdict = run(tmp_path, *both)
    assert verdict["verdict"] == "alike" and "(loss, val_loss in 1 epoch)" in str(verdict)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"loss": [1.0, 0.5]}', "this is JSON; give a CSV file"),
        ("", "there is no epoch in it"),
        ("epoch,loss\n", "there is no epoch in it"),
        ("0.5,0.25\n0.4,0.2\n", "the first line is no header"),
        ("epoch,loss\n0,1.5\n0,1.25\n", "epoch 0 occurs twice"),
        ("epoch,loss\n5,1.5\n6,1.25\n", "it begins with epoch 5"),
        ("epoch,loss\n9223372036854775807,1.5\n9223372036854775808,1.25\n", "it begins with epoch 9223372036854775808"),
        ("epoch,loss\nfirst,1.5\n", "'first' in the column 'epoch' is not a whole number"),
        ("epoch,loss\n0,1.5\n99999999999999999999,1.25\n", "the largest epoch is 1,000,000"),
        ("epoch,loss\ninf,1.5\n", "'inf' in the column 'epoch' is not a whole number"),
        ("epoch,loss\n0,1.5\n1,high\n", "'high' in the column 'loss' is not a number"),
        ("epoch,loss\n0,1.5,3\n", "line 2 has 3 values for 2 columns"),
        ("epoch,loss,loss\n0,1,1\n", "names a column twice"),
        (",".join(["epoch", *(f"c{i}" for i in range(1000))]), "it has 1,001 columns; keep those to compare, 1,000 at"),
        ("epoch,time\n0,12:00\n", "there is no column with numbers"),
        ("trainer,seed,epoch,loss\nfit,0,1,0.5\n", "not the header of a metrics.csv"),
        ("import compare\n\nprint(1, 2)\n", "it is not a CSV log"),
        (b"\x89PNG\xff\xfe", "not a CSV file"),
        ("epoch,loss\n0,1.5\n".encode("utf-16"), "; save it in UTF-8"),
    ],
)
def test_a_log_that_cannot_be_read_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str | bytes, message: str
) -> None:
    fit, bad = csv(tmp_path / "fit.csv", {"loss": LOSS}), tmp_path / "bad.csv"
    bad.write_bytes(text if isinstance(text, bytes) else text.encode())
    line = refused(capsys, tmp_path, "--logs", fit, bad)
    assert message in line and str(bad) in line


def test_equal_texts_are_equal_numbers_whatever_the_digits_beside_them(tmp_path: Path) -> None:
    one = csv(tmp_path / "fit.csv", {"loss": ["0.7123456", "0.1", "0.5123456"]})
    other = csv(tmp_path / "loop.csv", {"loss": ["0.7123456", "0.1", "0.51234567891"]})
    (fit,), (loop,) = read_sides([str(one), str(other)]).values()
    gaps = [loop.epochs[epoch]["loss"] - fit.epochs[epoch]["loss"] for epoch in (1, 2, 3)]
    assert gaps == [0, 0, 0.51234567891 - 0.5123456]


@pytest.mark.parametrize("text", ["1_2.3456", "\u0661.\u0662"])
def test_what_only_python_takes_for_a_number_is_none(
    tmp_path: Path, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    wrong, right = csv(tmp_path / "a.csv", {"loss": [0.5, text]}), csv(tmp_path / "b.csv", {"loss": [0.5, 0.4]})
    assert "is not a number" in refused(capsys, tmp_path, "--logs", wrong, right)


def test_a_request_that_cannot_be_meant_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fit, loop = (csv(tmp_path / f"{name}.csv", {"loss": LOSS}) for name in ("fit", "loop"))
    (tmp_path / "empty").mkdir()
    run_folder = recorded.identical(tmp_path / "run")
    for arguments, message in [
        (["--logs", fit], "that is one training, fit; give the log"),
        (["--logs", fit, loop, tmp_path / "." / "fit.csv"], "fit.csv: it is given twice; give the logs of two"),
        (["--logs", "", fit], "'': give the name of a file or folder"),
        (["--logs", fit, tmp_path / "no.csv"], "there is no such file or folder"),
        (["--logs", fit, f"{'x' * 5000}.csv"], "there is no such file or folder"),
        (["--logs", fit, tmp_path / "empty"], "there is no log in it"),
        (["--logs", fit, run_folder], "it holds the trainings fit and loop; give it alone"),
        (["--logs", fit, loop, "--epochs", "3"], "--epochs has no meaning with logs"),
        (["--logs", fit, loop, "--scripts", "a.py", "b.py"], "--logs has no meaning with scripts"),
        (["--logs", fit, loop, "--seeds", "3"], "--seeds has no meaning with logs"),
        (["--logs", fit, loop, "--margin", "loss"], "give METRIC=VALUE"),
        (["--logs", fit, csv(tmp_path / "red.csv", {"\x1b[31m": LOSS})], "'\\x1b[31m' cannot be the name of a column"),
    ]:
        assert message in refused(capsys, tmp_path, *arguments), arguments
    for name, numbers in (("fit", (0, 1)), ("loop", (1, 2))):
        for number in numbers:
            csv(tmp_path / f"{name}-{number}.csv", {"loss": LOSS})
    logs = [tmp_path / f"{name}-{number}.csv" for name, numbers in (("fit", (0, 1)), ("loop", (1, 2)))
            for number in numbers]  # fmt: skip
    assert "fit has the seeds 0, 1, and loop has the seeds 1, 2" in refused(capsys, tmp_path, "--logs", *logs)


def test_a_damaged_event_file_is_one_line_and_an_unfinished_one_is_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("fit", "loop"):
        events = tensorboard.EventFile(tmp_path / name)
        for step, value in enumerate(LOSS):
            events.write(tensorboard.scalar(step, 0.0, "epoch_loss", value))
        events.close()
    path = tmp_path / "loop" / tensorboard.FILE
    content = path.read_bytes()
    path.write_bytes(content[:-3])  # the last event is being written
    sides = read_sides([str(tmp_path / "fit"), str(tmp_path / "loop")])
    assert {name: list(logs[0].epochs) for name, logs in sides.items()} == {"fit": [1, 2, 3], "loop": [1, 2]}
    path.write_bytes(content[:-20] + b"\x00" + content[-19:])
    assert "damaged at byte" in refused(capsys, tmp_path, "--logs", tmp_path / "fit", tmp_path / "loop")
    os.truncate(path, 10**11)
    assert "bytes, too many for such a file" in refused(capsys, tmp_path, "--logs", tmp_path / "fit", tmp_path / "loop")
    path.write_bytes(content + content)
    assert "epoch_loss has step 0 twice" in refused(capsys, tmp_path, "--logs", tmp_path / "fit", tmp_path / "loop")


@pytest.mark.parametrize(
    ("error", "status", "text"),
    [
        (KeyboardInterrupt(), 130, "interrupted; this cannot be resumed: "),
        (StorageError("the disk is full: free some space", "then continue with --resume"), 3, "free some space, then "),
    ],
)
def test_what_ends_a_comparison_while_it_draws_is_told_with_what_to_do(
    error: BaseException,
    status: int,
    text: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(plots, "draw", Mock(side_effect=error))
    command = ["--logs", *(str(csv(tmp_path / f"{name}.csv", {"loss": LOSS})) for name in ("fit", "loop"))]
    for name, how in [([], "run it again"), (["--name", "run"], "/run, or choose another --name, and run it again")]:
        assert main([*command, "--reports", str(tmp_path / "reports"), *name]) == status
        (line,) = capsys.readouterr().err.splitlines()
        assert text in line and line.endswith(how)
