"""Whatever a run reports comes back from disk as it was, or as an error naming the file; never as something else."""

from __future__ import annotations

import csv
import errno
import json
import math
import os
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from recorded import by_place

from compare.errors import NoVerdictError, StorageError
from compare.naming import file_name
from compare.records.files import append_to_file, replace_file, storing, write_checked, write_json
from compare.records.metrics_csv import KEY_COLUMNS, TIME_COLUMNS, MetricsFile, read_metrics, shortest
from compare.records.model import (
    EPOCH_END,
    INITIAL,
    BuildRecord,
    End,
    EpochRecord,
    Record,
    RecordError,
    StepRecord,
    Variable,
    step_dtype,
)
from compare.records.reader import hashes_at, read_costs, read_records, read_rows, recover
from compare.records.recorder import InitialWeights, Recorder
from compare.records.run_json import RunJson, read_verdict, write_verdict

Logs = Sequence[Mapping[str, float]]
often = settings(max_examples=60, deadline=None, database=None)

VARIABLES = (Variable("dense/kernel", (2, 3), "float32"), Variable("dense/bias", (3,), "float32"))
FIT = [{"loss": float(np.float32(0.1)), "accuracy": 0.5}, {"loss": 0.1, "accuracy": 0.75}]
"""Two numbers that are different, one float32 and one float64, and have the same shortest decimal."""


def fingerprint(epoch: int, step: int) -> StepRecord:
    hashes = np.full((2, 2), 2**63 + 1000 * epoch + step, np.uint64)
    return StepRecord(epoch, step, hashes, np.full((2, 2), epoch + step / 7))


def weights(epoch: int) -> list[np.ndarray]:
    return [np.full(v.shape, epoch / 3, v.dtype) for v in VARIABLES]


def train(folder: Path, metrics: MetricsFile, trainer: str, epochs: Logs, seed: int = 0) -> Recorder:
    """What a run of two steps an epoch emits, through a Recorder."""
    recorder = Recorder(folder, metrics, trainer, seed)
    recorder(BuildRecord(VARIABLES, 2))
    recorder(fingerprint(1, INITIAL))
    for epoch, logs in enumerate(epochs, start=1):
        end_epoch(recorder, epoch, logs)
    return recorder


def end_epoch(recorder: Recorder, epoch: int, logs: Mapping[str, float]) -> None:
    """One epoch of two steps."""
    for step in (1, 2, EPOCH_END):
        recorder(fingerprint(epoch, step))
    recorder(EpochRecord(epoch, logs, 1.25, 80.0, weights(epoch)))


def record(folder: Path, /, **trainers: Logs) -> list[Record]:
    folder.mkdir(exist_ok=True)
    metrics = MetricsFile(folder / "metrics.csv")
    for trainer, epochs in trainers.items():
        train(folder, metrics, trainer, epochs)
    return read_records(folder)


def row(metrics: MetricsFile, trainer: str, epoch: int, **logs: float) -> str:
    """Append one row; what is on disk then."""
    append(metrics, trainer, epoch, logs)
    return metrics.path.read_text(encoding="utf-8")


def append(metrics: MetricsFile, trainer: str, epoch: int, logs: Mapping[str, float]) -> None:
    metrics.append(metrics.row(trainer, 0, EpochRecord(epoch, logs, 1.25, 80.0)))


# Numbers


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0.0"),
        (-0.0, "-0.0"),
        (1.0, "1.0"),
        (np.float32(0.1), "0.1"),
        (float(np.float32(0.1)), "0.1"),
        (0.1, "0.1"),
        (float(np.float32(1 / 3)), "0.33333334"),
        (1 / 3, "0.3333333333333333"),
        (np.float64(2 / 3), "0.6666666666666666"),
        (float(np.float32(1e-45)), "1e-45"),
        (float(np.finfo(np.float32).max), "3.4028235e+38"),
        (1e300, "1e+300"),
        (5e-324, "5e-324"),
        (math.nan, "nan"),
        (math.inf, "inf"),
        (-math.inf, "-inf"),
    ],
)
def test_a_number_is_written_as_its_own_types_shortest_decimal(value: float, text: str) -> None:
    assert shortest(value) == text


@given(st.floats(width=32, allow_nan=False))
@often
def test_a_float32_reads_back_and_no_shorter_decimal_would(value: float) -> None:
    text = shortest(value)
    assert repr(float(np.float32(text))) == repr(value)
    digits = len(text.lower().partition("e")[0].replace("-", "").replace(".", "").strip("0"))
    if digits > 1 and math.isfinite(value):
        assert np.float32(f"{value:.{digits - 2}e}") != value


def test_a_float32_survives_readers_that_round_twice() -> None:
    """Its shortest decimal, 7.038531e-26, becomes its neighbour on the way through float64."""
    value = np.array([0x15AE43FD], np.uint32).view(np.float32)[0]
    assert np.float32("7.038531e-26") != value
    assert np.float32(float(shortest(value))) == value


names = st.text(min_size=1, max_size=8).filter(str.isprintable).filter(lambda s: s not in KEY_COLUMNS + TIME_COLUMNS)
numbers = st.one_of(st.floats(width=32), st.floats(), st.sampled_from([0.1, float(np.float32(0.1))]))


