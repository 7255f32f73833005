"""Reads the user's code around a line that was seen: which line makes the mistake, or the number that is reported."""

from __future__ import annotations

import ast
import linecache
import re
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path

from compare.check.causes import Cause
from compare.verdict.findings import Source
from compare.watch.cells import codes_of

Scope = ast.Module | ast.FunctionDef | ast.AsyncFunctionDef
"""A function, or all of the code."""
Line = tuple[str, int, str]
"""A file, the number of a line, and its text."""
SUMMARIES = ("float", "mean", "sum", "reduce_mean", "reduce_sum", "average", "round", "fsum")
"""Functions whose value is made of all that they are given."""
OF_NN = r"nn\.(?!compute_average_loss|scale_regularization_loss)"
"""How a function of ``tf.nn`` begins, but for those that are given losses."""
ADDING = ("append", "assign_add", "extend")
"""Methods that add to what they belong to."""


@dataclass(frozen=True)
class UserCode:
    """The code of a file, or of a notebook's cell; its tree is empty if it cannot be read."""

    lines: list[str]
    tree: ast.Module

    @classmethod
    def of(cls, file: str) -> UserCode:
        """The code of a file as messages cite it."""
        lines, tree = _lines_of(file), ast.Module([], [])
        with suppress(SyntaxError, ValueError, RecursionError):
            tree = ast.parse("".join(lines))
            ast.unparse(tree)  # what is nested too deeply for this cannot be looked at
        return cls(lines, tree)

    @property
    def functions(self) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
        return [each for each in ast.walk(self.tree) if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)]

    def around(self, line: int) -> Scope:
        """The innermost function around a line; all of the code, if it is in none."""
        inside = (each for each in self.functions[::-1] if each.lineno <= line <= (each.end_lineno or 0))
        return next(inside, self.tree)

    def text(self, line: int) -> str:
        return self.lines[line - 1].strip()

    def moved(self, source: Source, line: int) -> Source:
        """Another line in place of one."""
        return source if line == source.line else replace(source, line=line, text=self.text(line))

    def nearer(self, source: Source, pattern: str) -> Source:
        """The only line with a statement of a kind in the function around another, else in all of the code; else it."""
        found = set[int]()
        for scope in (self.around(source.line), self.tree):
            simple = (each for each in ast.walk(scope) if isinstance(each, ast.stmt) and not hasattr(each, "body"))
            found = found or {each.lineno for each in simple if re.search(pattern, ast.unparse(each))}
        return self.moved(source, found.pop()) if len(found) == 1 else source


def _lines_of(file: str) -> list[str]:
    """The lines of a file, or of a notebook's cell as it is cited, without its magics."""
    cell = re.fullmatch(r"(.+\.ipynb), cell (\d+)", file)
    if cell is None:
        return linecache.getlines(file)
    with suppress(OSError, ValueError, KeyError, IndexError, TypeError):
        code = codes_of(Path(cell[1]))[int(cell[2]) - 1]
        return [re.sub(r"^\s*[%!].*", "", line) for line in code.splitlines(keepends=True)]
    return []


def made_at(code: UserCode, source: Source, cause: Cause, remedy: str) -> Source:
    """The statement that makes a mistake, if the code around the line where it was seen has but one of its kind."""
    if made := re.match(r"loss_object = [\w.]*?(\w+)\(\.\.\., ", remedy):
        source = code.nearer(source, rf"\b{made[1]}\(")
    # Functions of tf.nn have no object that is made elsewhere.
    of_function = re.search(rf"tf\.{OF_NN}", source.text)
    of_call = remedy.startswith("loss = loss_object(")
    if cause.made_in and not source.instead and not of_function and not of_call:
        source = code.nearer(source, cause.made_in)
    return source


