"""The command line: its subcommands, their help, and what is refused in one line."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from importlib.metadata import version
from importlib.util import find_spec
from itertools import takewhile
from pathlib import Path
from platform import python_version
from typing import Any, NoReturn

from compare import __version__
from compare.app.standard_streams import forgiving
from compare.errors import RequestError
from compare.modes import Scripts, Study, Training
from compare.naming import FORMER, did_you_mean
from compare.option import flag, options_of
from compare.options import MODES, OPTIONS, Options, refusal
from compare.request import GROUPS, Request, Task

INSTALLED = "fit-vs-loop"
"""The name of the installed command."""
WORDS = {mode.word: mode for mode in MODES if mode.word}
"""The subcommands."""
USAGES = {
    "": "[options]",
    "check": "[options]",
    "scripts": "FIT.py LOOP.py [options] [-- ARGUMENTS]",
    "logs": "FIT.csv LOOP.csv [options]",
}
ABOUT = {
    "": "Train one model with model.fit and with a custom loop, and compare every weight\n"
    "after every step. If they differ, say from which step on, and why.",
    "check": "Check in seconds whether a custom loop trains like model.fit, without a full\ntraining.",
    "scripts": "Run two training scripts unedited, or one that trains twice, and compare every\n"
    "step. The first is the reference; to compare more with it, run the command once\n"
    "for each. Warning: the scripts can overwrite files.",
    "logs": "Draw and compare the logs of finished trainings, without weights: CSV files or\n"
    "TensorBoard folders. The first is the reference. Logs whose names differ only in\n"
    "a number are seeds of one training.",
}
EXAMPLES = {
    "": ("--epochs 2", "--experiment my_task.py --trainers fit my_loop.py:MyLoop"),
    "check": ("check --experiment my_task.py --trainers fit my_loop.py:MyLoop",),
    "scripts": ("scripts my_fit.py my_loop.py", "scripts my_fit.py my_loop.py --keep order -- --batch 32"),
    "logs": ("logs fit.csv loop.csv", "logs fit-*.csv loop-*.csv --margin val_loss=1%"),
}
STATUS = "Exit status: 0 identical or alike, 1 different, 2 invalid arguments, 3 no\nverdict, 130 interrupted."
EVERYTHING = "--help-all"
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
        if all(each.endswith(".py") for each in unknown):
            meant = f"; did you mean scripts {' '.join(unknown)}?"
        self.error(f"unrecognized arguments: {' '.join(unknown)}", meant or advice)

    def error(self, message: str, advice: str = "") -> NoReturn:
        raise RequestError(f"{shortened(message)}{advice} (see --help)")


def shortened(text: str) -> str:
    """What was given, as it is repeated in a message."""
    return text if len(text) <= LONGEST else f"{text[:LONGEST]} …"


def program() -> str:
    """The command's name, as the user called it."""
    return INSTALLED if Path(sys.argv[0]).stem == INSTALLED else "compare.py"


