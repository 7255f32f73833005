"""What a run prints while it trains: the running gap, colours only where they are wanted, opposites refused."""

from __future__ import annotations

import io
import pickle
import re
import time
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import recorded
from rich.console import Console

from compare.app import cli, standard_streams
from compare.app.publish import judge_and_publish
from compare.app.ready import Session
from compare.errors import MAY_PASS, NO_MEMORY, NoVerdictError, RequestError, TrainerFailedError
from compare.naming import Code
from compare.options import request
from compare.records.model import EPOCH_END, INITIAL, EpochRecord, StepRecord
from compare.records.run_json import INTERRUPTED, RunJson
from compare.reporting import html, live, plots
from compare.reporting.live import console_for, progress_line, waiting
from compare.reporting.sentences import sentence
from compare.reporting.tables import epoch_table, print_table, study_table
from compare.reporting.terminal import (
    RunningGap,
    TrainerProgress,
    as_text,
    details,
    print_verdict,
    say,
    say_items,
    style_of,
    tell,
)
from compare.user_errors import describe
from compare.verdict.exact import unequal
from compare.verdict.findings import NotApplicable
from compare.verdict.model import (
    Comparison,
    Difference,
    DifferingVariable,
    Failure,
    Reporting,
    Training,
    Verdict,
    not_comparable,
)
from compare.verdict.outcomes import FROM_BEST
from compare.verdict.rounding import Noise


def train(
    console: Console, gap: RunningGap, trainer: str, off_from: int | None = None, epochs: int = 2, begin: int = 1
) -> None:
    """Two steps an epoch; from step ``off_from`` on, counted over all epochs, the weights are off by 0.5."""
    number = 2 * (begin - 1)
    with TrainerProgress(console, trainer, range(1, epochs + 1), 2, 32, gap) as progress:
        for epoch in range(begin, epochs + 1):
            for step in (1, 2, EPOCH_END):
                number += step != EPOCH_END
                off = off_from is not None and number >= off_from
                hashes, projections = np.full((1, 1), number + 100 * off, np.uint64), np.full((1, 2), 1 + 0.5 * off)
                progress(StepRecord(epoch, step, hashes, projections))
            progress(EpochRecord(epoch, {"loss": 1 / epoch}, 2.0, 32.0))


def printed(*, terminal: bool, **options: Any) -> str:
    out = io.StringIO()
    console = Console(file=out, force_terminal=terminal, width=200, highlight=False, **options)
    gap = RunningGap("fit")
    train(console, gap, "fit")
    train(console, gap, "loop")
    train(console, gap, "mine", off_from=3)
    return out.getvalue()


def test_where_no_one_watches_an_epoch_is_one_line_with_the_gap_so_far() -> None:
    assert printed(terminal=False).splitlines() == [
        "fit  epoch 1/2  loss 1.0000  2.0 s, 32 examples/s",
        "fit  epoch 2/2  loss 0.5000  2.0 s, 32 examples/s",
        "loop  epoch 1/2  loss 1.0000  2.0 s, 32 examples/s, weights equal",
        "loop  epoch 2/2  loss 0.5000  2.0 s, 32 examples/s, weights equal",
        "mine  epoch 1/2  loss 1.0000  2.0 s, 32 examples/s, weights equal",
        "mine  epoch 2/2  loss 0.5000  2.0 s, 32 examples/s, weight gap 5.0e-01 (norm) since epoch 2, step 1",
    ]


@pytest.mark.parametrize(("off", "since"), [(1, "epoch 2, step 1, or before"), (4, "epoch 2, step 2")])
def test_a_resumed_run_does_not_say_that_weights_were_equal_before(off: int, since: str) -> None:
    out = io.StringIO()
    console, gap = Console(file=out, width=200, highlight=False), RunningGap("fit")
    for trainer, off_from in (("fit", None), ("mine", off)):
        train(console, gap, trainer, off_from, begin=2)
    assert out.getvalue().splitlines()[-1].endswith(f"weight gap 5.0e-01 (norm) since {since}")


