"""Puts advice into the names, and the statement, of the line that it is for."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace

from compare.check.causes import CATALOGUE
from compare.check.step_values import LOSS
from compare.check.user_code import OF_NN, UserCode, line_of_loss, made_at
from compare.naming import some
from compare.verdict.findings import Finding, Source

OF_REPLICAS = " / strategy.num_replicas_in_sync"
MEAN = "loss = tf.reduce_mean(per_example)"
"""How advice takes the mean of the examples' losses, of which each replica may contribute a share."""
LOSS_FUNCTION = rf"(.*\.)?(losses\.|metrics\.|{OF_NN})([a-z]\w+|MSE|MAE|MAPE|MSLE|KLD)|[a-z]\w*_(crossentropy|error)"
"""What is called for the loss of each example, where it is no object."""
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
OF_METRICS = r"^(.*\bmetrics\.[A-Z]|Mean\()"
"""A pattern of what makes a metric."""


def at_line(finding: Finding, source: Source | None) -> Finding:
    """The finding with the line that makes the mistake, or shows it, and its advice as one would write it there.

    Args:
        source: the line where it was seen, if it was.
    """
    if source is None:
        return finding
    code, cause = UserCode.of(source.file), CATALOGUE[finding.id]
    names = own_names(code, source.line)
    if LOSS in cause.stages:
        source = line_of_loss(code, source, cause, finding.remedy)
        names |= names_of_loss(code, source.line)
    source = made_at(code, source, cause, finding.remedy)
    if "training=" in source.instead and (shared := _shared_with_training(code, source.line)):
        line = re.sub(r"training=(True|False)", "training=training", source.instead)
        told = f"{line}  # an argument of {shared}: True in the training step, False in validation"
        return replace(finding, source=replace(source, instead=""), remedy=told)
    if remedy := cause.remedy_at(source.text):
        names = {name: own for name, own in names.items() if name not in re.findall(r"\w+", source.text)}
    remedy = _added_to_loss(remedy or finding.remedy, source.text)
    remedy = _as_mean(remedy, source.text, bool(finding.measurements.get("regularization_included")))
    if re.fullmatch(LOSS_FUNCTION, names.get("loss_object", "")):
        remedy = remedy.replace("loss_object.call(", "loss_object(")
    if "y" not in names:  # there are as many examples in the inputs
        remedy = re.sub(r"(tf\.shape|\blen)\(y\)", rf"\1({names.get('x', 'y')})", remedy)
    remedy = in_own_names(remedy, {name: own for name, own in names.items() if name not in cause.unnamed})
    if cause.of_each_metric and len(finding.metrics) > 1:
        remedy += f"\n# needed for each of {some(finding.metrics)}"
    return replace(finding, source=source, remedy=_with_options(remedy, code, source.line))


def _added_to_loss(remedy: str, line: str) -> str:
    """Advice to add to the loss, for a line that returns the loss or has a name of its own for it."""
    returned, added = re.fullmatch(r"return (.+)", line), re.match(r"loss \+= (.+)", remedy)
    if returned and added and returned[1].count("(") == returned[1].count(")"):
        return f"return {returned[1]} + {added[1]}"
    given = re.match(r"(?!per)(\w*loss\w*) = ", line)  # the loss itself comes later
    return remedy.replace("loss += ", f"{given[1]} += ", 1) if added and given else remedy


def _shared_with_training(code: UserCode, line: int) -> str:
    """The function around a line that is called both under a tape and elsewhere; empty if there is none."""
    scope = code.around(line)
    if isinstance(scope, ast.Module):
        return ""

    def calls(part: ast.AST) -> set[ast.Call]:
        found = (each for each in ast.walk(part) if isinstance(each, ast.Call))
        return {each for each in found if ast.unparse(each.func) in (scope.name, f"self.{scope.name}")}

    tapes = [
        each for each in ast.walk(code.tree) if isinstance(each, ast.With) and "GradientTape(" in ast.unparse(each)
    ]
    taped = set().union(*map(calls, tapes))
    return scope.name if taped and calls(code.tree) - taped else ""


