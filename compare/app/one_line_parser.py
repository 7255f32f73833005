"""The parser of the commands: what it refuses is one line."""

from __future__ import annotations

import argparse
from typing import NoReturn

from compare.errors import RequestError


class OneLineParser(argparse.ArgumentParser):
    """An ArgumentParser that raises a RequestError instead of printing its usage."""

    def error(self, message: str) -> NoReturn:
        raise RequestError(f"{message} (see --help)")
