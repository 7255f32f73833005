"""When an option is refused, and the reasons that several options share."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from compare.options import Options

SITUATIONS: dict[str, Callable[[Options], bool]] = {
    "check": lambda options: options.check,
    "single seed": lambda options: options.seeds == 1 and not options.logs,
    "study": lambda options: options.seeds > 1,
    "study in processes": lambda options: options.seeds > 1 and not options.spec.several_processes,
    "one process": lambda options: not options.spec.several_processes,
    "several processes": lambda options: options.spec.several_processes,
    "parameter servers": lambda options: options.spec.parameter_servers,
    "no parameter servers": lambda options: not options.spec.parameter_servers,
    "no scripts": lambda options: not options.scripts,
}
"""When an option may be refused, as declared with it."""

FULL_TRAINING = {"check": "is for a full training, and --check is none: leave one of them out"}
STEP_BY_STEP = FULL_TRAINING | {
    "study": "compares single steps, and a study its results: leave out --seeds {seeds}, or this",
    "several processes": "cannot be combined with --strategy {strategy}, whose steps are in other processes",
}
STUDY = {"single seed": "is for a study of several seeds: add --seeds N"}
OWN_PROCESSES = {
    "several processes": "cannot be combined with --strategy {strategy}, which starts its own processes for every run: "
    "leave out --jobs and --backend"
}
SINGLE_STEPS = {
    "parameter servers": "does not work with parameter servers: their coordinator sends out single steps; leave it out",
    "check": "is for a full training; --check looks at single steps: leave one of them out",
}
SCRIPTS = {"no scripts": "is for --scripts only: leave it out"}
NO_CHECKPOINTS = {"study in processes": "has no effect in a study, whose runs are not checkpointed: leave it out"}
