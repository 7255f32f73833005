"""The command: installed it is ``fit-vs-loop``, in a copy of the repository ``scripts/compare.py``."""

import os
import signal
import sys
from contextlib import suppress
from importlib import import_module
from pathlib import Path

LEAST_MEMORY = 1 << 30
"""Bytes of address space. With less, libraries in C end the process by any status; training needs more."""


def command(function: str = "compare.app.cli:command") -> int:
    """Carry out the command line, with the package's folder first on the path; returns the exit status."""
    here = Path(__file__).resolve().parent  # installed, the package is beside this file, else above scripts/
    sys.path[0] = str(here if (here / "compare").is_dir() else here.parent)
    program = Path(sys.argv[0]).name
    if sys.version_info < (3, 11):  # noqa: UP036 (whatever python3 may be)
        print(f"{program}: {sys.executable} is Python {sys.version.split()[0]}; use 3.11 or newer", file=sys.stderr)
        return 2
    with suppress(ImportError):  # elsewhere than on Unix
        resource = import_module("resource")
        limit, _ = resource.getrlimit(resource.RLIMIT_AS)
        if resource.RLIM_INFINITY != limit < LEAST_MEMORY:
            print(f"{program}: too little memory: allow at least a gigabyte (ulimit -v)", file=sys.stderr)
            return 2
    before = signal.signal(signal.SIGINT, lambda *_: os._exit(130))  # an exception may be lost in an import
    try:
        module, _, name = function.partition(":")
        main = getattr(import_module(module), name)
    except BaseException as error:  # even SystemExit: whatever else has the name of a module of Python's
        what, place = " ".join(f"{type(error).__name__}: {error}".split()), error.__traceback__
        while place and place.tb_next:
            place = place.tb_next
        if place and not place.tb_frame.f_code.co_filename.startswith("<"):
            what += f", in {place.tb_frame.f_code.co_filename}"
        where = "if PYTHONPATH leads to a file with the name of one of Python's own modules, rename that"
        if isinstance(error, ModuleNotFoundError):
            where = (
                f"{sys.executable} lacks packages: use the Python of the environment in which this project is installed"
            )
        print(f"{program}: it cannot be imported ({what}); {where}", file=sys.stderr)
        return 2
    signal.signal(signal.SIGINT, before)
    status: int = main()
    return status