@given(trainers=st.dictionaries(names, st.lists(st.dictionaries(names, numbers, max_size=3), min_size=1, max_size=3)))
@often
def test_every_number_under_every_name_reads_back_as_it_was_reported(trainers: dict[str, Logs]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        records = record(Path(folder), **trainers)
    assert [each.trainer for each in records] == list(trainers)
    for each, epochs in zip(records, trainers.values(), strict=True):
        expected = {epoch: dict(logs) for epoch, logs in enumerate(epochs, start=1)}
        assert repr(dict(each.logs)) == repr(expected)  # repr: NaN equals NaN, and 0.0 does not equal -0.0


def test_float32_and_float64_of_the_same_decimal_stay_apart(tmp_path: Path) -> None:
    (fit,) = record(tmp_path, fit=FIT)
    assert [line.split(",")[3] for line in (tmp_path / "metrics.csv").read_text().splitlines()[1:]] == ["0.1", "0.1"]
    assert [fit.logs[epoch]["loss"] for epoch in (1, 2)] == [FIT[0]["loss"], 0.1]
    assert fit.logs[1]["loss"] != fit.logs[2]["loss"]


# metrics.csv


def test_metrics_csv_is_a_plain_table(tmp_path: Path) -> None:
    metrics = MetricsFile(tmp_path / "metrics.csv")
    row(metrics, "fit", 1, loss=0.5, accuracy=0.75, val_loss=0.625)
    assert row(metrics, "fit", 2, loss=0.25, accuracy=1.0, val_loss=math.nan) == (
        "trainer,seed,epoch,loss,accuracy,val_loss,seconds,examples_per_second\n"
        "fit,0,1,0.5,0.75,0.625,1.250,80.0\n"
        "fit,0,2,0.25,1.0,nan,1.250,80.0\n"
    )


def test_a_missing_value_is_blank_and_never_zero(tmp_path: Path) -> None:
    fit, loop = record(tmp_path, fit=[{"loss": 0.0}, {"accuracy": 0.5}], loop=[{}])
    assert [[each[name] for name in ("loss", "accuracy")] for each in read_metrics(tmp_path / "metrics.csv")] == [
        ["0.0", ""],
        ["", "0.5"],
        ["", ""],
    ]
    assert (fit.logs, loop.logs) == ({1: {"loss": 0.0}, 2: {"accuracy": 0.5}}, {1: {}})


def test_each_epoch_is_on_disk_as_soon_as_it_ended(tmp_path: Path) -> None:
    metrics = MetricsFile(tmp_path / "metrics.csv")
    recorder = train(tmp_path, metrics, "fit", [])
    for epoch in (1, 2, 3):
        recorder(fingerprint(epoch, 1))
        recorder(fingerprint(epoch, EPOCH_END))
        recorder(EpochRecord(epoch, {"loss": 1 / epoch}, 1.25, 80.0, weights(epoch)))
        (fit,) = read_records(tmp_path)
        assert fit.logs == {past: {"loss": 1 / past} for past in range(1, epoch + 1)}
        assert fit.steps["epoch"].max() == epoch
        assert fit.weights(epoch) is not None


def test_rows_are_appended_and_earlier_ones_left_alone(tmp_path: Path) -> None:
    metrics = MetricsFile(tmp_path / "metrics.csv")
    before = row(metrics, "fit", 1, loss=0.5)
    file = os.stat(metrics.path).st_ino
    assert row(metrics, "fit", 2, loss=0.25).startswith(before)
    assert os.stat(metrics.path).st_ino == file, "appended to, not written anew"


def test_a_copy_of_hard_links_is_left_as_it_is(tmp_path: Path) -> None:
    run, copy = tmp_path / "run", tmp_path / "copy"
    run.mkdir()
    metrics = MetricsFile(run / "metrics.csv")
    recorder = train(run, metrics, "fit", FIT[:1])
    shutil.copytree(run, copy, copy_function=os.link)
    before = {path: path.read_bytes() for path in copy.rglob("*.*")}
    end_epoch(recorder, 2, FIT[1])
    assert {path: path.read_bytes() for path in copy.rglob("*.*")} == before
    assert [len(read_records(folder)[0].logs) for folder in (run, copy)] == [2, 1]


@pytest.mark.parametrize("name", ["metrics.csv", "records/fit-seed0.steps"])
def test_a_file_that_is_removed_while_the_run_goes_on_is_said_to_be(tmp_path: Path, name: str) -> None:
    recorder = train(tmp_path, MetricsFile(tmp_path / "metrics.csv"), "fit", FIT[:1])
    (tmp_path / name).unlink()
    with pytest.raises(StorageError, match=rf"{name} was removed meanwhile, run it again"):
        end_epoch(recorder, 2, FIT[1])


def test_a_folder_that_takes_the_place_of_a_runs_own_is_left_alone(tmp_path: Path) -> None:
    run = RunJson(folder=tmp_path, identity="a", options={}, started="now")
    (tmp_path / "run.json").write_text("{}")
    run.save(status="training")
    (tmp_path / "run.json").unlink()
    with pytest.raises(StorageError, match=r"was removed meanwhile, run it again"):
        run.save(status="finished")
    assert not any(tmp_path.iterdir())


def test_a_folder_that_is_removed_while_the_run_goes_on_may_be_cleared_by_what_is_trained(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match=r"was removed meanwhile; give another --reports if .*, then run it again$"):
        append_to_file(tmp_path / "gone" / "metrics.csv", b"", after=0)


def test_a_later_trainers_other_metrics_widen_the_table(tmp_path: Path) -> None:
    metrics = MetricsFile(tmp_path / "metrics.csv")
    row(metrics, "fit", 1, loss=0.5, accuracy=0.75)
    assert row(metrics, "loop", 1, loss=0.5, auc=0.25) == (
        "trainer,seed,epoch,loss,accuracy,auc,seconds,examples_per_second\n"
        "fit,0,1,0.5,0.75,,1.250,80.0\n"
        "loop,0,1,0.5,,0.25,1.250,80.0\n"
    )
    assert row(metrics, "loop", 2, loss=0.5).endswith("loop,0,2,0.5,,,1.250,80.0\n")
    assert os.listdir(tmp_path) == ["metrics.csv"], "no temporary file stays"


@pytest.mark.parametrize("name", [*KEY_COLUMNS, *TIME_COLUMNS, "", "a\nb", "a\rb", "\0", "\ud800"])
def test_a_metric_that_cannot_be_a_column_is_refused_and_nothing_is_written(tmp_path: Path, name: str) -> None:
    metrics = MetricsFile(tmp_path / "metrics.csv")
    with pytest.raises(NoVerdictError, match=r"trainer fit reports a metric called .* give it another name"):
        append(metrics, "fit", 1, {name: 0.5})
    assert not metrics.path.exists()


def test_seeds_are_records_of_their_own(tmp_path: Path) -> None:
    metrics = MetricsFile(tmp_path / "metrics.csv")
    for seed in (3, 4):
        train(tmp_path, metrics, "fit", [{"loss": float(seed)}], seed)
    assert [(each.trainer, each.seed, each.logs[1]["loss"]) for each in read_records(tmp_path)] == [
        ("fit", 3, 3.0),
        ("fit", 4, 4.0),
    ]


# Damage


def flipped(content: bytes, place: float, mask: int) -> bytes:
    """The same with bits flipped in one byte."""
    at = min(int(place * len(content)), len(content) - 1)
    return content[:at] + bytes([content[at] ^ mask]) + content[at + 1 :]


places = st.floats(0, 1, exclude_max=True)
masks = st.integers(1, 255)


@given(epochs=st.lists(st.dictionaries(names, numbers, max_size=3), min_size=1, max_size=3), place=places, mask=masks)
@often
def test_a_damaged_metrics_csv_is_an_error_and_never_a_wrong_number(epochs: Logs, place: float, mask: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        (before,) = record(Path(folder), fit=epochs)
        path = Path(folder) / "metrics.csv"
        path.write_bytes(flipped(path.read_bytes(), place, mask))
        try:
            after = read_records(Path(folder))
        except RecordError:
            return
        assert [repr(dict(each.logs)) for each in after] == [repr(dict(before.logs))]


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False) | names,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=3),
    max_leaves=8,
)