def records_of(epoch: int, off: bool = False) -> list[Any]:
    steps = [
        StepRecord(epoch, step, np.full((1, 1), 10 * epoch + step + 100 * off, np.uint64), np.full((1, 2), 1.0 + off))
        for step in (1, 2, EPOCH_END)
    ]
    return [*steps, EpochRecord(epoch, {}, 2.0, 32.0)]


@pytest.mark.parametrize("ahead", ["fit", "loop"])
def test_trainers_at_the_same_time_are_compared_whoever_is_ahead(ahead: str) -> None:
    out, found = io.StringIO(), []
    gap = RunningGap("fit", lambda *difference: found.append(difference))
    bars = {name: TrainerProgress(Console(file=out), name, range(1, 3), 2, 32, gap) for name in ("fit", "loop")}
    behind = "loop" if ahead == "fit" else "fit"
    for record in [*records_of(1), *records_of(2, off=ahead == "loop")]:
        bars[ahead](record)
    assert found == [] and "weight" not in out.getvalue() and gap.now("loop") == ""
    for record in [*records_of(1), *records_of(2, off=behind == "loop")]:
        bars[behind](record)
    assert found == [("loop", (2, 1))] and gap.now("loop") == "weights differ"
    first, second = (line.removeprefix(f"{behind}  ") for line in out.getvalue().splitlines()[2:])
    whose = "" if behind == "loop" else "loop: "
    assert first == f"epoch 1/2  2.0 s, 32 examples/s, {whose}weights equal"
    assert second == f"epoch 2/2  2.0 s, 32 examples/s, {whose}weight gap 1.0e+00 (norm) since epoch 2, step 1"


@pytest.mark.parametrize(
    ("of_fit", "of_loop", "told"),
    [
        ([(0, 1), (1, 2)], [(0, 5), (1, 2)], None),  # a callback sets the weights, recorded after that in one
        ([(0, 1), (1, 2)], [(0, 5), (0, 1), (1, 3)], (1, 1)),
        ([(0, 1), (1, 2)], [(0, 5), (1, 3)], (1, INITIAL)),
        ([(1, 2), (EPOCH_END, 2), (EPOCH_END, 9)], [(1, 2), (EPOCH_END, 2), (EPOCH_END, 9)], None),  # the end of all
        ([(1, 2), (EPOCH_END, 2), (EPOCH_END, 9)], [(1, 2), (EPOCH_END, 4), (EPOCH_END, 9)], (1, EPOCH_END)),
    ],
)
def test_what_is_recorded_more_than_once_is_compared_with_its_like(of_fit: Any, of_loop: Any, told: Any) -> None:
    found: list[Any] = []
    gap = RunningGap("fit", lambda *difference: found.append(difference))
    for trainer, records in (("fit", of_fit), ("loop", of_loop)):
        for step, value in records:
            gap.see(trainer, StepRecord(1, step, np.full((1, 1), value, np.uint64), np.full((1, 2), float(value))))
    assert found == ([("loop", told)] if told else [])


@pytest.mark.parametrize("resting", ["fit", "loop"])
@pytest.mark.parametrize(("end", "told"), [(4, []), (5, [("loop", (1, EPOCH_END))])])
def test_steps_of_which_one_side_reports_some_twice_are_compared_at_the_ends_of_epochs(
    resting: str, end: int, told: list[Any]
) -> None:
    """As where it accumulates gradients, and the other reports updates only."""

    def record(step: int, value: int) -> StepRecord:
        return StepRecord(1, step, np.full((1, 1), value, np.uint64), np.full((1, 2), float(value)))

    found: list[Any] = []
    gap = RunningGap("fit", lambda *difference: found.append(difference))
    for step, value in ((INITIAL, 1), (1, 2), (2, 4), (EPOCH_END, end)):
        gap.see("loop" if resting == "fit" else "fit", record(step, value))
    for step, value in ((INITIAL, 1), (1, 1), (2, 2), (3, 2), (4, 4), (EPOCH_END, 4)):
        gap.see(resting, record(step, value))
    assert found == told


