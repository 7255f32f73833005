"""Reads the user's code around a line: its own names for advice, and the line that makes a number which is reported."""

from __future__ import annotations

import ast
import linecache
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import chain
from pathlib import Path

from compare.check.causes import CATALOGUE, Cause
from compare.check.step_values import LOSS
from compare.verdict.findings import Finding, Source
from compare.watch.cells import codes_of

MADE_BY = {
    "loss_object": r"(.*\.)?losses\.[A-Z]\w+|\w+Crossentropy",
    "loss_metric": r"(.*\.)?Mean",
    "optimizer": r"(.*\.)?optimizers\.(\w+\.)?[A-Z]\w+|Adam\w*|SGD|RMSprop",
    "strategy": r"(.*\.)?\w+Strategy",
    "tape": r"(.*\.)?GradientTape",
}
"""Names of the advice, each with what is called to make such a thing."""
BUILT = ("model", "optimizer", "loss_object", "metrics")
"""What ``run.build()`` gives, in order."""
KEPT = ("model", "optimizer", "schedule", "strategy")
"""Names of the advice that a class may have as attributes."""
Named = Iterator[tuple[str, ast.expr]]
"""Names of the advice, each with what has that name in the user's code."""
Scope = ast.Module | ast.FunctionDef | ast.AsyncFunctionDef
Line = tuple[str, int, str]
OF_METRICS = r"^(.*\bmetrics\.[A-Z]|Mean\()"
"""A pattern of what makes a metric."""
OF_REPLICAS = " / strategy.num_replicas_in_sync"
MEAN_OF_REPLICA = f"loss = tf.reduce_mean(per_example){OF_REPLICAS}"
"""How advice has each replica contribute its mean."""
SUMMARIES = ("float", "mean", "sum", "reduce_mean", "reduce_sum", "average", "round", "fsum")
"""Functions whose value is made of all that they are given."""
ADDING = ("append", "assign_add", "extend")
"""Methods that add to what they belong to."""


def at_line(finding: Finding, source: Source | None) -> Finding:
    """The finding with the line where it was seen, and its advice in the names of the code around that line."""
    if source is None:
        return finding
    names, cause, lines = dict[str, str](), CATALOGUE.get(finding.id), _lines_of(source.file)
    tree = ast.Module([], [])
    with suppress(SyntaxError, ValueError, RecursionError):
        tree = ast.parse("".join(lines))
        names = own_names(tree, source.line)
        names |= _of_update(tree, source.line)
        if cause is not None and cause.stages and LOSS in cause.stages:
            source = _of_loss(source, _around(tree, source.line), lines, cause)
            names |= _of_loss_call(tree, source.line)
            if made := re.match(r"loss_object = [\w.]*?(\w+)\(\.\.\., ", finding.remedy):
                source = _nearer(source, rf"\b{made[1]}\(", (_around(tree, source.line), tree), lines)
        # Functions of tf.nn have no object that is made elsewhere.
        of_function = re.search(r"tf\.nn\.(?!compute_average_loss|scale_regularization_loss)", source.text)
        of_call = finding.remedy.startswith("loss = loss_object(")
        if cause is not None and cause.made_in and not source.instead and not of_function and not of_call:
            source = _nearer(source, cause.made_in, (_around(tree, source.line), tree), lines)
    if "training=" in source.instead and (shared := _shared_with_training(tree, source.line)):
        line = re.sub(r"training=(True|False)", "training=training", source.instead)
        told = f"{line}  # an argument of {shared}: True in the training step, False in validation"
        return replace(finding, source=replace(source, instead=""), remedy=told)
    one = cause is not None and (cause.id != "metrics-not-reset" or len(finding.metrics) < 2)  # else each by its name
    of_line = cause.remedy_at(source.text) if cause is not None and one else ""
    remedy, kept = of_line or finding.remedy, set(re.findall(r"\w+", source.text)) if of_line else set[str]()
    returned, added = re.fullmatch(r"return (.+)", source.text), re.match(r"loss \+= (.+)", remedy)
    if returned and added and returned[1].count("(") == returned[1].count(")"):
        remedy = f"return {returned[1]} + {added[1]}"
    elif added and (given := re.match(r"(?!per)(\w*loss\w*) = ", source.text)):  # the loss itself comes later
        remedy = remedy.replace("loss += ", f"{given[1]} += ", 1)
    remedy = _with_other_terms(remedy, source.text, bool(finding.measurements.get("regularization_included")))
    kept.update(cause.unnamed if cause is not None else ())
    known = {name: own for name, own in names.items() if name not in kept}
    remedy = in_own_names(remedy, known)
    return replace(finding, source=source, remedy=_with_options(remedy, tree, source.line))


