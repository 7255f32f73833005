"""Names of experiments, trainers, files and folders, as they are given and shown."""

from __future__ import annotations

import ast
import difflib
import hashlib
import os
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote

from compare.errors import RequestError

LONGEST_FILE_NAME = 150
"""Maximum length of ``file_name``: file systems allow 255 bytes, and endings and numbers follow."""
MADE_ALIKE = ("seeds", "weights", "order")
"""What is made alike in two scripts, unless ``--keep`` keeps it."""
FORMER = {"against": "baseline", "own": "keep", "truth": "float64_reference"}
"""The names that options had, which go on working, and those that they have."""


def label(thing: Any, usual: str | None = None) -> str:
    """What an experiment or trainer is called: the text it was asked for by, or its own name.

    Args:
        usual: of a file, the name in it that is left out, as "experiment"; None for all of them.
    """
    if isinstance(thing, str):
        source, attribute = source_and_attribute(thing)
        if not is_file(thing):
            return thing
        return Path(source).stem + f":{attribute}" * (usual is not None and attribute not in ("", usual))
    return str(getattr(thing, "name", type(thing).__name__))


def with_folders(names: Sequence[str], scripts: Sequence[str]) -> list[str]:
    """The names of two scripts, the second with its folder if that is another one, as of a hand-in."""
    paths = [Path(each) for each in scripts]
    apart = len(paths) == len(names) == 2 and paths[0].parent != paths[1].parent and paths[1].parent.name
    return [names[0], f"{apart}/{names[1]}"] if apart else list(names)


def is_file(wanted: str) -> bool:
    """Whether a name means a Python file, with or without an attribute."""
    return source_and_attribute(wanted)[0].endswith(".py")


def refuse_missing(path: str | Path) -> None:
    """Raises a RequestError if a Python file is not there, or cannot be read."""
    if not os.path.isfile(path):  # of a name that is too long, too
        if os.path.exists(path):
            kind = "a folder: give a file in it" if os.path.isdir(path) else "not a regular file"
            raise RequestError(f"{shown_path(path)} is {kind}")
        if os.path.islink(path):
            raise RequestError(f"{shown_path(path)}: it is a link that leads to no file")
        try:
            os.stat(path)
        except PermissionError as error:
            raise RequestError(f"{shown_path(path)}: cannot be read ({error.strerror})") from None
        except (OSError, ValueError):  # such as a name that is too long
            pass
        beside: list[str] = []
        stem, suffix = os.path.splitext(os.path.basename(path))
        with suppress(OSError, ValueError):
            names = map(os.path.splitext, os.listdir(os.path.dirname(path) or "."))
            beside = [name for name, kind in names if kind == suffix]
        meant = _most_similar(stem, beside)
        advice = f"; did you mean {shown_path(meant + suffix)}?" * bool(meant)
        raise RequestError(f"{shown_path(path)}: there is no such file{advice}")
    if not os.access(path, os.R_OK):
        raise RequestError(f"{shown_path(path)}: cannot be read (Permission denied)")


def source_and_attribute(wanted: str) -> tuple[str, str]:
    """``SOURCE:ATTR`` in its two parts; the second is empty where there is none."""
    source, colon, attribute = wanted.rpartition(":")
    return (source, attribute) if colon and attribute and not wanted.endswith(".py") else (wanted, "")


MAKE_NAMES = re.compile(r"import \*|\b(?:exec|globals|vars|setattr|__getattr__|__dict__)\b")
"""What may give a module a name that is not written in its file."""


def refuse_unwritten(file: str, attribute: str) -> None:
    """Raises a RequestError if a Python file, which has not been run, has only a similar name for an attribute."""
    try:
        text = Path(file).read_text("utf-8")
        if not attribute or re.search(rf"\b{re.escape(attribute)}\b", text) or MAKE_NAMES.search(text):
            return
        nodes = list(ast.walk(ast.parse(text)))
    except (OSError, ValueError, SyntaxError):  # which is said when it is run
        return
    known = [node.id if isinstance(node, ast.Name) else node.name for node in nodes
             if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.Name)]  # fmt: skip
    if meant := did_you_mean(attribute, known):
        raise RequestError(f"{shown_path(file)} has no {attribute!r}{meant}")


def unknown(given: str, known: Iterable[str], more: str = "") -> str:
    """What is wrong with a name that is not known, for error messages: all that there are, and a similar one."""
    return f"unknown; there are {', '.join(known)}{more}{did_you_mean(given, known)}"


def did_you_mean(given: Sequence[str] | str, known: Iterable[str]) -> str:
    """``; did you mean …?`` with the name that is most similar to each given one; empty if none is similar."""
    known, words = list(known), [given] if isinstance(given, str) else given
    meant = dict.fromkeys(name for word in words if (name := _most_similar(word, known)))
    return f"; did you mean {some(list(meant))}?" if meant else ""


def _most_similar(given: str, known: Iterable[str]) -> str:
    names = {name.strip("-").lower(): name for name in known if len(name) > 2}
    word = given.strip("-").lower()
    close = [name for name in names if len(word) > 2 and name.startswith(word)][:1]
    close = close or difflib.get_close_matches(word, names, n=1)
    close = close or [name for name in names if len(word) > 2 and word in name][:1]
    return names[close[0]] if close else ""