def test_trainers_at_the_same_time_share_a_line_per_epoch_with_the_gap() -> None:
    out = io.StringIO()
    names = ("fit", "my-loop")
    gap = RunningGap("fit", together=names)
    bars = {name: TrainerProgress(Console(file=out, width=200), name, range(1, 4), 2, 32, gap) for name in names}
    for record in (*records_of(1), *records_of(2), *records_of(3)):
        bars["fit"](record)
    assert out.getvalue() == "", "the other one is behind"
    for record in records_of(1):
        bars["my-loop"](replace(record, logs={"loss": 0.25}) if isinstance(record, EpochRecord) else record)
    assert out.getvalue().splitlines() == ["fit/my-loop  epoch 1/3  loss -/0.2500  2.0/2.0 s, weights equal"]
    for record in records_of(2, off=True):
        bars["my-loop"](record)
    bars["my-loop"].end()  # which fails in its third epoch
    assert out.getvalue().splitlines()[1:] == [
        "fit/my-loop  epoch 2/3  2.0/2.0 s, weight gap 1.0e+00 (norm) since epoch 2, step 1",
        "fit  epoch 3/3  2.0 s, 32 examples/s",
    ]


@pytest.mark.parametrize("columns", [77, 117])
def test_bars_below_each_other_have_the_same_length(columns: int) -> None:
    lines = [
        progress_line(columns, head, fraction, rate, left, note)
        for head in ("fit       epoch  9/10", "tutorial  epoch 10/10")
        for fraction, rate, left in ((0.0, None, None), (0.44, 98.7, 59.0), (0.33, 12345.6, 3599.0))
        for note in ("", "weights differ", "weights equal", "validating, 12 s", "waiting for the first step, 12 s")
    ]
    assert len({line.count("━") + line.count("─") for line in lines}) == 1 and max(map(len, lines)) <= columns
    assert "weights differ" in lines[6], "80 columns have room for the note"


def test_a_watcher_sees_that_weights_are_equal_until_they_differ() -> None:
    shown = printed(terminal=True)
    assert "weights equal" in shown and "left  weights differ" in shown
    assert "\x1b[" in shown and "\x1b[" not in printed(terminal=False)


@pytest.mark.parametrize("quiet", [False, True])
def test_in_a_log_it_is_said_now_and_then_what_is_waited_for(monkeypatch: pytest.MonkeyPatch, quiet: bool) -> None:
    monkeypatch.setattr(live, "FIRST_PAUSE", 0.05)
    file = io.StringIO()
    with waiting(console_for(file, quiet=quiet), "my_loop [1].py: step 3"):
        time.sleep(1.0)
    said = file.getvalue()
    assert (said == "") if quiet else said.startswith("my_loop [1].py: step 3 … 0 s\n")
    assert said.count("\n") in ((0,) if quiet else range(2, 5)), "after 0.05, 0.15, 0.35, and 0.75 s"
    time.sleep(0.2)
    assert file.getvalue() == said


def test_in_a_log_nothing_is_said_of_a_training_that_says_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "FIRST_PAUSE", 0.4)
    file = io.StringIO()
    console = console_for(file, quiet=False)
    with TrainerProgress(console, "fit", range(1, 9), 2, 32) as progress:
        for epoch in range(1, 7):
            progress(EpochRecord(epoch, {"loss": 0.5}, 1.0, 8.0))
            time.sleep(0.1)
        assert file.getvalue().count("\n") == 6, "of the epochs"
        time.sleep(0.6)
    *_, epoch, waited = file.getvalue().splitlines()
    assert epoch.startswith("fit  epoch 6/8") and waited.startswith("fit  epoch 7/8  ━") and " 75%" in waited


@pytest.mark.parametrize("columns", [20, 39, 79, 99, 119, 200])
@pytest.mark.parametrize("head", ["fit  epoch 1/2", "a-trainer-with-a-very-long-name, perturbed run 12  epoch 99/100"])
@pytest.mark.parametrize("note", ["", "weights differ", "waiting for the first step, 12 s"])
def test_a_line_of_progress_fits_whatever_the_width(columns: int, head: str, note: str) -> None:
    for fraction, rate, left in ((0.0, None, None), (0.5, 123456.7, 7262.0), (1.0, 0.4, 0.0)):
        line = progress_line(columns, head, fraction, rate, left, note)
        assert len(line) <= columns and line.count("━") + line.count("─") >= 6
        assert f"{fraction:4.0%}" in line
        assert columns < 79 or head.startswith("a-") or rate is None or f"{rate:,.0f} ex" in line
        assert columns < 79 or head.startswith("a-") or left is None or f"{int(left) % 60:02} left" in line
        assert columns < 119 or (head.startswith("a-") and columns < 200) or note in line


