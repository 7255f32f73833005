"""The environments of trainings: what an interpreter has installed, what differs between two, and XLA's flags."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys

from compare.app import processes
from compare.errors import RequestError
from compare.request import keras_of_the_environment

PACKAGES = ("tensorflow", "keras", "numpy")
"""What decides how a script trains."""
LEGACY = "tf-keras"
"""What is ``tf.keras`` in place of Keras 3 where ``TF_USE_LEGACY_KERAS`` asks for Keras 2."""
OLDEST = {"tensorflow": (2, 15), "keras": (2, 15)}
"""The oldest versions whose scripts can be watched."""
OLDEST_OF_3 = (3, 3)
"""The oldest version of Keras 3; Keras 2 is that of TensorFlow 2.15, or tf-keras."""
_ASK = f"""
import json, sys
from importlib.metadata import PackageNotFoundError, version
found = {{"python": ".".join(map(str, sys.version_info[:3]))}}
for name in {(*PACKAGES, LEGACY)}:
    try:
        found[name] = version(name)
    except PackageNotFoundError:
        pass
print(json.dumps(found))
"""
SECONDS = 60


def versions_of(python: str) -> dict[str, str]:
    """The version of Python and of each of ``PACKAGES`` that an interpreter has.

    Raises:
        RequestError: if no script can be watched there.
    """
    try:
        found: dict[str, str] = json.loads(_answer(python))
    except FileNotFoundError:
        raise RequestError(f"--python {python}: there is no such program") from None
    except (OSError, ValueError, subprocess.SubprocessError):
        raise RequestError(f"--python {python}: this does not run as Python 3") from None
    legacy = found.pop(LEGACY, "")
    if keras_of_the_environment() == 2 and (legacy or _numbers(found.get("keras", "3")) >= (3,)):
        found["keras"] = legacy
    if _numbers(found["python"]) < (3, 11):
        raise RequestError(f"--python {python}: it is Python {found['python']}; 3.11 or newer is needed")
    for name, least in OLDEST.items():
        needed = f"{name} {'.'.join(map(str, least))} or newer"
        if found.get(name) == "":
            raise RequestError(f"TF_USE_LEGACY_KERAS asks for {LEGACY}, which {python} lacks; install it there")
        if name not in found:
            raise RequestError(f"--python {python}: {name} is not installed there; {needed} is needed")
        if _numbers(found[name]) < least:
            raise RequestError(f"--python {python}: it has {name} {found[name]}; {needed} is needed")
    if (3,) <= _numbers(found["keras"]) < OLDEST_OF_3:
        raise RequestError(f"--python {python}: it has keras {found['keras']}; of Keras 3, 3.3 or newer is needed")
    return found


def _answer(python: str) -> str:
    """What an interpreter answers; ends it, and all that it has started."""
    command, nowhere = [python, "-I", "-c", _ASK], subprocess.DEVNULL
    with subprocess.Popen(
        command, stdin=nowhere, stdout=subprocess.PIPE, stderr=nowhere, text=True, start_new_session=True
    ) as process:
        try:
            answer, _ = process.communicate(timeout=SECONDS)
            return answer
        finally:
            processes.send(process.pid, processes.KILL)


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".")[:2] if part.isdigit())


FLAGS = ("XLA_FLAGS", "TF_XLA_FLAGS")
"""The environment variables that XLA reads when it first compiles."""
_COMPILE = "import tensorflow as tf\ntf.function(lambda: tf.constant(1.0) + 1.0, jit_compile=True)()"


def refuse_flags() -> None:
    """Refuses flags that XLA does not know: it ends the process with 1 then, the status of a difference."""
    given = [name for name in FLAGS if os.environ.get(name)]
    if not given:
        return
    command, nowhere = [sys.executable, "-P", "-c", _COMPILE], subprocess.DEVNULL
    tried = subprocess.run(command, stdin=nowhere, stdout=nowhere, stderr=subprocess.PIPE, text=True, errors="replace")
    if said := re.search(r"^F\d{4} .*?\] (.*)", tried.stderr, re.MULTILINE):  # a fatal message
        raise RequestError(f"{' and '.join(given)}: TensorFlow ends at once ({said[1]}); change or unset it")
