"""All options of all modes together: the keywords of ``compare.run``, and which mode they ask for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from compare.errors import RequestError
from compare.modes import Logs, Scripts, ShortCheck, Study, Training
from compare.naming import label, renamed
from compare.option import flag, options_of
from compare.request import COMPARED, GROUPS, Request, Task

MODES: tuple[type[Request], ...] = (Training, Study, ShortCheck, Scripts, Logs)
HOW: dict[type[Request], str] = {
    Study: "is for a study of several seeds: add --seeds N",
    ShortCheck: "is for a short check: add check",
    Scripts: "is for scripts only: leave it out, or give two scripts",
    Logs: "is for logs only: leave it out",
}
"""What a full training says of an option of another mode."""


@dataclass(frozen=True, kw_only=True)
class Options(Training, Study, ShortCheck, Scripts, Logs):
    """The options of all modes. ``request`` is what they ask for."""

    check: bool = COMPARED.switch("run only the short check (seconds), without a full training")

    def _refuse(self) -> None:
        """The mode does, which has only some of these."""

    @property
    def request(self) -> Request:
        """The mode that these options ask for, with the options that it has."""
        mode = mode_of(vars(self))
        own = options_of(mode)
        for name, option in OPTIONS.items():
            if name in own or name in (mode.word, mode.ignored):
                continue
            if getattr(self, name) != option.default:
                raise RequestError(refusal(name, mode))
        return mode(**{name: getattr(self, name) for name in own}, here=self.here)


_IN_ORDER = {**options_of(Task), **options_of(Options)}
OPTIONS = dict(sorted(_IN_ORDER.items(), key=lambda each: GROUPS.index(each[1].group)))
"""All options by name, as ``--help`` lists them."""


def request(*args: Any, **given: Any) -> Request:
    """The request that keywords of ``compare.run`` make."""
    return Options(*args, **renamed(given)).request


def refusal(name: str, mode: type[Request]) -> str:
    """Why an option is refused that a mode does not have."""
    other = next((each for each in MODES if name in options_of(each) or name == each.word), mode)
    if mode is Training and other in HOW:
        return f"{flag(name)} {HOW[other]}"
    return f"{flag(name)} has no meaning {mode.title}: leave it out"


def mode_of(options: Mapping[str, Any]) -> type[Request]:
    """The mode that options ask for, by name."""
    for mode in (Scripts, Logs, ShortCheck):
        if options.get(mode.word):
            return mode
    return Study if options.get("seeds", 1) > 1 else Training


def as_json(asked: Request) -> dict[str, Any]:
    """All options as plain values, as they were given; objects by their name. What a mode lacks has its default."""
    own = {name: getattr(asked, name) for name in options_of(asked)}
    if isinstance(asked, ShortCheck):
        own["check"] = True
    return {name: _plain(own.get(name, option.default)) for name, option in OPTIONS.items()}


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_plain(each) for each in value]
    if isinstance(value, Path):
        return str(value)
    return value if value is None or isinstance(value, str | int) else label(value)