def test_a_slow_start_and_a_slow_validation_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr("compare.reporting.terminal.time.monotonic", lambda: now)
    progress = TrainerProgress(Console(quiet=True), "fit", range(1, 3), 2, 32)
    step = StepRecord(1, 1, np.zeros((1, 1), np.uint64), np.zeros((1, 2)))
    assert progress.line(79).rstrip().endswith("0%")
    now = 3.0
    assert progress.line(79).endswith("  waiting for the first step, 3 s")
    progress(step)
    now = 4.0
    progress(replace(step, step=2))
    assert progress.line(79).endswith("  50%      32 ex/s   0:02 left")
    now = 6.5
    assert progress.line(79).endswith("left  validating, 2 s")
    progress(EpochRecord(1, {}, 2.0, 32.0))
    progress(EpochRecord(2, {}, 2.0, 32.0))
    now = 9.0
    assert progress.line(79).endswith("left  finishing, 2 s") and "epoch 2/2" in progress.line(79)


def test_in_a_terminal_metrics_and_words_stay_whole_and_paths_and_code_can_be_copied() -> None:
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, no_color=True, width=40, highlight=False)
    say_items(console, ["fit", "epoch 1/2", "val_accuracy 0.7010", "val_loss 0.8226", "3.9 s, 777 examples/s"])
    tell(console, "their weights differ from step 47 of epoch 1 on", head="different: ")
    code = Code("    metric.update_state(value, sample_weight=tf.shape(y)[0])")
    path = "/a/folder with spaces/and a long/name.csv"
    tell(console, code)
    say(console, path)
    assert out.getvalue().splitlines() == [
        "fit  epoch 1/2  val_accuracy 0.7010",
        "    val_loss 0.8226",
        "    3.9 s, 777 examples/s",
        "different: their weights differ from",
        "step 47 of epoch 1 on",
        code,
        path,
    ]


def test_a_terminal_without_a_width_has_the_usual_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "0")
    out = Terminal()
    console = console_for(out, quiet=False)
    tell(console, "word " * 40)
    assert console.width == 80 and max(map(len, out.getvalue().splitlines())) <= 80


def tables(width: int, terminal: bool, metrics: int = 10) -> list[str]:
    """What is printed of a table with so many metrics and a long name."""
    out = Terminal() if terminal else io.StringIO()
    console = console_for(out, quiet=False)
    if terminal:
        console.width = width
    names = {f"metric_number_{number}": 1 / 3 for number in range(metrics)}
    print_table(console, epoch_table(recorded.reported({"fit": {1: names}, "my-loop-of-many-words": {1: names}})))
    return out.getvalue().splitlines()


def test_a_table_in_a_file_is_whole_and_one_in_a_terminal_has_whole_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("NO_COLOR", "1")
    assert tables(80, terminal=False, metrics=0) == []
    print_table(Console(file=(out := io.StringIO())), study_table([]))
    assert not out.getvalue(), "there is nothing below these headings"
    piped = tables(80, terminal=False)
    assert len(piped) == 4 and piped[1].count("0.333333333") == 10
    for width in (80, 120):
        shown = [re.sub(r"\x1b\[[\d;]*m", "", line).rstrip() for line in tables(width, terminal=True)]
        assert "".join(shown).count("0.333333333") == 20 and all(len(line) <= width for line in shown)
        assert "\n".join(shown).count("my-loop-of-many-words") == len(shown) / 4 > 1, "each part names the trainers"


