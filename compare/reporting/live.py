"""What moves in a terminal while something takes long: one line, never wider than the terminal, and gone at the end."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TextIO

from rich.console import Console, ConsoleRenderable, Group, RenderHook
from rich.live import Live
from rich.text import Text

from compare.naming import printable

REFRESHES_PER_SECOND = 4
FIRST_PAUSE, LONGEST_PAUSE = 5.0, 20.0
"""Seconds without a word after which a line is printed where none can move."""
UNLIMITED = 10_000
"""Columns of a file or pipe: nothing that is printed there is cut."""
USUAL_WIDTH = 80
"""Columns of a terminal that does not know its width."""
SPINNER, FULL, EMPTY = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏", "━", "─"
PLAIN = str.maketrans({**dict.fromkeys(SPINNER, "*"), FULL: "#", EMPTY: "-", "…": "~"})
"""The same in ASCII, where the terminal's encoding has no more."""
NARROWEST_BAR, WIDEST_BAR = 6, 28
"""Numbers of characters of a bar."""
USUAL_NOTE = len("weights differ")
"""The number of characters that a line of progress keeps free for its note."""


def console_for(file: TextIO, *, quiet: bool) -> Console:
    """A console that prints as wide as the terminal, and elsewhere without a limit."""
    given: dict[str, Any] = {"file": file, "quiet": quiet, "highlight": False}
    if os.environ.get("FORCE_COLOR") and not file.isatty():  # Rich would have lines move in a file as well
        given |= {"force_terminal": False, "color_system": "standard"}
    console = Console(**given)
    if not (console.is_terminal or console.is_jupyter):
        console.width = UNLIMITED
    elif console.width < 1:  # COLUMNS=0
        console.width = USUAL_WIDTH
    return console


def _moves(console: Console) -> bool:
    return console.is_terminal and not console.is_dumb_terminal and not console.quiet


Line = Callable[[int], str]
"""Gives a line for a number of columns; called in another thread."""


class _Silence(RenderHook):
    """Knows since when a console has printed nothing."""

    def __init__(self) -> None:
        self.since = time.monotonic()

    def process_renderables(self, renderables: list[ConsoleRenderable]) -> list[ConsoleRenderable]:
        self.since = time.monotonic()
        return renderables


@contextmanager
def live_line(console: Console, *lines: Line) -> Iterator[None]:
    """Shows lines below what is printed, drawn again four times a second.

    Where no terminal is, as in the log of a CI job, they are printed once nothing else was for 5 s, then for 10, and
    from then on for each 20 s.
    """

    def drawn(line: Line, columns: int) -> Text:
        text = line(columns)[:columns]
        if not console.encoding.startswith("utf"):
            text = text.translate(PLAIN).encode(console.encoding, "replace").decode(console.encoding)
        shown = Text(text, no_wrap=True, overflow="crop")
        shown.highlight_regex(f"{FULL}+", "cyan")
        shown.highlight_regex(f"{EMPTY}+", "dim")
        return shown

    if _moves(console):
        # Room for the ^C that a terminal echoes, and none to wrap in. What TensorFlow logs to stderr goes to a file in
        # the command; Rich would print it here, and do so ever after.
        with Live(
            get_renderable=lambda: Group(*(drawn(line, console.width - 3) for line in lines)),
            console=console,
            refresh_per_second=REFRESHES_PER_SECOND,
            transient=True,
            redirect_stderr=os.isatty(2),
        ):
            yield
        return

    if console.quiet:
        yield
        return
    over, silence = threading.Event(), _Silence()

    def print_in_silence() -> None:
        pause = FIRST_PAUSE
        while not over.wait(silence.since + pause - time.monotonic()):
            if time.monotonic() >= silence.since + pause:
                for line in lines:
                    console.print(drawn(line, UNLIMITED), soft_wrap=True)
                pause = min(2 * pause, LONGEST_PAUSE)

    console.push_render_hook(silence)
    thread = threading.Thread(target=print_in_silence, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()  # nothing is said of it after its end
        console.pop_render_hook()


@contextmanager
def waiting(console: Console, what: str | Callable[[], str]) -> Iterator[None]:
    """Shows what the user waits for, in a few words or a function that gives them, and since when."""
    began = time.monotonic()

    def line(columns: int) -> str:
        seconds = time.monotonic() - began
        spinner = f"{SPINNER[int(seconds * REFRESHES_PER_SECOND) % len(SPINNER)]} " if _moves(console) else ""
        words = printable(what if isinstance(what, str) else what())
        return f"{spinner}{_shortened(words, columns - 12)} … {seconds:.0f} s"

    with live_line(console, line):
        yield


def progress_line(columns: int, head: str, fraction: float, rate: float | None, left: float | None, note: str) -> str:
    """A line with a bar; where there is no room for all, the note goes first, then the rate.

    ``fraction`` is done, from 0 to 1; examples per second and the seconds left are shown if they are known. Lines with
    heads of the same length have bars of the same length, whatever else they show.
    """
    unit = " examples/s" if columns >= 100 else " ex/s"
    percent = f"{fraction:4.0%}", 4  # each part with the room that is kept for it
    speed = "" if rate is None else f"{rate:>6,.0f}{unit}", 6 + len(unit)
    clock = "" if left is None else f"{_clock(left):>5} left", 10
    choices = [percent, speed, clock, (note, USUAL_NOTE)], [percent, speed, clock], [percent, clock], [percent]
    room = columns - len(head) - 2
    for parts in choices:
        bar = min(room - sum(2 + reserved for _, reserved in parts), WIDEST_BAR)
        if bar >= NARROWEST_BAR:
            break
    else:
        bar = NARROWEST_BAR
        head = _shortened(head, columns - bar - 4 - 4)
    for parts in choices:
        rest = "".join(f"  {part}" for part, _ in parts if part)
        if bar + len(rest) <= room:
            break
    done = int(bar * fraction)
    return f"{head}  {FULL * done}{EMPTY * (bar - done)}{rest}"


def _shortened(text: str, columns: int) -> str:
    return text if len(text) <= columns else f"{text[: max(columns - 1, 0)]}…"


def _clock(seconds: float) -> str:
    """Formats a duration as ``1:02`` or ``2:00:59``."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
