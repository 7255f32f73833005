"""Progress in a notebook: plain lines, and one line per trainer that is updated; the result shows itself."""

from __future__ import annotations

import logging
import sys
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from html import escape
from typing import Any

from rich.console import Console

from compare.naming import printable
from compare.records.model import AnyRecord, EpochRecord, StepRecord
from compare.reporting.live import live_line
from compare.reporting.terminal import TrainerProgress

REFRESH_SECONDS = 0.3
"""The shortest time between two updates of a line."""


def in_notebook() -> bool:
    """Whether this process is the kernel of a notebook."""
    ipython = sys.modules.get("IPython")
    return ipython is not None and hasattr(ipython.get_ipython(), "kernel")


@contextmanager
def without_log_messages() -> Iterator[None]:
    """In a notebook, leaves out TensorFlow's log messages except errors: it writes each to stdout and to stderr."""
    logger = logging.getLogger("tensorflow")
    level = logger.level
    if in_notebook():
        logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        if in_notebook():
            logger.setLevel(level)


class NotebookConsole(Console):
    """Prints plain lines in the output of a cell; Rich's own output for notebooks is a block per line."""

    def __init__(self, file: Any, *, quiet: bool) -> None:
        super().__init__(file=file, quiet=quiet, highlight=False, force_jupyter=False, force_terminal=False, width=120)


def progress(console: Console, *given: Any) -> TrainerProgress:
    """The sink that shows the progress of one trainer; the arguments are those of ``TrainerProgress``."""
    return (NotebookProgress if isinstance(console, NotebookConsole) else TrainerProgress)(console, *given)


@contextmanager
def side_by_side(console: Console, bars: Sequence[TrainerProgress]) -> Iterator[None]:
    in_lines = isinstance(console, NotebookConsole)
    with ExitStack() as stack:
        for shown in bars if in_lines else [live_line(console, *(bar.line for bar in bars))]:
            stack.enter_context(shown)
        yield


class NotebookProgress(TrainerProgress):
    """The sink that shows the progress of one trainer in one line of a notebook; nothing if the console is quiet."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._id = f"progress-{uuid.uuid4()}"
        self._began, self._next_refresh = time.perf_counter(), 0.0
        self._numbers, self._gap_text = "", ""

    def __enter__(self) -> NotebookProgress:
        self._show(update=False)
        return self

    def __exit__(self, *_: object) -> None:
        self._show(ended=True)

    def __call__(self, record: AnyRecord) -> None:
        super().__call__(record)
        if isinstance(record, StepRecord) and record.step > 0 and time.perf_counter() > self._next_refresh:
            self._gap_text = self._gap.now(self._name)
            self._show()
        elif isinstance(record, EpochRecord):
            self._show()

    def _end_epoch(self, record: EpochRecord | None) -> None:
        if record is None:
            return
        self._numbers = ", ".join(f"{name} {value:.4f}" for name, value in record.logs.items())
        self._gap_text = self._gap.at_end_of(record.epoch, self._name)

    def _show(self, *, update: bool = True, ended: bool = False) -> None:
        if self._console.quiet:
            return
        from IPython.display import display  # noqa: PLC0415 (lazy)

        self._next_refresh = time.perf_counter() + REFRESH_SECONDS
        seconds = f"{time.perf_counter() - self._began:.1f} s" if ended else ""
        epoch = max(self._epoch - (self._step == 0), self._epochs[0])  # the one that has just ended
        texts = [f"epoch {epoch}/{self._epochs[-1]}", self._numbers, self._gap_text, seconds]
        line = " · ".join(printable(text) for text in texts if text)
        bar = f'<progress value="{self._done}" max="{len(self._epochs) * self._steps}" aria-label="steps"></progress> '
        html = f"<div><strong>{escape(self._trainer.strip())}</strong> {'' if ended else bar}{escape(line)}</div>"
        content = {"text/plain": f"{self._trainer.strip()}  {line}", "text/html": html}
        display(content, raw=True, display_id=self._id, update=update)  # type: ignore[no-untyped-call]