def table_of(epochs: int, apart_from: int) -> str:
    """What is printed of so many epochs, whose losses differ from one of them on."""
    out = io.StringIO()
    fit, loop = ({epoch: {"loss": 1 / epoch} for epoch in range(1, epochs + 1)} for _ in range(2))
    for epoch in range(apart_from, epochs + 1):
        loop[epoch]["loss"] += 1e-5
    console = Console(file=out, force_terminal=True, color_system="standard", width=80, highlight=False)
    print_table(console, epoch_table(recorded.reported({"fit": fit, "loop": loop})))
    return out.getvalue()


@pytest.mark.parametrize(
    ("epochs", "shown"),
    [(12, list(range(1, 13))), (14, [1, 2, 4, 6, 7, *range(8, 15, 2)]), (99, [1, 7, *range(10, 100, 10), 99])],
)
def test_a_table_of_many_epochs_shows_every_nth_and_the_first_gap(epochs: int, shown: list[int]) -> None:
    text = re.sub(r"\x1b\[[\d;]*m", "", table_of(epochs, apart_from=7))
    assert [int(number) for number in re.findall(r"^(\d+) +fit", text, re.MULTILINE)] == shown
    assert ("Of " in text) == (epochs > 12) and (epochs == 12 or f"Of {epochs} epochs: the first, every" in text)


def test_gaps_stand_out_and_decimal_points_are_below_each_other() -> None:
    lines = table_of(12, apart_from=7).splitlines()[1:]
    gaps = [line for line in lines if "gap" in line]
    assert len(gaps) == 12 and all(line.startswith("\x1b[1m") for line in gaps)
    plain = [re.sub(r"\x1b\[[\d;]*m", "", line) for line in lines]
    assert len({line.index(".") for line in plain if "." in line}) == 1


def test_a_verdict_has_the_colour_that_it_has_in_the_page() -> None:
    css = (Path(html.__file__).parent / "templates" / "style.css").read_text()
    tones = dict(re.findall(r"\.pill\.([a-z-]+) { --tone: var\(--(\w+)\)", css))
    names = {"good": "bold green", "fine": "bold cyan", "bad": "bold red"}
    assert {word: style_of(word) for word in FROM_BEST} == {
        word: names.get(tones.get(word, ""), "bold") for word in FROM_BEST
    }


@pytest.mark.parametrize(("second", "said"), [(7, "weights equal"), (8, "weights differ")])
def test_copies_on_several_replicas_are_held_against_a_single_one_as_in_the_verdict(second: int, said: str) -> None:
    gap = RunningGap("fit")
    for name, copies in (("fit", [7]), ("loop", [7, second])):
        gap.see(name, StepRecord(1, 1, np.array([copies], np.uint64), np.zeros((1, 2))))
    hashes = (np.array([[copies]], np.uint64) for copies in ([7], [7, second]))
    assert gap.now("loop") == said and unequal(*hashes).any() == (said == "weights differ")


def test_a_resumed_reference_says_nothing_of_the_gap() -> None:
    out = io.StringIO()
    console, gap = Console(file=out), RunningGap("fit")  # which is through already: none of its steps is seen
    train(console, gap, "loop")
    assert "weight" not in out.getvalue()


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_colours_are_left_out_when_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    def verdict() -> str:
        monkeypatch.setattr("sys.stdout", Terminal())
        console = standard_streams.console(quiet=False)
        console.print("identical", style=style_of("identical"))
        return console.file.getvalue()  # type: ignore[attr-defined, no-any-return]

    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert "32m" in verdict()
    monkeypatch.setenv("NO_COLOR", "1")
    assert "32m" not in verdict()


def test_quiet_and_verbose_are_opposites(capsys: pytest.CaptureFixture[str], tmp_path: Any) -> None:
    assert cli.main(["--quiet", "--verbose", "--reports", str(tmp_path / "reports")]) == 2
    assert "--quiet and --verbose" in capsys.readouterr().err
    assert not (tmp_path / "reports").exists()
    with pytest.raises(RequestError):
        request(quiet=True, verbose=True)


