"""The command: options to request, request to exit status."""

from __future__ import annotations

import argparse
import faulthandler
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

from compare.errors import RequestError
from compare.options import STRATEGIES, Options

EXIT_REQUEST = 2
EXIT_INTERRUPTED = 130


class _Parser(argparse.ArgumentParser):
    """An ArgumentParser whose errors are one line."""

    def error(self, message: str) -> NoReturn:
        raise RequestError(f"{message} (see --help)")


def parser() -> argparse.ArgumentParser:
    """The command's options, as INTERFACES names them."""
    defaults = Options()
    parser = _Parser(
        prog="compare.py",
        allow_abbrev=False,
        description="Train one model with model.fit and with a custom loop, and say whether both train alike: "
        "bit for bit, and if not, from which step on they part.",
        epilog="Exit status: 0 identical or alike, 1 different, 2 the request is wrong, 3 no verdict, 130 interrupted.",
    )
    add = parser.add_argument
    add(
        "--experiment",
        metavar="NAME|FILE.py[:ATTR]",
        default=defaults.experiment,
        help="what to train: fashion-mnist, fashion-mnist-sample, or an Experiment in a file of yours "
        "(default: %(default)s)",
    )
    add(
        "--trainers",
        metavar=("REF", "CAND"),
        nargs="+",
        default=defaults.trainers,
        help="who trains: fit, loop, tutorial, or FILE.py:ATTR or package.module:ATTR for your own; the first "
        "is the reference (default: fit loop)",
    )
    add(
        "--strategy",
        metavar="NAME",
        default=defaults.strategy,
        help=f"{', '.join(STRATEGIES)} (default: %(default)s)",
    )
    add(
        "--replicas",
        metavar="N",
        type=int,
        help="how many replicas; without a GPU, N logical CPU devices (default: all visible devices)",
    )
    add("--epochs", metavar="N", type=int, default=defaults.epochs, help="(default: %(default)s)")
    add(
        "--batch-size",
        metavar="N",
        type=int,
        default=defaults.batch_size,
        help="examples per replica and step (default: %(default)s)",
    )
    add(
        "--seed",
        metavar="N",
        type=int,
        default=defaults.seed,
        help="of the initial weights and the order of examples (default: %(default)s)",
    )
    add(
        "--train-examples",
        metavar="N",
        type=int,
        help="use only the first N training examples, for short trials (default: all)",
    )
    add(
        "--reports",
        metavar="DIR",
        type=Path,
        default=defaults.reports,
        help="results go to DIR/NAME (default: %(default)s)",
    )
    add("--name", help="the run's name; one that exists is refused (default: made from the options)")
    add(
        "--data-dir",
        metavar="DIR",
        type=Path,
        help="where the data set's files are; they are looked for there and nowhere else",
    )
    add("--quiet", action="store_true", help="print errors only")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Carry out one command line; returns the exit status."""
    try:
        options = Options(**vars(parser().parse_args(arguments)))
        from compare.session import carry_out, claim_folder, new_console

        folder = claim_folder(options)
        with _stderr_to(folder / "tensorflow.log"):
            return carry_out(options, folder, new_console(options)).exit_status
    except RequestError as error:
        print(f"compare.py: {' '.join(str(error).split())}", file=sys.stderr)
        return EXIT_REQUEST
    except KeyboardInterrupt:
        print("compare.py: interrupted", file=sys.stderr)
        return EXIT_INTERRUPTED


@contextmanager
def _stderr_to(path: Path) -> Iterator[None]:
    """Send stderr to a file: TensorFlow's start-up noise comes from C++, past ``sys.stderr``."""
    sys.stderr.flush()
    with open(os.dup(2), "w", buffering=1) as real, open(path, "ab") as log:
        os.dup2(log.fileno(), 2)
        faulthandler.enable(file=real)  # a crash in C++ still says on the terminal where it happened
        try:
            yield
        finally:
            sys.stderr.flush()
            faulthandler.disable()
            os.dup2(real.fileno(), 2)