def renamed(options: Mapping[str, Any]) -> dict[str, Any]:
    """Options by the names that they have now."""
    for former, name in FORMER.items():
        if former in options and name in options:
            raise RequestError(f"{former} is the former name of {name}: give one of them")
    return {FORMER.get(name, name): value for name, value in options.items()}


def absolute(path: Path) -> Path:
    """The path from the root, without ``..``; as it is if the working directory has been removed."""
    try:
        return path.resolve() if ".." in path.parts else path.absolute()
    except OSError:
        return path


def shown_path(path: object) -> str:
    """A path in a message, on one line: from the working directory if it is in there; anything else as it is."""
    shown = str(path)
    with suppress(OSError, ValueError):
        here = Path.cwd()
        if here != here.parent:
            shown = str(Path(shown).relative_to(here))
    return printable(shown).replace("\n", "\\n").replace("\t", "\\t") or "''"


def given_path(path: str | Path) -> Path:
    """The path that was given; an empty one, as of a variable that is not set, would mean the current folder."""
    if not str(path):
        raise RequestError("'': give the name of a file or folder")
    return Path(path)


def refuse_unreadable(folder: Path) -> None:
    """Refuses a folder that may not be looked into, also since one above it may not."""
    try:
        os.stat(os.path.join(folder, "."))
    except PermissionError as error:
        raise RequestError(f"{shown_path(folder)}: cannot be read ({error.strerror})") from None
    except (OSError, ValueError):  # it is not there, or no folder
        return


def refuse_output(option: str, path: Path) -> None:
    """Refuses a file that a command would write if it is there, as a link too, or cannot be made."""
    try:
        open(path, "x").close()
        path.unlink()
    except FileExistsError:
        raise RequestError(f"{option} {path}: it exists and is not overwritten; give another name") from None
    except (OSError, ValueError) as error:
        if isinstance(error, FileNotFoundError) and not os.path.exists(path.parent):
            why = f"there is no folder {path.parent}; make it, or give another name"
            raise RequestError(f"{option} {path}: {why}") from None
        reason = getattr(error, "strerror", None) or error
        raise RequestError(f"{option} {path}: it cannot be written ({reason}); give another name or folder") from None


INDEX, TOGETHER = PAGES_OF_RUNS = "index.html", "side-by-side.html"
"""The pages beside the folders of runs: of all runs, and of some of them."""


def is_folder_name(name: Any) -> bool:
    """Whether a name is a plain folder name, which every file system takes, and not that of a page beside runs."""
    plain = isinstance(name, str) and name not in ("", ".", "..", *PAGES_OF_RUNS) and not any(c in name for c in "/\\")
    return plain and name.isprintable() and bool(name.strip()) and len(name.encode()) < 256  # what file systems allow


class Code(str):
    """A line of code among sentences: it is shown as it is, and not broken between words."""

    __slots__ = ()


def printable(text: str) -> str:
    """The text with control characters, such as those that move a terminal's cursor, as escapes: ``\\x1b``.

    Line ends and tabs remain.
    """
    return "".join(c if c.isprintable() or c in "\n\t" else c.encode("unicode_escape").decode() for c in text)


def plain(name: str) -> str:
    """The name with dashes in place of characters that are special in a path or on a command line."""
    return "".join(c if c.isalnum() or c in "-_." else "-" for c in name)


def distinct(name: str, taken: Collection[str]) -> str:
    """A name that is not among those taken: the name itself, or else with the first number that makes it another."""
    names = [name, *(f"{name}-{number}" for number in range(2, len(taken) + 2))]
    return next(each for each in names if each not in taken)


def file_name(name: str, safe: str = "") -> str:
    """A trainer's name as the name of a file or folder, different for every trainer."""
    quoted = quote(name, safe=safe)
    if set(name) == {"."}:  # which would be the folder itself, or the one above
        quoted = quoted.replace(".", "%2E")
    if len(quoted) <= LONGEST_FILE_NAME:
        return quoted
    return quoted[: LONGEST_FILE_NAME - 16] + hashlib.sha256(name.encode()).hexdigest()[:16]


def log_name(side: str) -> str:
    """The name of the file with what a script prints."""
    return f"{file_name(side, safe=' ')}.log"


def margin(text: str) -> tuple[str, float, bool]:
    """``METRIC=VALUE`` or ``METRIC=VALUE%``: the metric, the value or fraction, and whether it is a fraction."""
    metric, equals, value = str(text).rpartition("=")
    relative = value.endswith("%")
    try:
        number = float(value.removesuffix("%")) / (100 if relative else 1)
    except ValueError:
        number = 0.0
    if not (metric and equals and 0 < number < float("inf")):
        raise RequestError(
            f"--margin {text!r}: give METRIC=VALUE or METRIC=VALUE%, a finite value above 0, such as val_accuracy=0.01"
        )
    return metric, number, relative


def refuse_margins(texts: Iterable[str], trainer: str, reported: Collection[str]) -> None:
    """Refuses margins for metrics that the reference does not report."""
    for text in texts:
        if (metric := margin(text)[0]) not in reported:
            raise RequestError(f"--margin {text}: {trainer} reports no {metric}, but {', '.join(reported)}")


def is_utf8(text: str) -> bool:
    """Whether a name, as Python reads it from the system, is UTF-8 there."""
    return not any("\udc80" <= each <= "\udcff" for each in text)


def listed(names: Sequence[str]) -> str:
    """Names as in a sentence: a; a and b; a, b and c."""
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 2 else names)


def some(names: Sequence[str]) -> str:
    """The first three names, and how many more there are."""
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