def test_verbose_adds_versions_checksums_and_the_variables_that_differ() -> None:
    data = {"source": "a file", "training_sha256": "aa", "validation_sha256": "bb"}
    told = details({"versions": {"tensorflow": "2.21.0"}, "data": data})
    assert told[0] == "tensorflow 2.21.0" and "a file" in told[1] and "aa" in told[2] and "bb" in told[3]
    off = DifferingVariable("dense/kernel", 0.25), DifferingVariable("dense/bias", None)
    training = Training("different", None, None, 1, differing_variables=off)
    probes = (NotApplicable("several processes", "one only"),)
    comparison = Comparison("loop", training, Reporting(None, {}), not_applicable=probes)
    out = io.StringIO()
    print_verdict(Verdict.of("fit", [comparison]), Console(file=out, width=200), verbose=True)
    assert [line for line in out.getvalue().splitlines() if line.startswith("  differs")] == [
        "  differs at that step: dense/kernel, by 2.5e-01 (Euclidean norm)",
        "  differs at that step: dense/bias",
    ]
    skipped = "  not applicable: several processes: one only"
    assert skipped not in as_text(Verdict.of("fit", [comparison])).splitlines()
    assert skipped in as_text(Verdict.of("fit", [comparison], scope="check")).splitlines(), "what a check says anyway"


NAMES = ["[/road]", "[red]mine[/red]", ":smile:", "=cmd()", "<b>", "a\x1b[2Jb", "a\x07\u202eb"]
"""Names that Rich, a terminal, a browser or a spreadsheet would make something of."""


@pytest.mark.parametrize("name", NAMES)
def test_a_name_is_printed_as_it_is_wherever_it_appears(name: str) -> None:
    shown = name.replace("\x1b", r"\x1b").replace("\x07", r"\x07").replace("\u202e", r"\u202e")
    for terminal in (False, True):
        out = io.StringIO()
        console, gap = Console(file=out, force_terminal=terminal, width=200, highlight=False), RunningGap(name)
        train(console, gap, name)
        train(console, gap, "other")  # with the bar of the reference, which is done
        assert shown in out.getvalue() and (shown == name or name not in out.getvalue())
    out = io.StringIO()
    console = Console(file=out, width=200, highlight=False)
    say(console, f"{name} failed", style="red")
    console.print(epoch_table(recorded.reported({"fit": {1: {name: 0.5}}, name: {1: {name: 0.5}}})))
    lines = [line.split() for line in out.getvalue().splitlines()]
    assert lines[:2] == [[shown, "failed"], ["epoch", "trainer", shown]] and lines[3] == [shown, "0.5"]


