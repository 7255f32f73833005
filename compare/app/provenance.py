"""Where a run comes from: the request, the code and the machine; imports no TensorFlow."""

from __future__ import annotations

import hashlib
import os
import platform
import sys
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from compare import __version__
from compare.naming import is_file, source_and_attribute
from compare.options import Options
from compare.records.run_json import now


def provenance(options: Options, trainers: Sequence[str]) -> dict[str, Any]:
    """Values for ``RunJson`` that are known before anything is loaded."""
    packages = {package: version(package) for package in ("tensorflow", "keras", "numpy")}
    return {
        "command": [Path(sys.argv[0]).name, *sys.argv[1:]],
        "options": options.as_json(),
        "trainers": list(trainers),
        "versions": {"python": platform.python_version(), **packages, "fit-vs-loop": __version__},
        "machine": {"platform": platform.platform(), "processors": os.cpu_count()},
        "started": now(),
        "code": code(options),
    }


def code(options: Options) -> dict[str, str]:
    """SHA-256 digests of the code that runs: this package and each file that the options name."""
    package = hashlib.sha256()
    for path in sorted(Path(__file__).parents[1].rglob("*.py")):
        package.update(path.read_bytes())
    digests = {"compare": package.hexdigest()}
    for wanted, located in options.named_files.items():
        if (source := _source(located)) is not None and source.is_file():  # a pipe would be waited for
            try:
                digests[wanted] = hashlib.sha256(source.read_bytes()).hexdigest()
            except OSError:
                continue  # loading the file reports the error
    return digests


def _source(wanted: str) -> Path | None:
    """The file of ``FILE.py[:ATTR]``, or of ``package.module:ATTR`` if that module is imported; else None."""
    source, attribute = source_and_attribute(wanted)
    if is_file(wanted):
        return Path(source)
    path = getattr(sys.modules.get(source), "__file__", None) if attribute else None
    return Path(path) if path else None