def line_of_loss(code: UserCode, source: Source, cause: Cause, remedy: str) -> Source:
    """In place of the line that takes the gradient of a loss, as an eager step shows it, the one that gives the loss.

    That is the last one, or the one before where that only adds the model's own losses; or, if what is made of the
    examples' losses does not matter, the call of the loss function. Or else the line that makes the mistake, in a known
    way, with what the loss function gives; or that makes the whole loss of what functions of the file give.
    """
    taken, found = re.search(r"\.gradient\((\w+),", source.text), source.line
    if taken:
        found, _ = _given_before(code, found, taken[1], cause)
    source = code.moved(source, found)
    if cause.knows(source.text) or not cause.of_whole_loss:
        return source
    if not (later := _later(code, found, cause)):
        return code.moved(source, found if taken else _where_called(code, found, cause) or found)
    usual = remedy in (cause.remedy, *cause.remedies.values())
    return replace(code.moved(source, later), instead=cause.instead_of(code.text(later)) if usual else "")


def _given_before(code: UserCode, line: int, name: str, cause: Cause) -> tuple[int, ast.expr | None]:
    """The line before another that gives a loss of this name, and what it gives."""
    given: dict[str, list[tuple[int, ast.expr]]] = {}
    for each in ast.walk(code.around(line)):
        if isinstance(each, ast.Assign | ast.AugAssign):
            for target in each.targets if isinstance(each, ast.Assign) else [each.target]:
                given.setdefault(ast.unparse(target), []).append((each.lineno, each.value))
    wanted, value = {name}, None
    while before := [each for name in wanted for each in given.get(name, ()) if each[0] < line]:
        line, value = max(before, key=lambda each: each[0])
        parts, penalized = list(ast.walk(value)), ".losses" in ast.unparse(value)
        calls = any(isinstance(each, ast.Call) for each in parts)
        if (not penalized and (calls or cause.of_whole_loss)) or cause.of_penalty:
            break
        wanted = _names_in(value)
    return line, value


def _where_called(code: UserCode, line: int, cause: Cause) -> int:
    """The line that makes the whole loss of more than the function around another one gives; 0 if there is none."""
    calls = [each for each in ast.walk(code.tree) if isinstance(each, ast.Call) and each.args]
    taken = [each for each in calls if isinstance(each.func, ast.Attribute) and each.func.attr == "gradient"]
    scope = code.around(line)
    if len(taken) != 1 or isinstance(scope, ast.Module) or code.around(taken[0].lineno) is scope:
        return 0
    found, value = _given_before(code, taken[0].lineno, ast.unparse(taken[0].args[0]), cause)
    return found if isinstance(value, ast.BinOp) or (value and cause.knows(code.text(found))) else 0


def _later(code: UserCode, line: int, cause: Cause) -> int:
    """The first line that makes a mistake, in a known way, with what another gives; 0 if there is none."""
    given = (each for each in ast.walk(code.around(line)) if isinstance(each, ast.Assign | ast.AugAssign | ast.Return))
    names = set[str]()
    for each in sorted(given, key=lambda each: each.lineno):
        if each.lineno > line and names & _names_in(each.value) and cause.knows(code.text(each.lineno)):
            return each.lineno
        if each.lineno == line or (each.lineno > line and names & _names_in(each.value)):
            targets = each.targets if isinstance(each, ast.Assign) else [getattr(each, "target", None)]
            names |= {target.id for target in targets if isinstance(target, ast.Name)}
    return 0


def _names_in(value: ast.expr | None) -> set[str]:
    return {each.id for each in ast.walk(value or ast.Constant(0)) if isinstance(each, ast.Name)}


def line_that_makes(line: Line | None, metrics: Iterable[str]) -> Line | None:
    """The line, as file, number and text, that adds up one of some metrics which a line reports, or has a metric do it.

    It is that line itself where no other is known.
    """
    if line is None:
        return None
    file, number, text = line
    code = UserCode.of(file)
    if not 0 < number <= len(code.lines) or code.text(number) != text:
        return line
    scope = code.around(number)
    try:
        calls = (each for each in ast.walk(scope) if isinstance(each, ast.Call))
        call = next((each for each in calls if each.lineno <= number <= (each.end_lineno or 0)), None)
        reported = [value for name, value in _given_by_name(call) if name in set(metrics)] if call else []
        found = next(filter(None, (_made_in(code, scope, each, number) for each in reported)), 0)
    except RecursionError:  # functions may return what each other returns
        return line
    return (file, found, code.text(found)) if found else line