def _lines_of(file: str) -> list[str]:
    """The lines of a file, or of a notebook's cell as it is cited, without its magics."""
    cell = re.fullmatch(r"(.+\.ipynb), cell (\d+)", file)
    if cell is None:
        return linecache.getlines(file)
    with suppress(OSError, ValueError, KeyError, IndexError, TypeError):
        code = codes_of(Path(cell[1]))[int(cell[2]) - 1]
        return [re.sub(r"^\s*[%!].*", "", line) for line in code.splitlines(keepends=True)]
    return []


def _shared_with_training(tree: ast.Module, line: int) -> str:
    """The function around a line that is called both under a tape and elsewhere; empty if there is none."""
    scope = _around(tree, line)
    if isinstance(scope, ast.Module):
        return ""

    def calls(part: ast.AST) -> set[ast.Call]:
        found = (each for each in ast.walk(part) if isinstance(each, ast.Call))
        return {each for each in found if ast.unparse(each.func) in (scope.name, f"self.{scope.name}")}

    tapes = [each for each in ast.walk(tree) if isinstance(each, ast.With) and "GradientTape(" in ast.unparse(each)]
    taped = set().union(*map(calls, tapes))
    return scope.name if taped and calls(tree) - taped else ""


def _functions(tree: ast.AST) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
    return [each for each in ast.walk(tree) if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)]


def _around(tree: ast.Module, line: int) -> Scope:
    """The innermost function around a line; all of the code, if it is in none."""
    return next((each for each in _functions(tree)[::-1] if each.lineno <= line <= (each.end_lineno or 0)), tree)


def _nearer(source: Source, pattern: str, scopes: Iterable[ast.AST], lines: Sequence[str]) -> Source:
    """The line in which a mistake of this kind can be made, if there is but one in the innermost part that has any."""
    found = set[int]()
    for scope in scopes:
        simple = (each for each in ast.walk(scope) if isinstance(each, ast.stmt) and not hasattr(each, "body"))
        found = found or {each.lineno for each in simple if re.search(pattern, ast.unparse(each))}
    if len(found) != 1:
        return source
    (line,) = found
    return replace(source, line=line, text=lines[line - 1].strip())


def _of_loss(source: Source, scope: ast.AST, lines: Sequence[str], cause: Cause) -> Source:
    """In place of the line that takes the gradient of a loss, as an eager step shows it, the one that gives the loss.

    That is the last one, or the one before where that only adds the model's own losses; or, if what is made of the
    examples' losses does not matter, the call of the loss function.
    """
    given: dict[str, list[tuple[int, ast.expr]]] = {}
    for each in ast.walk(scope):
        if isinstance(each, ast.Assign | ast.AugAssign):
            for target in each.targets if isinstance(each, ast.Assign) else [each.target]:
                given.setdefault(ast.unparse(target), []).append((each.lineno, each.value))
    taken, found = re.search(r"\.gradient\((\w+),", source.text), source.line
    wanted = {taken[1]} if taken else set[str]()
    while before := [each for name in wanted for each in given.get(name, ()) if each[0] < found]:
        found, value = max(before, key=lambda each: each[0])
        parts, penalized = list(ast.walk(value)), ".losses" in ast.unparse(value)
        calls = any(isinstance(each, ast.Call) for each in parts)
        if (not penalized and (calls or cause.of_whole_loss)) or cause.id.startswith("regularization"):
            break
        wanted = {each.id for each in parts if isinstance(each, ast.Name)}
    return source if found == source.line else replace(source, line=found, text=lines[found - 1].strip())


def own_names(tree: ast.Module, line: int) -> dict[str, str]:
    """The code's own names by those of the advice, as far as only one is meant in the function around a line."""
    scope = _around(tree, line)
    here = [each for each in ast.walk(tree) if isinstance(each, ast.Assign) and each.lineno == line]
    found = _alone(_made(tree), scope) | {name: ast.unparse(own) for each in here for name, own in _made(each)}
    inside = {ast.unparse(each) for each in ast.walk(scope) if isinstance(each, ast.Name | ast.Attribute)}
    found |= {name: f"self.{name}" for name in KEPT if f"self.{name}" in inside and found.get(name) not in inside}
    return found | _alone(_used(scope, found, line), scope)


