"""Finds the line that adds up, in Python, a number that a line of the same file reports."""

from __future__ import annotations

import ast
import linecache
import sys
from collections.abc import Iterable, Iterator

Line = tuple[str, int, str]
SUMMARIES = ("float", "mean", "sum", "reduce_mean", "reduce_sum", "average", "round", "fsum")
"""Functions whose value is made of all that they are given."""
ADDING = ("append", "assign_add", "extend")
"""Methods that add to what they belong to."""
Scope = ast.Module | ast.FunctionDef | ast.AsyncFunctionDef


def line_that_sums(line: Line | None, metrics: Iterable[str]) -> Line | None:
    """The line, as file, number and text, that adds up one of some metrics which a line reports; else that line."""
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
        found = next(filter(None, (_sum(tree, scope, each, number) for each in reported)), 0)
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


def _sum(tree: ast.Module, scope: Scope, value: ast.expr, before: int, item: int | None = None) -> int:
    """The last line before another that adds to what a value, or an item of it, is made of; 0 if there is none."""
    if isinstance(value, ast.Tuple) and item is not None:
        return _sum(tree, scope, value.elts[item], before) if item < len(value.elts) else 0
    for part in _parts(value):
        found = 0
        if isinstance(part, ast.Name):
            adding = [each.lineno for each in ast.walk(scope) if isinstance(each, ast.stmt) and _adds_to(each, part.id)]
            given = [each for each in _given(scope, part.id) if each[0] < before]
            found = max((each for each in adding if each < before), default=0)
            if not found and given:
                line, other, its_item = max(given, key=lambda each: each[0])
                found = _sum(tree, scope, other, line, its_item)
        elif isinstance(part, ast.Call) and isinstance(part.func, ast.Name):
            own = [each for each in _functions(tree) if each.name == part.func.id and each is not scope]
            returned = [each.value for function in own for each in ast.walk(function) if isinstance(each, ast.Return)]
            found = _sum(tree, own[0], returned[-1], sys.maxsize, item) if returned and returned[-1] else 0
        if found:
            return found
    return 0


def _parts(value: ast.expr) -> Iterator[ast.expr]:
    """The names, and the calls of functions of the file, that a value is made of, in order."""
    if isinstance(value, ast.Name):
        yield value
    elif isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute):  # such as total.numpy()
        given = value.args if value.func.attr in SUMMARIES else []
        for each in (value.func.value, *given):
            yield from _parts(each)
    elif isinstance(value, ast.Call) and isinstance(value.func, ast.Name) and value.func.id in SUMMARIES:
        for each in value.args:
            yield from _parts(each)
    elif isinstance(value, ast.Call):
        yield value
    elif isinstance(value, ast.BinOp):
        yield from _parts(value.left)
        yield from _parts(value.right)


def _adds_to(statement: ast.stmt, name: str) -> bool:
    """Whether a statement adds to what has a name, more than one to a count."""
    if isinstance(statement, ast.AugAssign):
        added = isinstance(statement.op, ast.Add) and not isinstance(statement.value, ast.Constant)
        return added and _is(statement.target, name)
    value = statement.value if isinstance(statement, ast.Assign | ast.Expr) else None
    if isinstance(statement, ast.Assign) and isinstance(value, ast.BinOp):
        return _is(statement.targets[0], name) and any(_is(each, name) for each in (value.left, value.right))
    method = value.func if isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute) else None
    return method is not None and method.attr in ADDING and _is(method.value, name)


def _is(expression: ast.expr, name: str) -> bool:
    return isinstance(expression, ast.Name) and expression.id == name


def _given(scope: Scope, name: str) -> Iterator[tuple[int, ast.expr, int | None]]:
    """The lines that give a name a value, the values, and the number of the item where several names are given one."""
    for statement in ast.walk(scope):
        if isinstance(statement, ast.Assign):
            target = statement.targets[0]
            if _is(target, name):
                yield statement.lineno, statement.value, None
            elif isinstance(target, ast.Tuple):
                numbers = (i for i, each in enumerate(target.elts) if _is(each, name))
                yield from ((statement.lineno, statement.value, i) for i in numbers)
