"""The parser of the commands: what it refuses is one line, with what was probably meant."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any, NoReturn

from compare.errors import RequestError
from compare.naming import did_you_mean

LONGEST = 400
"""Maximum number of characters of what argparse says, which repeats what was given."""


class OneLineParser(argparse.ArgumentParser):
    """An ArgumentParser that raises a RequestError instead of printing its usage."""

    def parse_args(  # type: ignore[override] # argparse has it overloaded
        self, args: Sequence[str] | None = None, namespace: Any = None
    ) -> Any:
        """The values of a command line; the error about an unknown option suggests a similar one."""
        values, unknown = self.parse_known_args(args, namespace)
        if unknown:
            self.error(f"unrecognized arguments: {' '.join(unknown)}", self._meant(unknown))
        return values

    def error(self, message: str, advice: str = "") -> NoReturn:
        """Refuses the command line with a RequestError."""
        shown = message if len(message) <= LONGEST else f"{message[:LONGEST]} …"
        raise RequestError(f"{shown}{advice} (see --help)")

    def _meant(self, unknown: Sequence[str]) -> str:
        """What the user probably wanted with arguments that are unknown."""
        options = self._option_string_actions
        if unknown[0].startswith("-"):
            return did_you_mean(unknown[0].partition("=")[0], [name for name in options if name.startswith("--")])
        if "--scripts" in options and all(each.endswith((".py", ".ipynb")) for each in unknown):
            return f"; did you mean --scripts {' '.join(unknown)}?"
        return ""