def _with_options(remedy: str, tree: ast.Module, line: int) -> str:
    """The statement that makes an optimizer with the options of advice such as ``Adam(..., clipnorm=1.0)``."""
    advised = re.match(r"[\w.]+ = ([\w.]+)(\(\.\.\.(?:, .+)?\))(?=  #|$)", remedy, re.MULTILINE)
    statements = [
        each
        for each in ast.walk(tree)
        if isinstance(each, ast.stmt) and not hasattr(each, "body") and each.lineno <= line <= (each.end_lineno or 0)
    ]
    if advised is None or len(statements) != 1:
        return remedy
    name, wanted = advised[1].rpartition(".")[2], ast.parse(f"made{advised[2]}", mode="eval").body
    calls = [each for each in ast.walk(statements[0]) if isinstance(each, ast.Call)]
    made = [each for each in calls if ast.unparse(each.func).rpartition(".")[2] == name]
    if len(made) != 1 or not isinstance(wanted, ast.Call):
        return remedy
    given = {each.arg: each for each in made[0].keywords}
    for option in wanted.keywords:
        if option.arg == "learning_rate" and made[0].args:
            made[0].args[0] = option.value
        else:
            given[option.arg] = option
    none = {each.arg for each in wanted.keywords if ast.unparse(each.value) == "None"}
    made[0].keywords = [each for name, each in given.items() if name not in none]
    return remedy.replace(advised[0], ast.unparse(statements[0]))


def _with_other_terms(remedy: str, line: str, whole: bool) -> str:
    """The mean that each replica contributes, in a line that adds more to it, such as a penalty.

    Args:
        whole: whether what is added has to be divided, too.
    """
    if not remedy.startswith(MEAN_OF_REPLICA):
        return remedy
    with suppress(SyntaxError, ValueError):  # it may be several statements, or a part of one
        (statement,) = ast.parse(line).body
        match statement:
            case (
                ast.Assign(value=ast.BinOp(op=ast.Add()) as added) | ast.Return(value=ast.BinOp(op=ast.Add()) as added)
            ):
                if reduced := re.search(r"tf\.reduce_\w+\(([\w.]+)\)", ast.unparse(added.left)):
                    before = line[: line.index("=") + 2] if isinstance(statement, ast.Assign) else "return "
                    mean = f"tf.reduce_mean({reduced[1]}){OF_REPLICAS} + {ast.unparse(added.right)}"
                    mean = f"({ast.unparse(added)}){OF_REPLICAS}" if whole else mean
                    return before + mean + remedy.removeprefix(MEAN_OF_REPLICA)
    return remedy


def _of_loss_call(tree: ast.Module, line: int) -> dict[str, str]:
    """What a line calls with two names, which is the loss function if it is the line of the loss."""
    there = [each for each in ast.walk(tree) if isinstance(each, ast.Call) and each.lineno == line]
    for given in ({each.arg: each.value for each in call.keywords} for call in there):
        for pair in (("labels", "logits"), ("y_true", "y_pred")):
            if all(isinstance(given.get(name), ast.Name) for name in pair):
                return dict(zip(("y", "predictions"), (ast.unparse(given[name]) for name in pair), strict=True))
    calls = [
        call
        for call in there
        if len(call.args) == 2 and all(isinstance(each, ast.Name) for each in call.args)
        if re.fullmatch(r"(self\.)?\w+(\.call)?", ast.unparse(call.func))
    ]
    if len(calls) != 1:
        return {}
    called, own = ast.unparse(calls[0].func).removesuffix(".call"), map(ast.unparse, calls[0].args)
    return {"loss_object": called, **dict(zip(("y", "predictions"), own, strict=True))}


def _of_update(tree: ast.Module, line: int) -> dict[str, str]:
    """The loss that a line adds to a metric."""
    calls = [each for each in ast.walk(tree) if isinstance(each, ast.Call) and each.lineno == line and each.args]
    made = [each for each in ast.walk(tree) if isinstance(each, ast.Assign) and isinstance(each.value, ast.Call)]
    metrics = {ast.unparse(each.targets[0]) for each in made if re.search(OF_METRICS, ast.unparse(each.value))}
    updates = [
        each for each in calls if getattr(each.func, "attr", "") == "update_state" or ast.unparse(each.func) in metrics
    ]
    given = updates[0].args if len(updates) == 1 else []
    return {"loss": ast.unparse(given[0])} if len(given) == 1 and isinstance(given[0], ast.Name | ast.Attribute) else {}


def in_own_names(advice: str, names: Mapping[str, str]) -> str:
    """Advice with other names for things; what a comment says in plain words stays."""
    lines = []
    for line in advice.split("\n"):
        code, mark, comment = line.partition("#")
        code = re.sub(r"(?<![\w.])[a-z_]+\b(?!=)", lambda match: names.get(match[0], match[0]), code)
        comment = re.sub(r"\bloss_\w+|\bloss(?= is )", lambda match: names.get(match[0], match[0]), comment)
        lines.append(code + mark + comment)
    return "\n".join(lines)


def _alone(found: Named, scope: ast.AST) -> dict[str, str]:
    """The names that one thing alone has in a part of the code, or in all of it."""
    owns: dict[str, set[str]] = {}
    for name, own in found:
        owns.setdefault(name, set()).add(ast.unparse(own))
    inside = {ast.unparse(each) for each in ast.walk(scope) if isinstance(each, ast.Name | ast.Attribute)}
    chosen = {name: here if len(here := each & inside) == 1 else each for name, each in owns.items()}
    return {name: next(iter(each)) for name, each in chosen.items() if len(each) == 1}