@given(content=st.dictionaries(names, json_values, max_size=4), place=places, mask=masks)
@often
def test_a_verdict_reads_back_equal_and_damage_is_an_error(content: dict[str, object], place: float, mask: int) -> None:
    verdict = {key: value for key, value in content.items() if key != "sha256"} | {"verdict": "identical"}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "verdict.json"
        RunJson(folder=path.parent, options={}).save()
        write_verdict(path, verdict)
        assert read_verdict(path) == verdict
        path.write_bytes(flipped(path.read_bytes(), place, mask))
        try:
            after = read_verdict(path)
        except RecordError:
            return
        assert after == verdict, "a blank for another, at most"


def test_the_verdict_of_another_run_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "verdict.json"
    RunJson(folder=tmp_path, options={}).save()
    write_verdict(path, {"verdict": "identical"})
    assert read_verdict(path) == {"verdict": "identical"}
    for content in ({"verdict": "alike"}, {"verdict": "identical"}):
        write_checked(path, content)
        with pytest.raises(
            RecordError, match=r"verdict\.json: is not the verdict that .*run\.json belongs to; restore it"
        ):
            read_verdict(path)
        RunJson(folder=tmp_path, options={}).save()  # of a run that has none yet
    (tmp_path / "run.json").unlink()
    with pytest.raises(RecordError, match=r"run\.json: is missing"):
        read_verdict(path)


