"""The command: options to request, request to exit status."""

from __future__ import annotations

import argparse
import faulthandler
import os
import shlex
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

from compare import signals
from compare.app.local_cluster import PREFIX
from compare.engine.tf_config import this_task
from compare.errors import EXIT_INTERRUPTED, EXIT_NO_VERDICT, EXIT_REQUEST, NoVerdictError, RequestError
from compare.options import CLUSTERS, EXPERIMENTS, STRATEGIES, Options


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
        help=f"what to train: {', '.join(EXPERIMENTS)}, or an Experiment in a file of yours (default: %(default)s)",
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
    add(
        "--workers",
        metavar="N",
        type=int,
        help="multi-worker and parameter-server: so many local worker processes, "
        "unless TF_CONFIG names a cluster (default: 1)",
    )
    add(
        "--parameter-servers",
        metavar="N",
        type=int,
        help="parameter-server: so many local server processes (default: 1)",
    )
    add(
        "--keras",
        metavar="3|2",
        type=int,
        default=defaults.keras,
        help="Keras generation; 2 is the tf-keras package (default: %(default)s)",
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
        "--seeds",
        metavar="N",
        type=int,
        default=defaults.seeds,
        help="a study: N seeds, from --seed on, for every trainer, judged by paired differences (default: %(default)s)",
    )
    add(
        "--margin",
        metavar="METRIC=VALUE[%]",
        nargs="+",
        help="in a study, how far apart two means may be and still count as alike; with %% as a part of the "
        "reference's (default: val_accuracy=0.01 val_loss=2%%)",
    )
    add("--jobs", metavar="N", type=int, help="in a study, so many runs at the same time (default: one per core)")
    add(
        "--backend",
        metavar="NAME",
        default=defaults.backend,
        help="in a study, who makes the runs: local processes or dask workers (default: %(default)s)",
    )
    add("--scheduler", metavar="tcp://HOST:PORT", help="with --backend dask: the scheduler's address")
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
    add(
        "--iteration",
        metavar="WAY",
        help="how loop goes through an epoch: a Python for over batches, an iterator that a tf.function takes batches "
        "from, or the whole epoch in one call of that function (default: iterator; for with several processes)",
    )
    add(
        "--steps-per-execution",
        metavar="K",
        type=int,
        default=defaults.steps_per_execution,
        help="fit and loop make K steps per call of a tf.function; weights are compared after each call "
        "(default: %(default)s)",
    )
    add("--jit", action="store_true", help="XLA compiles the steps of fit and loop; op determinism is off")
    add(
        "--parallel",
        action="store_true",
        help="all trainers at the same time, in processes that share the processor's threads",
    )
    add("--truth", action="store_true", help="also train on one replica in float64, to tell which side is off")
    add(
        "--against",
        metavar="RUN",
        type=Path,
        help="also compare each trainer with its namesake in a recorded run's folder",
    )
    add("--check", action="store_true", help="only the short check (seconds), no full training")
    add(
        "--force",
        action="store_true",
        help="train even where it is known that one side cannot run (with other versions, say)",
    )
    add(
        "--checkpoint-every",
        metavar="N",
        type=int,
        default=defaults.checkpoint_every,
        help="save model, optimizer, epoch and metrics every N epochs and at the last; 0 is never "
        "(default: %(default)s)",
    )
    add(
        "--keep-checkpoints",
        metavar="N",
        type=int,
        default=defaults.keep_checkpoints,
        help="keep each trainer's last N checkpoints (default: %(default)s)",
    )
    add(
        "--resume",
        action="store_true",
        help="go on with an interrupted run: the same options, and --name if it had one",
    )
    add("--export", action="store_true", help="save each final model as a SavedModel and a .keras file")
    add(
        "--tensorboard",
        action="store_true",
        help="also write a TensorBoard log to DIR/NAME/tensorboard: a run for each trainer, the verdict as text",
    )
    add("--quiet", action="store_true", help="print errors only")
    add(
        "--verbose",
        action="store_true",
        help="also print versions, checksums, which variables differ first and what could not be looked at",
    )
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Carry out one command line; returns the exit status."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        options = Options(**vars(parser().parse_args(given)))
        member = this_task() if options.strategy in CLUSTERS else None
        if member is not None and not member.is_chief:
            with _shared_folder(options) as folder:
                return carry_out_and_report(options, folder)
        from compare.records.run_folder import claimed

        with claimed(options) as folder:
            status = carry_out_and_report(options, folder)
        if status == EXIT_INTERRUPTED:
            again = [argument for argument in given if argument != "--resume"]
            name = [] if options.name else ["--name", folder.name]
            go_on = f"; go on with: {shlex.join([sys.argv[0], *again, *name, '--resume'])}"
            return _fail("interrupted" + ("" if options.check else go_on), status)
        return status
    except RequestError as error:
        return _fail(error, EXIT_REQUEST)
    except KeyboardInterrupt:
        return _fail("interrupted", EXIT_INTERRUPTED)


@contextmanager
def _shared_folder(options: Options) -> Iterator[Path]:
    """Where a member of a cluster on several machines finds its checkpoints again: the chief's folder, if it is known.

    Raises:
        RequestError: when it is to resume a run whose name is not known.
    """
    if options.name is not None:
        yield options.reports / options.name
        return
    if options.resume:
        raise RequestError("--resume in a cluster of your own: give --name, so that every task finds the same folder")
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)


def carry_out_and_report(options: Options, folder: Path) -> int:
    """Carry out a request, with what it says on stdout and stderr; returns the exit status.

    Args:
        options: the request.
        folder: where the results go; a member of a cluster that is not its chief has its checkpoints there only.
    """
    from compare.app.session import carry_out, new_console, take_part

    signals.catch()
    try:
        member = this_task() if options.strategy in CLUSTERS else None
        if member is not None and not member.is_chief:
            take_part(options, folder)
            return 0
        with stderr_to(folder / "tensorflow.log"):
            return carry_out(options, folder, new_console(options)).exit_status
    except RequestError as error:
        return _fail(error, EXIT_REQUEST)
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except NoVerdictError as error:
        return _fail(error, EXIT_NO_VERDICT)
    except Exception as error:
        # A user's trainer raised: the verdict says so, the traceback is in the log.
        return _fail(f"{error} (traceback in {folder}/tensorflow.log)", EXIT_NO_VERDICT)


def _fail(error: object, status: int) -> int:
    print(f"{PREFIX}{' '.join(str(error).split())}", file=sys.stderr)
    return status


@contextmanager
def stderr_to(path: Path) -> Iterator[None]:
    """Send stderr to a file: TensorFlow's start-up noise comes from C++, past ``sys.stderr``."""
    sys.stderr.flush()
    try:
        file = open(path, "ab")  # noqa: SIM115
    except OSError as error:
        raise RequestError(f"{path} cannot be written ({error.strerror}); make room, or the folder writable") from None
    with open(os.dup(2), "w", buffering=1) as real, file as log:
        os.dup2(log.fileno(), 2)
        faulthandler.enable(file=real)  # a crash in C++ still says on the terminal where it happened
        try:
            yield
        finally:
            sys.stderr.flush()
            faulthandler.disable()
            os.dup2(real.fileno(), 2)