def parser(mode: type[Request] = Training, *, everything: bool = False, as_flag: bool = False) -> OneLineParser:
    """The parser of one mode, made from the declarations of its options.

    Args:
        everything: whether its help lists what few people need.
        as_flag: whether the mode was asked for by an option, as by ``--scripts``, and not by a subcommand.
    """
    called = program() if program() == INSTALLED else f"python {sys.argv[0]}"
    escaped = called.replace("%", "%%")
    usages = [" ".join(filter(None, (escaped, word, USAGES[word]))) for word in ([mode.word] if mode.word else USAGES)]
    examples = "".join(f"\n  {called} {example}" for example in EXAMPLES[mode.word])
    made = _Parser(
        prog=escaped,
        allow_abbrev=False,
        add_help=False,
        usage="\n       ".join(usages),
        description=ABOUT[mode.word],
        epilog=f"examples:{examples}\n\n{STATUS}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    made.mode = mode
    groups = {title: made.add_argument_group(title) for title in GROUPS} if everything else {}
    made.add_argument("-h", "--help", action="help", help="show the common options, and exit")
    made.add_argument(EVERYTHING, action="help", help="show all options, and exit")
    made.add_argument("--version", action=_Version, help="show the versions of this package and of TensorFlow")
    own = {*options_of(mode), *(options_of(Study) if mode is Training else ())}
    for name, option in OPTIONS.items():
        unlisted = name in (mode.word, mode.ignored)
        if option.python_only or not (name in own or unlisted):
            continue
        if unlisted and not as_flag:
            if option.several:
                made.add_argument(name, metavar=option.metavar[0], nargs="+", help=argparse.SUPPRESS)  # type: ignore[index]
            continue
        rare = option.rare and issubclass(mode, Task) and not everything
        text = (option.full_help() if everything else option.help).removeprefix(f"with {mode.word}, ")
        option.add_to(groups.get(option.group, made), name, argparse.SUPPRESS if unlisted or rare else text)
    return made


class _Parser(OneLineParser):
    """Refuses an option of another mode by the name of its own."""

    mode: type[Request]

    def refuse_unknown(self, unknown: Sequence[str], advice: str = "") -> NoReturn:
        for each in unknown:
            name = each.partition("=")[0].removeprefix("--").replace("-", "_")
            if each.startswith("--") and name in OPTIONS:
                raise RequestError(refusal(name, self.mode))
        if unknown[0] in WORDS:
            self.error(f"{unknown[0]} after options", "; a subcommand comes first")
        own = "; what the scripts themselves take comes after --"
        super().refuse_unknown(unknown, own if self.mode is Scripts else advice)


class _Version(argparse.Action):
    """Prints versions, which are looked up only then."""

    def __init__(self, option_strings: Sequence[str], dest: str, **more: Any) -> None:
        super().__init__(option_strings, argparse.SUPPRESS, nargs=0, default=argparse.SUPPRESS, **more)

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        installed = {name: version(name.lower()) for name in ("TensorFlow", "Keras") if find_spec(name.lower())}
        used = "".join(f", {name} {number}" for name, number in {**installed, "Python": python_version()}.items())
        print(f"{INSTALLED} {__version__}{used}", file=forgiving(sys.stdout))
        parser.exit()


def parsed(given: Sequence[str]) -> Request:
    """The request of a command line; what follows ``--`` are the arguments of scripts."""
    follows = "--" in given
    end = given.index("--") if follows else len(given)
    own, rest = [_current(each) for each in given[:end]], list(given[end + 1 :])
    flagged = next((word for word in WORDS if any(each.partition("=")[0] == flag(word) for each in own)), "")
    first = own[0] if own and not own[0].startswith("-") else ""
    if first in WORDS:
        del own[0]
    elif first and not flagged:
        raise RequestError(_no_subcommand(own))
    word = first if first in WORDS else flagged
    if follows and word != "scripts":
        raise RequestError("-- begins the arguments of scripts: give two scripts before it, or leave it out")
    parser_of_mode = parser(WORDS.get(word, Training), everything=EVERYTHING in own, as_flag=word == flagged)
    values = vars(parser_of_mode.parse_args(own))
    chosen = {"check": True} if word == "check" else {}
    return Options(**values | chosen, script_arguments=rest).request


def _current(argument: str) -> str:
    """An argument, with the name that its option has now; as a keyword of Python's, it has underscores."""
    name, equals, value = argument.partition("=")
    if name.startswith("--") and name[2:] in OPTIONS:
        argument = f"{flag(name[2:])}{equals}{value}"
    return next((f"{flag(now)}{equals}{value}" for former, now in FORMER.items() if name == flag(former)), argument)


def _no_subcommand(own: Sequence[str]) -> str:
    """What is wrong with a first argument that is no subcommand, and what was probably meant."""
    files = [*takewhile(lambda each: not each.startswith("-"), own)]
    meant = did_you_mean(own[0], WORDS)
    for word, endings in (("scripts", (".py", ".ipynb")), ("logs", (".csv",))):
        if all(each.endswith(endings) for each in files):
            experiment = f"--experiment {files[0]}, or " if word == "scripts" and len(files) == 1 else ""
            meant = f"; did you mean {experiment}{word} {' '.join(files)}?"
    return f"{shortened(own[0])}: no such subcommand; there are {', '.join(WORDS)}{meant} (see --help)"