def test_a_file_that_is_to_have_colours_has_no_lines_that_move(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.delenv("NO_COLOR", raising=False)
    console = live.console_for(file := io.StringIO(), quiet=False)
    with live.waiting(console, "starting"):
        console.print("different", style="red")
    assert file.getvalue() == "\x1b[31mdifferent\x1b[0m\n"


def test_of_a_message_with_millions_of_characters_a_part_is_searched(monkeypatch: pytest.MonkeyPatch) -> None:
    searched = Mock(return_value="")
    monkeypatch.setattr("compare.user_errors.remedy_for", searched)
    assert describe(ValueError(f"mine {'x' * 1_000_000} end")).startswith("ValueError: mine xxx")
    ((text,), _) = searched.call_args
    assert len(text) < 110_000 and text.endswith("x end")


def test_an_exception_that_cannot_say_what_it_is_keeps_its_name_and_place() -> None:
    class Mute(Exception):
        def __str__(self) -> str:
            raise ValueError("no text")

    with pytest.raises(Mute) as raised:
        raise Mute
    told = describe(raised.value)
    assert re.fullmatch(r"Mute: <exception str\(\) failed> \(.*test_terminal.py, line \d+\)", told), told


def test_what_a_trainer_raised_in_another_process_is_described_once() -> None:
    told = "AttributeError: no attribute 'reset_states' (loop.py, line 3); write reset_state()"
    assert describe(TrainerFailedError(told)) == told


def fail(run: RunJson, name: str, error: Exception, console: Console) -> None:
    """Records that the user's own trainer, the second one, failed."""
    names = run.trainers or []
    nothing: Any = None
    options = request(trainers=["fit", *(f"{each}.py:Loop" for each in names[1:])])
    Session(options, run, console, dict.fromkeys(names, nothing), task=nothing).failed(name, error)


@pytest.mark.parametrize(
    ("error", "remedy"),
    [
        (TrainerFailedError("its process died", MAY_PASS), "if its cause has passed, continue with --resume"),
        (type("UnavailableError", (Exception,), {})("the tasks have crashed"), "if its cause has passed, continue"),
        (OSError(28, "No space left on device"), "if its cause has passed, continue with --resume"),
        (pickle.loads(pickle.dumps(TrainerFailedError("told", NO_MEMORY))), "there is not enough memory"),
        (MemoryError(), "there is not enough memory"),
        (TrainerFailedError("OSError: as the text of a ValueError says"), "fix your trainer mine"),
    ],
)
def test_whether_a_failure_may_pass_does_not_depend_on_its_words(tmp_path: Path, error: Any, remedy: str) -> None:
    run = RunJson(folder=tmp_path, trainers=["fit", "mine"])
    fail(run, "mine", error, Console(file=io.StringIO()))
    (failure,) = run.failures or []
    assert failure["remedy"].startswith(remedy) and failure.get("may_pass", False) == ("fix" not in remedy)


def test_of_an_error_about_a_shape_the_numbers_are_left_out() -> None:
    array = np.array2string(np.array([[0.125, np.nan, -1e-7, np.inf, 2.0]] * 64), threshold=1000)
    end = "Expected shape (None, 8), but input has incompatible shape (64, 5), of [[64, 5]]"
    told = describe(ValueError(f"Invalid input shape for input {array}. {end}"))
    assert told == f"ValueError: Invalid input shape for input [[…]]. {end}"


def test_what_autograph_raises_in_place_of_an_error_is_told_as_that_error() -> None:
    class StagingError(Exception):
        pass

    text = 'in user code:\n\n    File "a.py", line 3, in step  *\n        check(x)\n\n    RequestError: give a mean\n'
    assert describe(StagingError(text)).startswith("give a mean")
    assert describe(StagingError(text.replace("RequestError", "MyError"))).startswith("MyError: give a mean")


@pytest.mark.parametrize(("others", "advice"), [([], ""), (["more"], ", or compare without it")])
def test_of_two_trainers_neither_can_be_left_out(tmp_path: Path, others: list[str], advice: str) -> None:
    run, out = RunJson(folder=tmp_path, trainers=["fit", "mine", *others]), io.StringIO()
    fail(run, "mine", ValueError("no"), Console(file=out, width=200))
    assert run.failures == [{"side": "mine", "error": "ValueError: no", "remedy": f"fix your trainer mine{advice}"}]
    failed = not_comparable("mine", Failure(**run.failures[0]))
    told = f"mine and fit cannot be compared, because mine {{}}; fix your trainer mine{advice}"
    assert sentence(failed, "fit") == told.format("cannot run: ValueError: no")
    assert sentence(failed, "fit", ["mine"]) == told.format("failed"), "the error was printed before"
    lost = not_comparable("mine", Failure(**run.failures[0], may_pass=True))
    assert sentence(lost, "fit") == told.format("failed: ValueError: no"), "it can run"


@pytest.mark.parametrize(
    ("terminal", "quiet", "told"),
    [(True, False, "mine failed"), (False, False, "ValueError: no .*"), (True, True, "ValueError: no .*")],
)
def test_the_last_line_repeats_no_error_that_the_same_terminal_has_shown(
    terminal: bool, quiet: bool, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    console = Console(file=io.StringIO(), force_terminal=terminal, quiet=quiet)

    def fails(*_: Any, **__: Any) -> None:
        try:
            raise ValueError("no")
        except ValueError as error:
            run = RunJson(folder=tmp_path, trainers=["fit", "mine"])
            fail(run, "mine", error, console)
            run.save()
            raise

    monkeypatch.setattr("compare.app.session.carry_out", fails)
    monkeypatch.setattr(standard_streams, "console", lambda **_: console)
    monkeypatch.setattr("sys.stderr.isatty", lambda: terminal)
    with pytest.raises(NoVerdictError) as raised:
        cli.carry_out_and_report(request(), tmp_path)
    assert re.fullmatch(rf"{told} \(traceback in .*tensorflow\.log\)", str(raised.value))


@pytest.mark.parametrize(
    ("epochs", "begins"),
    [
        (1, "so far (interrupted in epoch 2 of 3), loop trains exactly like fit: "),
        (3, "loop trains exactly like fit: "),
    ],
)
def test_of_an_interrupted_run_the_caveat_leads(tmp_path: Path, epochs: int, begins: str) -> None:
    recorded.record(tmp_path / "run", "fit", epochs=3)
    recorded.record(tmp_path / "run", "loop", epochs=epochs)
    recorded.finish(tmp_path / "run", status=INTERRUPTED)
    out = io.StringIO()
    assert judge_and_publish(tmp_path / "run", Console(file=out, width=200)) == "identical"
    (line,) = [line for line in out.getvalue().splitlines() if line.startswith("identical: ")]
    assert line.startswith(f"identical: {begins}") and f"after each of {4 * epochs} steps" in line
    assert begins in (tmp_path / "run" / "report.html").read_text()


def test_of_a_run_that_was_interrupted_in_its_first_training_nobody_says_that_it_was_trained() -> None:
    unknown = Comparison("loop", Training("inconclusive", None, None, 0, reason="no step"), Reporting(None, {}))
    assert as_text(Verdict.of("fit", [unknown], interrupted=True)).endswith(
        "The run was interrupted before all was explained; what there is was judged."
    )


@pytest.mark.parametrize(
    ("ratio", "times"),
    [(0.123, "at most 0.12"), (1.26, "at most 1.3"), (94.2, "at most 94"), (1447, "1,400"), (9999, "10,000")],
)
def test_how_many_times_rounding_is_a_number_that_can_be_read(ratio: float, times: str) -> None:
    training = Training("different", None, Difference(1, 8), 8, noise=Noise.of(2, ratio, (1, 8), "w"))
    told = sentence(Comparison("loop", training, Reporting(None, {})), "fit")
    limit = " (measured with 2 perturbed runs; up to 100 times counts as rounding)"
    assert f"; the gap is {times} times the effect of rounding{limit}" in told
    far = replace(training, noise=Noise.of(2, 1.3e5, (1, 8), "w"))
    assert sentence(Comparison("loop", far, Reporting(None, {})), "fit").endswith(
        "130,000 times the effect of rounding"
    )


def test_escape_sequences_in_errors_and_names_are_shown_as_text() -> None:
    assert describe(ValueError("a\x1b[2Jb\x1b]0;c\x07")) == r"ValueError: a\x1b[2Jb\x1b]0;c\x07"
    assert html.environment().from_string("{{ x }}").render(x="<b>\x1b[2J\n") == r"&lt;b&gt;\x1b[2J" + "\n"
    assert plots.plain("$a\x1b[2J") == r"\$a\x1b[2J"


def test_escape_sequences_in_a_request_are_shown_as_text(capsys: pytest.CaptureFixture[str], tmp_path: Any) -> None:
    assert cli.main(["--experiment", "a\x1b[2J\udcff", "--reports", str(tmp_path / "reports")]) == 2
    assert r"--experiment a\x1b[2J\udcff: unknown" in capsys.readouterr().err


def test_a_printed_result_is_as_wide_as_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    found = Comparison("loop", Training("different", None, Difference(1, 1), 3), Reporting(None, {}))
    verdict = Verdict.of("fit", [replace(found, evidence=("the gradients differ by a factor " * 6,))])
    long = as_text(verdict)
    assert max(map(len, long.splitlines())) > 80, "a file or pipe has lines of any length"
    stdout = io.StringIO()
    monkeypatch.setattr(stdout, "isatty", lambda: True)
    monkeypatch.setattr("sys.stdout", stdout)
    monkeypatch.setenv("COLUMNS", "80")
    in_terminal = as_text(verdict)
    assert max(map(len, in_terminal.splitlines())) <= 80
    assert in_terminal.split() == long.split(), "no words are broken or styled"