@given(text=st.text() | st.binary().map(lambda content: content.decode("latin-1")))
@often
def test_whatever_stands_in_a_verdict_is_read_or_an_error(text: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "verdict.json"
        RunJson(folder=path.parent, options={}).save()
        path.write_text(text, encoding="utf-8", errors="surrogatepass")
        with pytest.raises(RecordError):
            read_verdict(path)


# Fingerprints and weights


def test_fingerprints_and_weights_read_back(tmp_path: Path) -> None:
    (fit,) = record(tmp_path, fit=FIT)
    assert fit.variables == VARIABLES
    places = [(1, INITIAL), (1, 1), (1, 2), (1, EPOCH_END), (2, 1), (2, 2), (2, EPOCH_END)]
    assert [(int(step["epoch"]), int(step["step"])) for step in fit.steps] == places
    for step, place in zip(fit.steps, places, strict=True):
        assert np.array_equal(step["hashes"], fingerprint(*place).hashes)
        assert np.array_equal(step["projections"], fingerprint(*place).projections)
    for epoch in (1, 2):
        kept = fit.weights(epoch)
        assert kept is not None
        assert [a.dtype for a in kept] == [np.float32] * 2
        assert all(np.array_equal(a, b) for a, b in zip(kept, weights(epoch), strict=True))
    assert fit.weights(3) is None


def test_steps_of_an_interrupted_first_epoch_are_kept(tmp_path: Path) -> None:
    recorder = train(tmp_path, MetricsFile(tmp_path / "metrics.csv"), "fit", [])
    recorder(fingerprint(1, 1))
    recorder.flush()
    recorder.flush()
    (fit,) = read_records(tmp_path)
    assert (fit.trainer, fit.logs, fit.steps["step"].tolist()) == ("fit", {}, [INITIAL, 1])


def test_weights_in_bfloat16_are_kept_exactly(tmp_path: Path) -> None:
    bfloat16 = pytest.importorskip("ml_dtypes").bfloat16
    value = np.array([1 / 3, -2.0, 1e30], bfloat16)
    recorder = Recorder(tmp_path, MetricsFile(tmp_path / "metrics.csv"), "fit", 0)
    recorder(BuildRecord((Variable("v", (3,), "bfloat16"),), 1))
    recorder(StepRecord(1, EPOCH_END, np.zeros((1, 1), np.uint64), np.zeros((1, 2))))
    recorder(EpochRecord(1, {}, 1.0, 1.0, [value]))
    ((kept,),) = (each.weights(1) or () for each in read_records(tmp_path))
    assert np.array_equal(kept, value.astype(np.float32))


@pytest.mark.parametrize(
    "name",
    [
        "../../outside", "/outside", "..", ".", ".hidden", "a/b", "a\\b", "a%2Fb", "a b", "a,b", '"a"', "x-seed1",
        "größer", "日本語", "🙂", "C:fit", "*", "-seed0", "fit.json",
    ],
)  # fmt: skip
def test_whatever_a_trainer_is_called_its_files_lie_in_the_records_folder(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "reports" / "run"
    folder.mkdir(parents=True)
    record(folder, **{name: FIT, "a%2Fb-": FIT})
    assert [each.trainer for each in read_records(folder)] == [name, "a%2Fb-"]
    files = [path.relative_to(folder) for path in tmp_path.rglob("*") if path.is_file()]
    assert {str(path.parent) for path in files} == {".", "records"}
    assert len(files) == 1 + 2 * 4, "metrics.csv, and of each trainer .steps, .json and two .npz"


# Damage


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run's folder; tests put back what they damage."""
    folder = tmp_path_factory.mktemp("run")
    record(folder, fit=FIT, **{'my "own", loop': [{"loss": 12.5, "a,b": math.nan}]})
    return folder


def versions(path: Path, contents: Sequence[bytes]) -> Any:
    """The folder's records under each content of one file: (content, records or None where refused)."""
    before = path.read_bytes()
    try:
        for content in contents:
            path.write_bytes(content)
            try:
                yield content, read_records(path.parents[0 if path.name == "metrics.csv" else 1])
            except RecordError as error:
                assert str(error).startswith(f"{path}: ") and "\n" not in str(error), error
                yield content, None
    finally:
        path.write_bytes(before)


def values(records: Sequence[Record]) -> dict[tuple[Any, ...], str]:
    return {(r.trainer, r.seed, e, n): repr(v) for r in records for e, logs in r.logs.items() for n, v in logs.items()}


def test_a_metrics_csv_cut_anywhere_gives_the_first_rows_or_an_error(run: Path) -> None:
    path = run / "metrics.csv"
    whole, rows = path.read_bytes(), read_metrics(path)
    expected, read = values(read_records(run)), 0
    for content, records in versions(path, [whole[:cut] for cut in range(len(whole))]):
        if records is not None:
            read += 1
            assert content.endswith(b"\n"), "only whole lines are believed"
            assert read_metrics(path) == rows[: content.count(b"\n") - 1]
            assert values(records).items() <= expected.items()
    assert read == 3, "the header alone, one row and two rows"


def test_one_altered_byte_of_metrics_csv_alters_no_number(run: Path) -> None:
    path = run / "metrics.csv"
    whole, expected = path.read_bytes(), values(read_records(run))
    contents = [
        whole[:at] + bytes([byte]) + whole[at + 1 :]
        for at in range(len(whole))
        for byte in b'019,."\n\r -e_\0\xff'
        if byte != whole[at]
    ]
    refused = 0
    for content, records in versions(path, contents):
        refused += records is None
        if records is not None:
            assert values(records) == expected, content
    assert refused > len(contents) / 2


def bits_flipped(path: Path, every: int) -> list[bytes]:
    """The content of a file with one bit flipped, for one in so many of its bits."""
    whole = path.read_bytes()
    return [
        whole[: bit // 8] + bytes([whole[bit // 8] ^ 1 << bit % 8]) + whole[bit // 8 + 1 :]
        for bit in range(0, 8 * len(whole), every)
    ]


def test_a_flipped_bit_of_the_fingerprints_is_an_error_that_names_the_block(run: Path) -> None:
    path = run / "records" / "fit-seed0.steps"
    assert all(records is None for _, records in versions(path, bits_flipped(path, 31)))
    whole = path.read_bytes()
    path.write_bytes(bits_flipped(path, 1)[-1])
    try:
        with pytest.raises(RecordError) as caught:
            read_records(run)
    finally:
        path.write_bytes(whole)
    remedy = "restore it from a copy, or start another run"
    assert str(caught.value) == f"{path}: damaged, block 2 does not match its checksum; {remedy}"


def test_what_follows_the_fingerprints_of_a_training_that_has_ended_is_an_error(run: Path, tmp_path: Path) -> None:
    shutil.copytree(run, copy := tmp_path / "copy")
    with (copy / "records" / "fit-seed0.steps").open("ab") as file:
        file.write(bytes(64))
    fit, _ = read_records(copy)  # not at its end: a write that was interrupted
    recorder = Recorder(copy, MetricsFile(copy / "metrics.csv"), "fit", 0)
    recorder.rewind(fit.last)
    recorder.end(End())
    ended, _ = read_records(copy)
    assert np.array_equal(ended.steps, fit.steps)
    with (copy / "records" / "fit-seed0.steps").open("ab") as file:
        file.write(bytes(64))
    with pytest.raises(RecordError, match=r"fit-seed0\.steps: damaged, something follows the end of training"):
        read_records(copy)


def test_a_flipped_bit_of_a_sidecar_changes_nothing_or_is_an_error(run: Path) -> None:
    path = run / "records" / "fit-seed0.json"
    expected = values(read_records(run))
    refused = 0
    for content, records in versions(path, bits_flipped(path, 61)):
        refused += records is None
        assert records is None or values(records) == expected, content
    assert refused > 50


def test_a_file_that_was_written_when_its_process_was_killed_is_removed(tmp_path: Path) -> None:
    record(tmp_path, fit=FIT)
    left = [tmp_path / "records" / ".fit-seed0.json.2wtqfvw3", tmp_path / ".metrics.csv._e_390ob"]
    others = [tmp_path / ".lock", tmp_path / ".mine.json.12345678", tmp_path / ".metrics.csv.swp"]
    for path in (*left, *others):
        path.write_bytes(b"half")
    recover(tmp_path)
    assert [path.exists() for path in left] == [False, False] and all(path.exists() for path in others)


def test_a_write_that_was_interrupted_is_left_out_and_written_again(tmp_path: Path) -> None:
    """Killed in the middle of a block, or after it and before the sidecar that makes it count."""
    record(tmp_path / "whole", fit=FIT)
    folder = tmp_path / "killed"
    record(folder, fit=FIT[:1])
    path = folder / "records" / "fit-seed0.steps"
    for torn in (b"half a fingerprint", fingerprints(2, 1), fingerprints(2, 1) + b"half"):
        path.write_bytes(path.read_bytes() + torn)
        assert recover(folder) == []
        (fit,) = read_records(folder)
        assert fit.steps["epoch"].tolist() == [1] * 4
    recorder = Recorder(folder, MetricsFile(folder / "metrics.csv"), "fit", 0)
    recorder.rewind((1, EPOCH_END))
    recorder(BuildRecord(VARIABLES, 2))
    end_epoch(recorder, 2, FIT[1])
    for file in ("metrics.csv", "records/fit-seed0.steps", "records/fit-seed0.json", "records/fit-seed0-epoch002.npz"):
        assert (folder / file).read_bytes() == (tmp_path / "whole" / file).read_bytes()


def test_records_go_back_to_a_step_and_on_again(tmp_path: Path) -> None:
    """Also to one within a block: its epoch ended once, after the checkpoint of the step was saved."""
    record(tmp_path / "whole", fit=FIT)
    folder = tmp_path / "back"
    record(folder, fit=FIT)
    recorder = Recorder(folder, MetricsFile(folder / "metrics.csv"), "fit", 0)
    recorder.rewind((2, 1))
    (fit,) = read_records(folder)
    assert fit.last == (2, 1) and list(fit.logs) == [1]
    assert hashes_at(folder, "fit", 0, (2, 2)) is None
    recorder(BuildRecord(VARIABLES, 2))
    for step in (2, EPOCH_END):
        recorder(fingerprint(2, step))
    recorder(EpochRecord(2, FIT[1], 1.25, 80.0, weights(2)))
    for file in ("metrics.csv", "records/fit-seed0.steps", "records/fit-seed0-epoch002.npz"):
        assert (folder / file).read_bytes() == (tmp_path / "whole" / file).read_bytes()


def fingerprints(epoch: int, step: int) -> bytes:
    """A fingerprint as in the file."""
    row = np.zeros(1, step_dtype(2, 2))
    each = fingerprint(epoch, step)
    row["epoch"], row["step"], row["hashes"], row["projections"] = epoch, step, each.hashes, each.projections
    return row.tobytes()


def test_rows_that_were_changed_or_removed_are_named(run: Path) -> None:
    path = run / "metrics.csv"
    whole = path.read_text()
    lines = whole.splitlines(keepends=True)
    for content, told in [
        (whole.replace(",0.75,", ",0.76,"), "damaged, the row of 'fit', seed 0, epoch 2 does not match its checksum"),
        ("".join(lines[:1] + lines[2:]), "damaged, the row of 'fit', seed 0, epoch 1 is missing"),
    ]:
        assert content != whole
        path.write_text(content)
        try:
            for read in (read_rows, read_records):
                with pytest.raises(RecordError) as caught:
                    read(run)
                assert str(caught.value) == f"{path}: {told}; restore it from a copy, or start another run"
        finally:
            path.write_text(whole)


def test_records_of_another_trainer_or_run_are_an_error(tmp_path: Path) -> None:
    record(tmp_path / "a", fit=FIT, loop=FIT)
    records = tmp_path / "a" / "records"
    sidecar = (records / "fit-seed0.json").read_bytes()
    (records / "fit-seed0.json").write_bytes((records / "loop-seed0.json").read_bytes())
    with pytest.raises(RecordError, match=r"fit-seed0\.json: damaged, it holds the records of 'loop', seed 0"):
        read_records(tmp_path / "a")
    (records / "fit-seed0.json").write_bytes(sidecar)
    other = train(tmp_path / "a", MetricsFile(tmp_path / "other.csv"), "other", [])
    other(EpochRecord(1, {}, 1.0, 1.0, [weight + 1 for weight in weights(1)]))
    (records / "fit-seed0-epoch001.npz").write_bytes((records / "other-seed0-epoch001.npz").read_bytes())
    (records / "other-seed0.json").unlink()
    fit, _ = read_records(tmp_path / "a")
    with pytest.raises(RecordError, match=r"fit-seed0-epoch001\.npz: damaged, it does not match its checksum"):
        fit.weights(1)


def test_records_and_metrics_copied_from_another_run_are_an_error(tmp_path: Path) -> None:
    for name in ("a", "b", "old"):
        (tmp_path / name).mkdir()
        RunJson(folder=tmp_path / name, options={}, identity=name if name != "old" else None).save()
        record(tmp_path / name, fit=FIT, loop=FIT)
        twins = tmp_path / name / "twins" / "loop"
        twins.mkdir(parents=True)
        record(twins, fit=FIT)
        assert len(read_records(tmp_path / name)) == 2 and read_records(twins)
    for other in ("b", "old"):
        for part in ("records", "metrics.csv", "twins"):
            into, from_ = tmp_path / "a" / part, tmp_path / other / part
            shutil.copytree(from_, into, dirs_exist_ok=True) if from_.is_dir() else shutil.copy(from_, into)
        told = r"fit-seed0\.json: belongs to another run than .*run\.json, as may .*metrics\.csv; restore it"
        for read in (read_records, read_rows, recover, lambda run: read_records(run / "twins" / "loop")):
            with pytest.raises(RecordError, match=told):
                read(tmp_path / "a")
    (tmp_path / "a" / "run.json").unlink()
    assert len(read_records(tmp_path / "a")) == 2, "records alone, as kept by those who need no more"
    shutil.copy(tmp_path / "b" / "records" / "loop-seed0.json", tmp_path / "a" / "records")
    with pytest.raises(RecordError, match=r"loop-seed0\.json: belongs to another run"):
        read_records(tmp_path / "a")


@pytest.mark.parametrize("name", ["run.json", "verdict.json", "records/fit-seed0.json"])
def test_a_file_of_another_format_is_not_read_as_if_it_were_of_this_one(tmp_path: Path, name: str) -> None:
    RunJson(folder=tmp_path, options={}).save()
    record(tmp_path, fit=FIT)
    write_verdict(tmp_path / "verdict.json", {"verdict": "identical", "schema": 1})
    read = {"verdict.json": lambda: read_verdict(tmp_path / name), "run.json": lambda: RunJson.read(tmp_path)}
    content = {key: value for key, value in json.loads((tmp_path / name).read_text()).items() if key != "sha256"}
    write_checked(tmp_path / name, {**content, "schema": content["schema"] + 1})
    with pytest.raises(RecordError, match=rf"{name}: is of another version of this tool \(its format is "):
        read.get(name, lambda: read_records(tmp_path))()


def test_numbers_without_records_are_those_that_were_judged(tmp_path: Path) -> None:
    RunJson(folder=tmp_path, options={}).save()
    record(tmp_path, fit=FIT)
    write_verdict(tmp_path / "verdict.json", {"verdict": "identical"})
    rows = read_rows(tmp_path)
    shutil.rmtree(tmp_path / "records")
    assert read_rows(tmp_path) == rows
    with pytest.raises(RecordError, match=r"fit-seed0\.json: is missing"):
        read_records(tmp_path)
    metrics = tmp_path / "metrics.csv"
    whole = metrics.read_text()
    for content in (whole.replace(",0.75,", ",0.76,"), "".join(whole.splitlines(keepends=True)[:2])):
        metrics.write_text(content)
        with pytest.raises(RecordError, match=r"metrics\.csv: damaged, its rows are not those that run\.json knows"):
            read_rows(tmp_path)
    metrics.unlink()
    with pytest.raises(RecordError, match=r"metrics\.csv: is missing"):
        read_rows(tmp_path)
    metrics.write_text(whole)
    RunJson(folder=tmp_path, options={}).save()
    with pytest.raises(RecordError, match=r"metrics\.csv: its rows of 'fit' match no checksum"):
        read_rows(tmp_path)


def test_initial_weights_of_another_run_are_an_error_and_so_are_missing_ones(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        RunJson(folder=tmp_path / name, options={}, identity=name).save()
        record(tmp_path / name, fit=FIT)
        for seed in (0, 1):
            InitialWeights(tmp_path / name)[seed] = weights(1)
        assert all(map(np.array_equal, InitialWeights(tmp_path / name)[0], weights(1)))
        assert recover(tmp_path / name) == []
    path = tmp_path / "a" / "records" / "initial-seed0.npz"
    anonymous = tmp_path / "anonymous.npz"
    np.savez(anonymous, **{name: each for name, each in np.load(path).items() if name != "owner"})
    for other in (tmp_path / "b/records/initial-seed0.npz", path.with_name("initial-seed1.npz"), anonymous):
        shutil.copy(other, path)
        for read in (InitialWeights, recover):
            with pytest.raises(RecordError, match=r"initial-seed0\.npz: (belongs to another run|damaged)"):
                read(tmp_path / "a")
    path.unlink()
    with pytest.raises(RecordError, match=r"initial-seed0\.npz: is missing"):
        recover(tmp_path / "a")


PLAIN = [
    "run.json", "verdict.json", "metrics.csv", "records", "records/fit-seed0.steps", "twins/fit/records",
    "records/initial-seed0.npz", "records/fit-seed0-epoch001.npz", "checkpoints/fit", "checkpoints/fit/ckpt-1.index",
]  # fmt: skip


@pytest.mark.parametrize("harm", ["link", "pipe", "sparse"])
@pytest.mark.parametrize("part", PLAIN)
def test_files_of_a_run_are_plain_files_in_its_own_folder(tmp_path: Path, part: str, harm: str) -> None:
    """A link leads to files that others change, a pipe is waited for, and a sparse file may have any size."""
    run = tmp_path / "run"
    run.mkdir()
    RunJson(folder=run, options={}, identity="a").save()
    record(run, fit=FIT)
    InitialWeights(run)[0] = weights(1)
    (run / "checkpoints" / "fit").mkdir(parents=True)
    (run / "checkpoints" / "fit" / "ckpt-1.index").write_bytes(b"x")
    (run / "twins").mkdir()
    record(run / "twins" / "fit", fit=FIT)
    write_verdict(run / "verdict.json", {"verdict": "identical"})
    path, aside = run / part, tmp_path / "aside"

    def use(folder: Path) -> None:
        read_verdict(folder / "verdict.json")
        read_records(folder)
        read_costs(folder)
        recover(folder)

    (tmp_path / "linked").symlink_to(run)
    use(tmp_path / "linked")  # the folder itself may be found by a link
    if harm == "sparse":
        if path.is_dir() or "checkpoints" in part:
            return  # TensorFlow reads what it needs of it
        os.truncate(path, 10**11)
    else:
        path.rename(aside)
        path.symlink_to(aside) if harm == "link" else os.mkfifo(path)
    with pytest.raises(RecordError) as caught:
        use(run)
    assert str(caught.value).startswith(f"{path}: ") and "\n" not in str(caught.value)


def test_costs_stand_beside_the_numbers_and_are_those_of_a_trainers_first_seed(tmp_path: Path) -> None:
    for seed in (1, 0):
        recorder = Recorder(tmp_path, MetricsFile(tmp_path / "metrics.csv"), "fit", seed)
        recorder.keep_costs({"step_seconds": 0.5 + seed, "peak_memory_bytes": None})
    recorder.rewind((0, EPOCH_END))
    assert read_costs(tmp_path) == {"fit": {"step_seconds": 0.5, "peak_memory_bytes": None}}
    path = tmp_path / "records" / "fit-seed0.json"
    path.write_text(path.read_text().replace("0.5", "0.7"))
    with pytest.raises(RecordError, match=r"fit-seed0\.json: damaged, its content does not match its checksum"):
        read_costs(tmp_path)


def test_a_run_that_cannot_be_repaired_stays_as_it_is(tmp_path: Path) -> None:
    metrics = tmp_path / "metrics.csv"
    RunJson(folder=tmp_path, options={}, identity="a", trainers=["fit"]).save()
    record(tmp_path, fit=FIT)
    InitialWeights(tmp_path)[0] = weights(1)
    whole = metrics.read_bytes()
    harmed = whole.replace(b",", b"", 5)  # in the header, and the last line is whole
    foreign = whole + whole.splitlines(keepends=True)[-1].replace(b"fit,0,", b"fit,1,")
    for content, said in ((harmed, "line 1|values for"), (foreign, "rows of 'fit', seed 1 are of another run")):
        metrics.write_bytes(content)
        with pytest.raises(RecordError, match=said):
            recover(tmp_path)
        assert metrics.read_bytes() == content
    metrics.write_bytes(whole[:-9])
    assert "the last line was damaged and removed" in recover(tmp_path)[0]
    assert metrics.read_bytes() == b"".join(whole.splitlines(keepends=True)[:-1])
    metrics.unlink()
    assert recover(tmp_path) == [f"{metrics} is missing: what was trained is trained again"]


def test_columns_are_those_of_the_reference_first_whoever_reports_first(tmp_path: Path) -> None:
    metrics = MetricsFile(tmp_path / "metrics.csv")
    append(metrics, "loop", 1, {"accuracy": 0.5, "loss": 1.0, "own": 2.0})
    append(metrics, "fit", 1, {"loss": 1.0, "accuracy": 0.5})
    append(metrics, "float64", 1, {"loss": 1.0})
    metrics.sort(["fit", "loop"])
    assert [row["trainer"] for row in read_metrics(metrics.path)] == ["fit", "loop", "float64"]
    header, *rows = metrics.path.read_text().splitlines()
    assert header.startswith("trainer,seed,epoch,loss,accuracy,own,") and rows[0].startswith("fit,0,1,1.0,0.5,,")


def test_what_keeps_a_file_from_being_written_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    full = Mock(f_files=10, f_favail=0)
    for number, room, told in (
        (errno.EFBIG, full, r"allow larger files \(ulimit -f\)"),
        (errno.ENOSPC, full, r"there can be no more there \(inodes\)"),
        (errno.ENOSPC, Mock(f_files=0, f_favail=0), "free some disk space"),
        (errno.EACCES, full, "make the folder writable"),
    ):
        monkeypatch.setattr(os, "statvfs", lambda folder, room=room: room, raising=False)
        with pytest.raises(StorageError, match=f"everything written before is kept: .*{told}"), storing(tmp_path / "x"):
            raise OSError(number, "no")


def test_a_device_is_not_replaced_by_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As root may: ``--out /dev/null``, say."""
    device = tmp_path / "device"
    device.write_text("")
    monkeypatch.setattr(Path, "is_char_device", lambda path: path == device)
    with pytest.raises(StorageError, match="it is a device"):
        replace_file(device, b"x")
    assert device.read_text() == ""


def test_a_folder_in_the_place_of_a_file_is_an_error_that_names_it(tmp_path: Path) -> None:
    (tmp_path / "verdict.json").mkdir()
    with pytest.raises(RecordError, match=r"verdict\.json: a folder is in its place: remove it"):
        replace_file(tmp_path / "verdict.json", b"{}")
    assert list(tmp_path.rglob("*")) == [tmp_path / "verdict.json"]


def test_fingerprints_cut_anywhere_are_an_error(run: Path) -> None:
    """Every epoch in metrics.csv has ended, so that none of its fingerprints may be missing."""
    path = run / "records" / "fit-seed0.steps"
    whole = path.read_bytes()
    assert all(records is None for _, records in versions(path, [whole[:cut] for cut in range(len(whole))]))


def test_a_sidecar_cut_anywhere_is_an_error(run: Path) -> None:
    path = run / "records" / "fit-seed0.json"
    whole = path.read_bytes().rstrip()
    assert all(records is None for _, records in versions(path, [whole[:cut] for cut in range(0, len(whole), 7)]))


@pytest.mark.parametrize(
    "change",
    [
        [], None, 5, "text", {},
        {"trainer": None, "seed": "zero"}, {"replicas": -1}, {"replicas": "two"}, {"variables": 5},
        {"variables": [{"name": "v"}]}, {"variables": ["v"]}, {"reported": []}, {"reported": {"1": "float32"}},
        {"reported": {"one": {}}}, {"reported": {"1": {"loss": "int32"}}}, {"reported": {"1": {"loss": None}}},
    ],
    ids=str,
)  # fmt: skip
def test_a_sidecar_of_another_shape_is_an_error(run: Path, change: Any) -> None:
    path = run / "records" / "fit-seed0.json"
    content = json.loads(path.read_text()) | change if isinstance(change, dict) and change else change
    ((_, records),) = versions(path, [json.dumps(content).encode()])
    assert records is None


def test_metrics_other_than_were_reported_are_an_error(run: Path) -> None:
    path = run / "metrics.csv"
    whole = path.read_text()
    contents = [
        whole.replace("accuracy", "precision"),
        whole.replace(",0.5,", ",,"),
        whole.replace(",0.75,,", ",0.75,1,"),
    ]
    assert all(text != whole for text in contents)
    assert [records for _, records in versions(path, [text.encode() for text in contents])] == [None] * 3


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "line 1 is not the header"),
        ("loss,accuracy\n", "line 1 is not the header"),
        ("trainer,seed,epoch,loss,loss,seconds,examples_per_second\n", "line 1 names a column twice"),
        ("{}fit,0,1,0.5,1,1\nfit,0,2,0.5,1\n", "line 3 has 5 values for 6 columns"),
        ("{}fit,0,1,0.5,1,1\nfit,0,01,0.5,1,1\n", "line 3 repeats an epoch of 'fit'"),
        ("{}fit,0,0,0.5,1,1\n", "line 2 does not name"),
        ("{}fit,-1,1,0.5,1,1\n", "line 2 does not name"),
        ("{}fit,0,1.0,0.5,1,1\n", "line 2 does not name"),
        ("{}fit,0," + "9" * 5000 + ",0.5,1,1\n", "line 2 does not name"),
        ("{},0,1,0.5,1,1\n", "line 2 does not name"),
        ("{}fit,0,1,half,1,1\n", "line 2, column 'loss': 'half' is not a number"),
        ("{}fit,0,1,0.5,1,soon\n", "line 2, column 'examples_per_second': 'soon' is not a number"),
        ('{}"fit,0,1,0.5,1,1\n', "line 2: unexpected end of data"),
        ("{}fit,0,1,0.5,1,1", "the last line is incomplete"),
        ("{}\n", "line 2 has 0 values"),
    ],
)
def test_what_is_wrong_with_a_metrics_csv_is_said_with_its_line(tmp_path: Path, text: str, complaint: str) -> None:
    path = tmp_path / "metrics.csv"
    path.write_text(text.replace("{}", "trainer,seed,epoch,loss,seconds,examples_per_second\n"))
    with pytest.raises(RecordError) as caught:
        read_metrics(path)
    assert str(caught.value).startswith(f"{path}: {complaint}")


def test_lines_are_counted_as_an_editor_does(tmp_path: Path) -> None:
    path = tmp_path / "metrics.csv"
    path.write_text('trainer,seed,epoch,"two\nlines",seconds,examples_per_second\nfit,0,1,half,1,1\n')
    with pytest.raises(RecordError, match=r"line 3, column 'two\\nlines': 'half' is not a number;"):
        read_metrics(path)


@pytest.mark.parametrize("name", ["=cmd()", "+1", "-1", "@sum", "\t=1", "'=1", "''@", "'quoted'", 'a "b", c', "fit"])
def test_a_spreadsheet_takes_no_name_for_a_formula_and_names_come_back(tmp_path: Path, name: str) -> None:
    metrics, logs = MetricsFile(tmp_path / "metrics.csv"), {name.replace("\t", ""): -0.5}
    metrics.append(metrics.row(name, 0, EpochRecord(1, logs, 1.0, 1.0)))
    with open(tmp_path / "metrics.csv", newline="") as file:
        header, row = csv.reader(file)
    assert not {header[3][0], row[0][0]} & set("=+-@\t\r")
    assert row[3] == "-0.5", "numbers stay numbers"
    (back,) = read_metrics(tmp_path / "metrics.csv")
    assert back["trainer"] == name and list(back)[3] in logs
    assert MetricsFile(tmp_path / "metrics.csv").epochs(name, 0) == [1]


def test_every_trainers_files_have_a_name_of_their_own_in_the_runs_folder() -> None:
    names = [".", "..", "../a", "a/b", "a\\b", "=cmd()", "[/road]", "a b", "é" * 200, "é" * 201, "x" * 151, "%2E"]
    files = [file_name(name) for name in names]
    assert len(set(files)) == len(names) and not {".", ".."} & set(files)
    assert all(len(name) <= 150 and not set("/\\") & set(name) for name in files)
    assert (file_name("fit"), file_name("my loop", safe=" ")) == ("fit", "my loop")


def test_line_ends_of_another_system_do_not_matter(run: Path) -> None:
    path = run / "metrics.csv"
    expected = values(read_records(run))
    ((_, records),) = versions(path, [path.read_bytes().replace(b"\n", b"\r\n")])
    assert values(records) == expected


def test_missing_files_are_errors_where_something_relies_on_them(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match=r"metrics\.csv: is missing"):
        read_metrics(tmp_path / "metrics.csv")
    record(tmp_path, fit=FIT)
    (tmp_path / "records" / "fit-seed0.steps").unlink()
    with pytest.raises(RecordError, match=r"fit-seed0\.steps: is missing"):
        read_records(tmp_path)
    (tmp_path / "records" / "fit-seed0.json").unlink()
    told = [r"metrics\.csv: its rows of 'fit' match no checksum, neither in records nor in run\.json"]
    told += [r"fit-seed0\.json: is missing, and with it the checksums of the rows of 'fit' in metrics\.csv"]
    for text, trainers in zip(told, (["loop"], ["fit", "loop"]), strict=True):  # whether run.json knows of fit
        RunJson(folder=tmp_path, options={}, trainers=trainers).save()
        for read in (read_records, read_rows):
            with pytest.raises(RecordError, match=text):
                read(tmp_path)


def test_damaged_and_missing_weights_are_an_error_for_those_who_need_them(tmp_path: Path) -> None:
    (fit,) = record(tmp_path, fit=FIT)
    assert fit.weights(9) is None, "never kept"
    path = tmp_path / "records" / "fit-seed0-epoch001.npz"
    whole = path.read_bytes()
    middle = len(whole) // 4
    for content in [whole[:cut] for cut in range(0, len(whole), 50)] + [whole[:middle] + b"!!!!" + whole[middle + 4 :]]:
        path.write_bytes(content)
        with pytest.raises(RecordError) as caught:
            fit.weights(1)
        assert str(caught.value).startswith(f"{path}: damaged")
    path.unlink()
    for read in (fit.weights, lambda epoch: recover(tmp_path)):
        with pytest.raises(RecordError, match=r"fit-seed0-epoch001\.npz: is missing"):
            read(1)
    assert [each.trainer for each in read_records(tmp_path)] == ["fit"], "pages do without them"


def test_a_file_that_cannot_be_written_leaves_the_old_one(tmp_path: Path) -> None:
    path = tmp_path / "verdict.json"
    write_json(path, {"gap": 0.5})
    with pytest.raises(ValueError, match="JSON compliant"):
        write_json(path, {"gap": math.nan})
    assert json.loads(path.read_text()) == {"gap": 0.5}
    assert os.listdir(tmp_path) == ["verdict.json"]


def test_weights_that_change_after_the_last_epoch_are_kept(tmp_path: Path) -> None:
    recorder = train(tmp_path, MetricsFile(tmp_path / "metrics.csv"), "fit", [{"loss": 0.5}])
    last = fingerprint(1, EPOCH_END)
    recorder(replace(last, hashes=last.hashes + np.uint64(1)))  # as run.close() does
    (record,) = read_records(tmp_path)
    assert np.array_equal(by_place(record)[1, EPOCH_END]["hashes"], last.hashes + np.uint64(1))