def _made(tree: ast.AST) -> Named:
    """The things that the code makes, and its model, which has variables to be trained."""
    for node in ast.walk(tree):
        match node:
            case ast.Assign(targets=[ast.Tuple(elts=own)], value=ast.Call(func=ast.Attribute(attr="build"))):
                yield from (pair for pair in zip(BUILT, own, strict=False) if ast.unparse(pair[1]) != "_")
            case (
                ast.Assign(targets=[own], value=ast.Call(func=maker))
                | ast.withitem(context_expr=ast.Call(func=maker), optional_vars=ast.expr() as own)
            ):
                yield from ((name, own) for name, made in MADE_BY.items() if re.fullmatch(made, ast.unparse(maker)))
            case ast.Attribute(value=own, attr="trainable_variables" | "trainable_weights"):
                yield "model", own


def _used(scope: ast.AST, known: Mapping[str, str], line: int) -> Named:
    """The values that a part of the code, up to a line, gives its loss and its model; and all of it its tape."""
    for node in _within(scope):
        later = getattr(node, "lineno", 0) > line
        match node:
            case ast.Assign(targets=[ast.Name() as own], value=ast.Call(func=ast.Attribute(attr="gradient"))):
                yield "gradients", own
            case ast.Call(func=ast.Attribute(attr="gradient"), args=[own, *_]):
                yield from _if_named("loss", own)
            case ast.Call(func=ast.Name(id="zip"), args=[_, own]):
                yield "variables", own
            case ast.Call(func=called, args=[own, *_]) if not later and ast.unparse(called) == known.get("model"):
                yield from _if_named("x", own)
            case ast.Assign(targets=[own], value=ast.Call(func=called)) if ast.unparse(called) == known.get("model"):
                yield from _if_named("logits", own)
            case ast.Call(func=called, args=[y, predictions]) if not later:
                if ast.unparse(called).removesuffix(".call") == known.get("loss_object"):
                    yield from (*_if_named("y", y), *_if_named("predictions", predictions))


def _within(scope: ast.AST) -> Iterator[ast.AST]:
    """The nodes of a part of the code, without those of the functions in it, which have names of their own."""
    for child in ast.iter_child_nodes(scope):
        if not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            yield child
            yield from _within(child)


def _if_named(name: str, own: ast.expr) -> Iterable[tuple[str, ast.expr]]:
    return [(name, own)] if isinstance(own, ast.Name) else []


# The line that makes a number


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
        scope = _around(tree, number)
        calls = (each for each in ast.walk(scope) if isinstance(each, ast.Call))
        call = next((each for each in calls if each.lineno <= number <= (each.end_lineno or 0)), None)
        reported = [value for name, value in _given_by_name(call) if name in set(metrics)] if call else []
        found = next(filter(None, (_made_in(tree, scope, each, number) for each in reported)), 0)
    except (SyntaxError, ValueError, RecursionError):  # functions may return what each other returns
        return line
    return (file, found, lines[found - 1].strip()) if found else line


def _given_by_name(call: ast.Call) -> Iterator[tuple[str, ast.expr]]:
    """The values that a call is given by name, as arguments or in dictionaries."""
    for each in ast.walk(call):
        if isinstance(each, ast.keyword) and each.arg:
            yield each.arg, each.value
        for key, value in zip(each.keys, each.values, strict=True) if isinstance(each, ast.Dict) else ():
            if isinstance(key, ast.Constant):
                yield str(key.value), value


def _made_in(tree: ast.Module, scope: Scope, value: ast.expr, before: int, item: int | None = None) -> int:
    """The last line before another that makes what a value, or an item of it, is made of; 0 if there is none."""
    if isinstance(value, ast.Tuple) and item is not None:
        return _made_in(tree, scope, value.elts[item], before) if item < len(value.elts) else 0
    for part in _parts(value):
        found = 0
        match part:
            case ast.Name(id=name):
                adding = [each for each in ast.walk(scope) if isinstance(each, ast.stmt) and _adds_to(each, name)]
                found = max((each.lineno for each in adding if each.lineno < before), default=0)
                given = [each for each in _given(scope, name) if each[0] < before]
                if not found and given:
                    line, other, its_item = max(given, key=lambda each: each[0])
                    found = _made_in(tree, scope, other, line, its_item)
            case ast.Call(func=ast.Attribute(), lineno=found):  # of a metric
                pass
            case ast.Call(func=ast.Name(id=name)):
                own = next((each for each in _functions(tree) if each.name == name and each is not scope), None)
                returned = [each.value for each in ast.walk(own) if isinstance(each, ast.Return)] if own else []
                found = _made_in(tree, own, returned[-1], sys.maxsize, item) if own and returned and returned[-1] else 0
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