def _with_options(remedy: str, code: UserCode, line: int) -> str:
    """The statement that makes an optimizer with the options of advice such as ``Adam(..., clipnorm=1.0)``."""
    advised = re.match(r"[\w.]+ = ([\w.]+)(\(\.\.\.(?:, .+)?\))(?=  #|$)", remedy, re.MULTILINE)
    statements = [
        each
        for each in ast.walk(code.tree)
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


def _as_mean(remedy: str, line: str, whole: bool) -> str:
    """The mean of the examples' losses in a line that adds more to it, such as a penalty, or calls the loss function.

    Args:
        whole: whether what is added has to be divided by the replicas, too.
    """
    share = OF_REPLICAS if remedy.startswith(MEAN + OF_REPLICAS) else ""
    value = None
    with suppress(SyntaxError, ValueError):  # it may be several statements, or a part of one
        (statement,) = ast.parse(line).body
        value = statement.value if isinstance(statement, ast.Assign | ast.Return) else None
    if value is None or not remedy.startswith(MEAN):
        return remedy
    before = "return " if line.startswith("return") else line[: line.index("=") + 2]
    match value:
        case ast.BinOp(op=ast.Add()) if reduced := _reduced(value.left):
            mean = f"tf.reduce_mean({reduced}){share} + {ast.unparse(value.right)}"
            mean = f"({ast.unparse(value)}){share}" if whole else mean
        case ast.Call() if re.fullmatch(LOSS_FUNCTION, ast.unparse(value.func)):
            mean = f"tf.reduce_mean({ast.unparse(value)}){share}"
        case _:
            return remedy
    return before + mean + remedy.removeprefix(MEAN + share)


def _reduced(loss: ast.expr) -> str:
    """What a loss is the sum or mean of, as it is written; empty if that is not known."""
    match loss:
        case ast.Call(args=[each], keywords=[]) if ast.unparse(loss.func) == "tf.reduce_sum":
            return ast.unparse(each)
    named = re.search(r"tf\.reduce_\w+\(([\w.]+)\)", ast.unparse(loss))
    return named[1] if named else ""


# The names


def own_names(code: UserCode, line: int) -> dict[str, str]:
    """The code's own names by those of the advice, as far as only one is meant in the function around a line."""
    tree, scope = code.tree, code.around(line)
    here = [each for each in ast.walk(tree) if isinstance(each, ast.Assign) and each.lineno == line]
    found = _alone(_made(tree), scope) | {name: ast.unparse(own) for each in here for name, own in _made(each)}
    inside = {ast.unparse(each) for each in ast.walk(scope) if isinstance(each, ast.Name | ast.Attribute)}
    found |= {name: f"self.{name}" for name in KEPT if f"self.{name}" in inside and found.get(name) not in inside}
    return found | _alone(_used(scope, found, line), scope) | _of_update(tree, line)


def names_of_loss(code: UserCode, line: int) -> dict[str, str]:
    """What a line calls with two names, which is the loss function if it is the line of the loss."""
    there = [each for each in ast.walk(code.tree) if isinstance(each, ast.Call) and each.lineno == line]
    for given in ({each.arg: each.value for each in call.keywords} for call in there):
        for pair in (("labels", "logits"), ("y_true", "y_pred")):
            if all(isinstance(given.get(name), ast.Name) for name in pair):
                return dict(zip(("y", "predictions"), (ast.unparse(given[name]) for name in pair), strict=True))
    calls = [
        call
        for call in there
        if len(call.args) == 2 and all(isinstance(each, ast.Name) for each in call.args)
        if re.fullmatch(rf"(self\.)?\w+(\.call)?|{LOSS_FUNCTION}", ast.unparse(call.func))
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
