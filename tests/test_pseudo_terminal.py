"""What a user sees in a terminal of 80 and of 120 columns, at five moments of a run."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
import threading
from dataclasses import dataclass, field
from pathlib import Path

import pyte
import pytest

ROOT = Path(__file__).resolve().parents[1]
BAR, SPINNER = "[━─]{6}", "[⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏]"


@dataclass
class Watched:
    """A command in a terminal.

    Attributes:
        columns: the terminal's width.
        frames: every state of the screen, without its empty lines.
        status: the exit status.
    """

    columns: int
    frames: list[list[str]] = field(default_factory=list)
    status: int | None = None

    def run(self, *arguments: str | Path) -> None:
        master, terminal = pty.openpty()
        fcntl.ioctl(master, termios.TIOCSWINSZ, struct.pack("HHHH", 60, self.columns, 0, 0))
        unset = {"COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"}
        environment = {name: value for name, value in os.environ.items() if name not in unset}
        screen = pyte.Screen(self.columns, 60)
        stream = pyte.ByteStream(screen)
        process = subprocess.Popen(
            [sys.executable, ROOT / "scripts" / "compare.py", *arguments],
            stdin=terminal,
            stdout=terminal,
            stderr=terminal,
            start_new_session=True,
            env=environment | {"TERM": "xterm-256color"},
        )
        os.close(terminal)
        while True:
            try:
                shown = os.read(master, 65536)
            except OSError:  # Linux's way to say that nobody has the terminal open
                break
            if not shown:
                break
            stream.feed(shown)
            frame = [line.rstrip() for line in screen.display if line.strip()]
            if frame:
                self.frames.append(frame)
        os.close(master)
        self.status = process.wait()

    def moment(self, pattern: str) -> list[str]:
        """The first frame whose last line, or the one above, matches; what was seen last fails the test."""
        for frame in self.frames:
            if any(re.search(pattern, line) for line in frame[-2:]):
                return frame
        pytest.fail(f"{pattern} was never the last line; the last lines were\n" + "\n".join(self.last_lines()))

    def last_lines(self) -> list[str]:
        return list(dict.fromkeys(frame[-1] for frame in self.frames))


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Watched]:
    """Two trainers at the same time on 80 columns, which differ; and in turn on 120, which are identical."""
    reports = tmp_path_factory.mktemp("reports")
    both = {80: "tutorial", 120: "loop"}
    runs = {columns: Watched(columns) for columns in both}
    threads = []
    for columns, candidate in both.items():
        data = ["--experiment", "fashion-mnist-sample", "--epochs", "2", "--train-examples", "5000"]
        arguments = [*data, "--trainers", "fit", candidate, "--reports", str(reports), "--name", f"on-{columns}"]
        arguments += ["--sequential"] if columns == 120 else []
        threads.append(threading.Thread(target=runs[columns].run, args=arguments))
        threads[-1].start()
    for thread in threads:
        thread.join(timeout=300)
    return runs


@pytest.fixture(params=[80, 120])
def run(watched: dict[int, Watched], request: pytest.FixtureRequest) -> Watched:
    return watched[request.param]


def test_something_moves_before_tensorflow_is_imported(watched: dict[int, Watched]) -> None:
    for run in watched.values():
        assert re.fullmatch(rf"{SPINNER} starting.* … \d+ s", run.frames[0][-1]), run.frames[0]
        waits = [line for line in run.last_lines() if "starting TensorFlow" in line]
        assert len(waits) > 1, f"it does not move while TensorFlow is imported: {waits}"


def test_the_live_line_has_bar_percentage_rate_and_time_left(run: Watched) -> None:
    unit = "examples/s" if run.columns >= 100 else "ex/s"
    frame = run.moment(rf"^fit +epoch [12]/2  {BAR}.*  +[1-9]\d?%  +[\d,]+ {unit}  +\d:\d\d left$")
    assert "loss" not in " ".join(frame[-2:]), "metrics are on finished lines only"
    assert frame[0] == f"fashion-mnist-sample: fit and {'tutorial' if run.columns == 80 else 'loop'} under mirrored, " \
        "1 replica"  # fmt: skip


def test_the_first_epochs_losses_stay_above_the_live_lines(run: Watched) -> None:
    number = r"\d\.\d{4}"
    if run.columns == 120:
        frame, line = run.moment(rf"^fit +epoch 2/2  {BAR}"), rf"fit +epoch 1/2  loss {number}  val_loss {number}"
        costs = r"\d+\.\d s, [\d,]+ examples/s"
    else:  # both train at the same time, and share a line
        frame = run.frames[-1]
        line = rf"fit/tutorial  epoch 1/2  loss {number}/{number}  val_loss {number}/{number}"
        costs = r"\d+\.\d/\d+\.\d s, weight gap \d\.\de.\d+ \(norm\) since epoch 1, step 79"
    finished = " ".join(each.strip() for each in frame[2:] if not re.search(BAR, each))
    assert re.search(rf"{line} +{costs}", finished), finished


def test_the_candidates_live_line_says_whether_weights_are_equal(run: Watched) -> None:
    if run.columns == 80:
        run.moment(rf"^tutorial  epoch [12]/2  {BAR}.* left  weights differ$")
        assert "tutorial  weights differ from step 79 of epoch 1 on from those of fit" in run.frames[-1]
    else:
        run.moment(rf"^loop  epoch [12]/2  {BAR}.* left  weights equal$")


def test_at_the_end_there_are_whole_sentences_and_numbers_and_no_bar(run: Watched) -> None:
    last = run.frames[-1]
    assert not any(re.search(f"{BAR}|{SPINNER}", line) for line in last)
    verdict = "different: tutorial does not train like fit: their weights differ from step 79 of epoch 1 on; at"
    if run.columns == 120:
        verdict = "identical: loop trains exactly like fit: every weight is equal, bit for bit, after each of 158 steps"
    assert run.status == (run.columns == 80)
    text = " ".join(line.strip() for line in last)
    assert f" {verdict}" in text
    losses = re.findall(r"val_loss \d\.\d{4}(?:/\d\.\d{4})?\b", text)
    assert len(losses) == (4 if run.columns == 120 else 2), "none is broken over two lines"
    assert len(re.findall(r" gap +(?:0|[+-][\d.]+(?:e-\d\d)?)\b", text)) == 2
    assert "WARNING" not in text and "Traceback" not in text


def test_no_line_is_ever_wider_than_the_terminal_nor_are_there_more_bars_than_trainers(run: Watched) -> None:
    assert len(run.frames) > 20
    for frame in run.frames:
        live = [line for line in frame if re.search(f"{BAR}|{SPINNER}", line)]
        assert len(live) <= (2 if run.columns == 80 else 1) and all(len(line) <= run.columns - 3 for line in live), (
            frame
        )