def _given_by_name(call: ast.Call) -> Iterator[tuple[str, ast.expr]]:
    """The values that a call is given by name, as arguments or in dictionaries."""
    for each in ast.walk(call):
        if isinstance(each, ast.keyword) and each.arg:
            yield each.arg, each.value
        for key, value in zip(each.keys, each.values, strict=True) if isinstance(each, ast.Dict) else ():
            if isinstance(key, ast.Constant):
                yield str(key.value), value


def _made_in(code: UserCode, scope: Scope, value: ast.expr, before: int, item: int | None = None) -> int:
    """The last line before another that makes what a value, or an item of it, is made of; 0 if there is none."""
    if isinstance(value, ast.Tuple) and item is not None:
        return _made_in(code, scope, value.elts[item], before) if item < len(value.elts) else 0
    for part in _parts(value):
        found = 0
        match part:
            case ast.Name(id=name):
                adding = [each for each in ast.walk(scope) if isinstance(each, ast.stmt) and _adds_to(each, name)]
                found = max((each.lineno for each in adding if each.lineno < before), default=0)
                given = [each for each in _given(scope, name) if each[0] < before]
                if not found and given:
                    line, other, its_item = max(given, key=lambda each: each[0])
                    found = _made_in(code, scope, other, line, its_item)
            case ast.Call(func=ast.Attribute(), lineno=found):  # of a metric
                pass
            case ast.Call(func=ast.Name(id=name)):
                own = next((each for each in code.functions if each.name == name and each is not scope), None)
                returned = [each.value for each in ast.walk(own) if isinstance(each, ast.Return)] if own else []
                found = _made_in(code, own, returned[-1], sys.maxsize, item) if own and returned and returned[-1] else 0
        if found:
            return found
    return 0


def _parts(value: ast.expr) -> Iterator[ast.expr]:
    """The names, and the calls of functions of the file and of metrics, that a value is made of, in order."""
    match value:
        case ast.Name() | ast.Call(func=ast.Attribute(attr="result")):
            yield value
        case ast.Call(func=ast.Attribute(value=owner, attr=name), args=given):  # such as total.numpy()
            yield from chain.from_iterable(map(_parts, [owner, *(given if name in SUMMARIES else ())]))
        case ast.Call(func=ast.Name(id=name), args=given) if name in SUMMARIES:
            yield from chain.from_iterable(map(_parts, given))
        case ast.Call():
            yield value
        case ast.BinOp(left=left, right=right):
            yield from chain(_parts(left), _parts(right))
        case ast.GeneratorExp(generators=[listed, *_]) | ast.ListComp(generators=[listed, *_]):
            yield from _parts(listed.iter)


def _adds_to(statement: ast.stmt, name: str) -> bool:
    """Whether a statement adds to what has a name, more than one to a count."""
    match statement:
        case ast.AugAssign(target=ast.Name(id=target), op=ast.Add(), value=added):
            return target == name and not isinstance(added, ast.Constant)
        case ast.Assign(targets=[ast.Name(id=target)], value=ast.BinOp(left=left, right=right)):
            return target == name and any(isinstance(each, ast.Name) and each.id == name for each in (left, right))
        case ast.Expr(value=ast.Call(func=ast.Attribute(value=ast.Name(id=target), attr=method))):
            return target == name and method in ADDING
    return False


def _given(scope: Scope, name: str) -> Iterator[tuple[int, ast.expr, int | None]]:
    """The lines that give a name a value, the values, and the number of the item where several names are given one."""
    for statement in ast.walk(scope):
        match statement:
            case ast.Assign(targets=[ast.Name(id=target)], value=value, lineno=line) if target == name:
                yield line, value, None
            case ast.Assign(targets=[ast.Tuple(elts=items)], value=value, lineno=line):
                names = [each.id if isinstance(each, ast.Name) else "" for each in items]
                if name in names:
                    yield line, value, names.index(name)
