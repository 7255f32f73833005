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
            self.refuse_unknown(unknown)
        return values

    def refuse_unknown(self, unknown: Sequence[str], advice: str = "") -> NoReturn:
        """Refuses arguments that there are not, and suggests a similar option, or else gives advice."""
        options = [name for name in self._option_string_actions if name.startswith("--")]
        meant = did_you_mean(unknown[0].partition("=")[0], options) if unknown[0].startswith("-") else ""
        self.error(f"unrecognized arguments: {' '.join(unknown)}", meant or advice)

    def error(self, message: str, advice: str = "") -> NoReturn:
        raise RequestError(f"{shortened(message)}{advice} (see --help)")


def shortened(text: str) -> str:
    """What was given, as it is repeated in a message."""
    return text if len(text) <= LONGEST else f"{text[:LONGEST]} …"
