"""Finds the line that makes a number which another line of the file reports: adds it up, or asks a metric for it."""

from __future__ import annotations

import ast
import linecache
import sys
from collections.abc import Iterable, Iterator
from itertools import chain

Line = tuple[str, int, str]
SUMMARIES = ("float", "mean", "sum", "reduce_mean", "reduce_sum", "average", "round", "fsum")
"""Functions whose value is made of all that they are given."""
ADDING = ("append", "assign_add", "extend")
"""Methods that add to what they belong to."""
Scope = ast.Module | ast.FunctionDef | ast.AsyncFunctionDef


def line_that_makes(line: Line | None, metrics: Iterable[str]) -> Line | None:
    """The line, as file, number and text, that adds up one of some metrics which a line reports, or has a metric do it.

    It is that line itself where no other is known.
    """
    if line is None:
        return None
    file, number, text = line
    lines = linecache.getlines(file)
    if not 0 < number <= len(lines) or lines[number - 1].strip() != text:
        return line
    try:
        tree = ast.parse("".join(lines))
        around = [each for each in _functions(tree) if each.lineno <= number <= (each.end_lineno or 0)]
        scope: Scope = around[-1] if around else tree
        calls = (each for each in ast.walk(scope) if isinstance(each, ast.Call))
        call = next((each for each in calls if each.lineno <= number <= (each.end_lineno or 0)), None)
        reported = [value for name, value in _named(call) if name in set(metrics)] if call else []
        found = next(filter(None, (_made(tree, scope, each, number) for each in reported)), 0)
    except (SyntaxError, ValueError, RecursionError):  # functions may return what each other returns
        return line
    return (file, found, lines[found - 1].strip()) if found else line


def _functions(tree: ast.AST) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
    return [each for each in ast.walk(tree) if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)]


def _named(call: ast.Call) -> Iterator[tuple[str, ast.expr]]:
    """The values that a call is given by name, as arguments or in dictionaries."""
    for each in ast.walk(call):
        if isinstance(each, ast.keyword) and each.arg:
            yield each.arg, each.value
        for key, value in zip(each.keys, each.values, strict=True) if isinstance(each, ast.Dict) else ():
            if isinstance(key, ast.Constant):
                yield str(key.value), value


def _made(tree: ast.Module, scope: Scope, value: ast.expr, before: int, item: int | None = None) -> int:
    """The last line before another that makes what a value, or an item of it, is made of; 0 if there is none."""
    if isinstance(value, ast.Tuple) and item is not None:
        return _made(tree, scope, value.elts[item], before) if item < len(value.elts) else 0
    for part in _parts(value):
        found = 0
        match part:
            case ast.Name(id=name):
                adding = [each for each in ast.walk(scope) if isinstance(each, ast.stmt) and _adds_to(each, name)]
                found = max((each.lineno for each in adding if each.lineno < before), default=0)
                given = [each for each in _given(scope, name) if each[0] < before]
                if not found and given:
                    line, other, its_item = max(given, key=lambda each: each[0])
                    found = _made(tree, scope, other, line, its_item)
            case ast.Call(func=ast.Attribute(), lineno=found):  # of a metric
                pass
            case ast.Call(func=ast.Name(id=name)):
                own = next((each for each in _functions(tree) if each.name == name and each is not scope), None)
                returned = [each.value for each in ast.walk(own) if isinstance(each, ast.Return)] if own else []
                found = _made(tree, own, returned[-1], sys.maxsize, item) if own and returned and returned[-1] else 0
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
