"""The parser of the commands: what it refuses is one line."""

from __future__ import annotations

import argparse
from typing import NoReturn

from compare.errors import RequestError

LONGEST = 400
"""Maximum number of characters of what argparse says, which repeats what was given."""


class OneLineParser(argparse.ArgumentParser):
    """An ArgumentParser that raises a RequestError instead of printing its usage."""

    def error(self, message: str) -> NoReturn:
        shown = message if len(message) <= LONGEST else f"{message[:LONGEST]} …"
        raise RequestError(f"{shown} (see --help)")
