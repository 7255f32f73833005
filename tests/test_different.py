"""Every way to the verdict ``different``, each beside its neighbour: what was not recorded is no difference."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest
from test_thresholds import judged, record, without

import compare
from compare.check.recorded_numbers import Losses, name_own_losses, name_reporting
from compare.check.used import SCRIPT_ALONE
from compare.check.words import said
from compare.records.codec import encode
from compare.records.model import EPOCH_END, INITIAL, End, Record, Variable
from compare.records.run_json import INTERRUPTED
from compare.verdict.exact import compare_records
from compare.verdict.logged import compare_logs
from compare.verdict.model import Comparison, Reporting, Training
from compare.verdict.outcomes import DIFFERENT, INCONCLUSIVE
from compare.verdict.seeds import Margin, study

PACKAGE = Path(compare.__file__).parent
LOGS = {1: {"loss": 0.5}}
FIT = record("fit", 0, 1, 2, logs=LOGS)


def loop(*weights: float, **given: Any) -> Record:
    return record("loop", *(weights or (0, 1, 2)), **({"logs": LOGS} | given))


def records(candidate: Record, reference: Record = FIT) -> str:
    return compare_records(reference, candidate).verdict


def training(candidate: Record, reference: Record = FIT) -> str:
    return compare_records(reference, candidate).training.verdict


def run(*kept: Record, **given: Any) -> str:
    return judged(kept, **given).comparisons[0].verdict


def seeds(*numbers: float | None, reference: Sequence[float | None] = (0.5,) * 4, ended: int | None = None) -> str:
    """The verdict of a study whose trainers report these numbers, or none, seed by seed."""

    def kept(name: str, values: Sequence[float | None]) -> list[Record]:
        logs = [{1: {"loss": 1.0} | ({} if value is None else {"val_loss": value})} for value in values]
        return [record(name, 0, 1, logs=each, seed=seed) for seed, each in enumerate(logs)]

    end = None if ended is None else End(1, 1, "the loss")
    candidates = [replace(each, end=end if each.seed == ended else None) for each in kept("loop", numbers)]
    return study(kept("fit", reference), candidates, [Margin("val_loss", 0.1)]).verdict


def logs(candidate: Mapping[int, Mapping[str, float]]) -> str:
    kept = [[record(name, 0, 1, seed=seed, logs={1: {"val_loss": 0.5}} if name == "fit" else candidate)
             for seed in range(4)] for name in ("fit", "loop")]  # fmt: skip
    return compare_logs(*kept, [Margin("val_loss", 0.1)]).verdict


def held(candidate: Record) -> str:
    """The verdict on weights that other evidence calls alike."""
    exactly = compare_records(FIT, candidate)
    return replace(exactly, training=replace(exactly.training, verdict="alike")).held_different().training.verdict


def of_check(reporting: str | None, training: str | None = None) -> dict[str, Any]:
    """What a check of the loop, or a look into two scripts, has found."""
    sides = Training(training or INCONCLUSIVE, None, None, 0), Reporting(reporting, {})
    return {"loop": encode(Comparison("loop", *sides, evidence=(), not_applicable=(), certain=True))}


def of_causes(candidate: Record) -> dict[str, Any] | None:
    """What is kept where causes of different numbers are found."""
    return of_check(DIFFERENT) if name_reporting(FIT, candidate) else None


def of_own_steps(losses: Mapping[int, Losses]) -> str | None:
    """The verdict on the numbers of a loop whose weights differ, as far as the losses of its steps were seen."""
    other = loop(0, 1.5, 2, logs={1: {"loss": 0.75}})
    named = DIFFERENT if name_own_losses(other, losses, {}, SCRIPT_ALONE) else None
    return judged([FIT, other], check=of_check(named, DIFFERENT)).comparisons[0].reporting.verdict


# The short check


def checker(*, twins: str = "alike", **of_reference: Any) -> Any:
    """A checker whose replay explains the reference, and whose noise twins say so much."""
    from compare.check.checker import Checker
    from compare.check.judgement import Judgement

    def judge(comparison: Comparison, *_: Any) -> Comparison:
        return replace(comparison, training=replace(comparison.training, verdict=twins))

    made = Checker.__new__(Checker)
    made.reference = SimpleNamespace(name="fit", optimizers=(), **of_reference)  # type: ignore[assignment]
    made._twins = SimpleNamespace(judge=judge)  # type: ignore[assignment]
    made._judged = SimpleNamespace(replay=None), Judgement()  # type: ignore[assignment]
    return made


def report(training: str, reporting: str | None = None, gap: float = 0.0) -> Any:
    from compare.check.report import Report
    from compare.verdict.model import MetricGap

    numbers = Reporting(reporting, {"loss": MetricGap(gap, 1)})
    return Report("fit", (1,), Comparison("loop", Training(training, 0.1, None, 2), numbers))


def of_twins(hidden: bool, twins: str) -> str:
    """Where no replay explains the reference."""
    from compare.verdict.findings import NotApplicable

    made, skipped = checker(twins=twins), NotApplicable("replay", "")
    found = made._judge_by_twins(report("identical" if hidden else DIFFERENT), (FIT, loop()), hidden, skipped)
    return str(found.comparison.training.verdict)


def of_gradients(candidate: Sequence[Any], *, with_gradient: bool = True) -> bool:
    """Whether equal weights hide other gradients: those of each step, as far as they were seen."""

    def steps(gradients: Sequence[Any]) -> list[Any]:
        return [SimpleNamespace(gradients=[[each]], with_gradient=[0] if with_gradient else each is not None)
                for each in gradients]  # fmt: skip

    given = np.ones(3)
    made = checker(optimizer_steps=steps([given, given]))
    return not made._same_gradients(SimpleNamespace(optimizer_steps=steps(candidate)))


def of_replay(monkeypatch: pytest.MonkeyPatch, twins: str = "alike", **found: Any) -> str:
    """Where the replay explains the reference, and finds this of the candidate."""
    from compare.check import checker as module
    from compare.check.judgement import Judgement

    made = checker(twins=twins)
    monkeypatch.setattr(module, "Case", lambda *_: SimpleNamespace(observation=SimpleNamespace(name="loop")))
    monkeypatch.setattr(module, "judge_training", lambda *_: Judgement(**found))
    monkeypatch.setattr(made, "_explain_metrics", lambda report, *_: report)
    return str(
        made._explain(report(DIFFERENT), SimpleNamespace(name="loop"), (FIT, loop()), False).comparison.training.verdict
    )


def of_numbers(monkeypatch: pytest.MonkeyPatch, training: str, mine: set[str], fits: set[str]) -> str | None:
    """Where reported numbers differ, of which the replay explains none of these."""
    from compare.check import checker as module
    from compare.check.judgement import Judgement
    from compare.check.recipe import Recipe

    made, judgements = checker(), iter([Judgement(unexplained=mine), Judgement(unexplained=fits)])
    monkeypatch.setattr(module, "judge_reporting", lambda *_: next(judgements))
    case = SimpleNamespace(observation=SimpleNamespace(name="loop"))
    pair = FIT, loop(logs={1: {"loss": 0.75}})
    found = made._explain_metrics(report(training, DIFFERENT, 0.25), case, Recipe(), pair)
    return found.comparison.reporting.verdict  # type: ignore[no-any-return]


def of_empty_replica(gradient: Any, number: Mapping[str, float], **seen: Any) -> tuple[str, str]:
    """The evidence against a loop's gradient and number on a batch that leaves one replica empty."""
    from compare.check.empty_replica import wrong_gradient, wrong_number

    def observed(gradient: Any, number: Mapping[str, float]) -> Any:
        steps = [] if gradient is None else [SimpleNamespace(gradients=[[np.asarray(gradient, np.float64)]])]
        return SimpleNamespace(optimizer_steps=steps, logs={1: number})

    sides: Any = observed([1.0, 2.0], seen.get("reference", {"loss": 0.5})), observed(gradient, number)
    return wrong_gradient(*sides, 1e-6), wrong_number(*sides)


# The table


class Way(NamedTuple):
    """A way to the verdict.

    Attributes:
        what: what differs.
        different: a verdict on crafted records that is ``different``.
        unrecorded: of the neighbour, where what would tell was not recorded.
        verdict: the neighbour's.
    """

    what: str
    different: Callable[[], Any]
    unrecorded: Callable[[], Any]
    verdict: Any


SHAPES = (Variable("w", (2,), "float32"),)
FEWER = {1: {"loss": 0.5}, 2: {"loss": 0.25}}
WORKERS: dict[str, Any] = {"strategy": "parameter-server", "workers": 2}
WAYS: dict[str, list[Way]] = {
    "verdict.exact._compare_weights": [
        Way("other shapes", lambda: records(replace(loop(), variables=SHAPES)),
            lambda: records(replace(loop(), steps=loop().steps[:1]), replace(FIT, steps=FIT.steps[:1])),
            "inconclusive"),
        Way("the weights after a step", lambda: training(loop(0, 1.5, 2)),
            lambda: training(without(loop(0, 1.5, 2), INITIAL)), "inconclusive"),
        Way("a step that one side did not make", lambda: training(loop(0, 1, 2, 3)),
            lambda: training(without(loop(), 1)), "identical"),
    ],
    "verdict.exact.compare_reporting": [
        Way("a number", lambda: records(loop(logs={1: {"loss": 0.75}})), lambda: records(loop(logs={1: {}})),
            "identical"),
    ],
    "verdict.model.held_different": [
        Way("weights that are not finite, whatever else was seen", lambda: held(loop(0, 1, np.nan)),
            lambda: held(loop(0, 1, 1.5)), "alike"),
        Way("a number that is not finite", lambda: run(FIT, loop(0, 1.5, 2, logs={1: {"loss": np.nan}}), **WORKERS),
            lambda: run(FIT, loop(0, 1.5, 2, logs={1: {}}), **WORKERS), "inconclusive"),
    ],
    "verdict.seeds._test": [
        Way("not finite in a seed", lambda: seeds(0.5, 0.5, np.nan, 0.5), lambda: seeds(0.5, 0.5, None, 0.5),
            "inconclusive"),
        Way("by more than the margin", lambda: seeds(0.81, 0.8, 0.79, 0.8), lambda: seeds(None, None, None, 0.8),
            "inconclusive"),
        Way("ended in a seed, since it was not finite", lambda: seeds(0.5, 0.5, None, 0.5, ended=2),
            lambda: seeds(None, None, None, None), "inconclusive"),
    ],
    "app.scripts_explain._checked": [
        Way("the step that was looked into", lambda: run(FIT, loop(0, 1.5, 2), check=of_check(None, DIFFERENT)),
            lambda: run(FIT, loop(), check=of_check(None, DIFFERENT)), "identical"),
        Way("a number with a cause, of other weights", lambda: of_own_steps({1: Losses([1.0, 0.5], [64, 8])}),
            lambda: of_own_steps({}), None),
    ],
    "app.scripts_numbers._of_numbers": [
        Way("numbers with a cause", lambda: run(FIT, loop(logs={1: {"loss": 0.75}}), check=of_check(DIFFERENT)),
            lambda: run(FIT, loop(logs={1: {}}), check=of_causes(loop(logs={1: {}}))), "identical"),
    ],
    "check.checker._judge_by_twins": [
        Way("gradients that equal weights hide", lambda: of_twins(of_gradients([np.ones(3), np.zeros(3)]), "alike"),
            lambda: of_twins(of_gradients([np.ones(3)]), "inconclusive"), "inconclusive"),
    ],
}  # fmt: skip
"""By the function that says ``different``, each of its ways."""
CHECKED = {
    "check.checker._explain": (1, "test_steps_that_cannot_be_paired_are_left_to_the_twins"),
    "check.checker._explain_metrics": (1, "test_a_number_that_nobody_explains_is_no_difference_where_weights_differ"),
    "check.empty_replica.extend": (2, "test_what_was_not_seen_of_a_batch_with_an_empty_replica_is_no_evidence"),
}
"""By the function of the short check that says so, its number of ways and the test below with them."""


@pytest.mark.parametrize("way", [pytest.param(way, id=f"{name}: {way.what}") for name in WAYS for way in WAYS[name]])
def test_what_was_not_recorded_is_never_different(way: Way) -> None:
    assert way.different() == DIFFERENT
    assert way.unrecorded() == way.verdict != DIFFERENT


def test_steps_that_cannot_be_paired_are_left_to_the_twins(tensorflow: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert of_replay(monkeypatch, right=False, certain=True) == DIFFERENT
    assert of_replay(monkeypatch, right=False) == "alike", "a few steps are off, or were not seen"
    assert of_replay(monkeypatch, "inconclusive", right=False) == "inconclusive"


def test_a_number_that_nobody_explains_is_no_difference_where_weights_differ(
    tensorflow: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert of_numbers(monkeypatch, "identical", {"loss"}, {"loss"}) == DIFFERENT
    assert of_numbers(monkeypatch, "different", {"loss"}, {"loss"}) is None, "fit's number is unexplained, too"


def test_what_was_not_seen_of_a_batch_with_an_empty_replica_is_no_evidence(tensorflow: Any) -> None:
    gradient, number = of_empty_replica([1.0, 2.5], {"loss": np.nan})
    assert "has a relative error" in said(gradient) and "loss is NaN" in said(number)
    assert of_empty_replica(None, {}) == of_empty_replica([1.0, 2.0], {"other": np.nan}) == (None, None)
    assert of_empty_replica([1.0, 2.0], {"loss": np.nan}, reference={}) == (None, None), "fit did not report it"
    assert of_empty_replica([1.0], {}) == (None, None), "of one weight no gradient was seen"


def test_gradients_are_compared_where_both_were_seen(tensorflow: Any) -> None:
    same, other = np.ones(3), np.zeros(3)
    assert of_gradients([same, other]) and not of_gradients([same, same])
    assert not of_gradients([same]), "another number of steps"
    assert not of_gradients([same, None], with_gradient=False), "of one step none was seen"


# Further ways in which nothing was recorded


@pytest.mark.parametrize(
    ("verdict", "said"),
    [
        (lambda: records(without(loop(), INITIAL)), "identical"),
        (lambda: records(without(loop(), 1, 2)), "identical"),
        (lambda: records(without(loop(0, 1, 2, 3), 1, 2, 3)), DIFFERENT),
        (lambda: records(loop(logs={})), "identical"),
        (lambda: records(loop(logs=FEWER), record("fit", 0, 1, 2, logs=LOGS)), "inconclusive"),
        (lambda: run(FIT, without(loop(), 2, EPOCH_END), status=INTERRUPTED, options={"epochs": 1}), "identical"),
        (lambda: run(FIT, loop(0, 1.5), status=INTERRUPTED, options={"epochs": 1}), "inconclusive"),
        (lambda: seeds(0.5, 0.5, 0.5, 0.5, reference=[None] * 4), "inconclusive"),
        (lambda: seeds(np.nan, np.nan, np.nan, np.nan), DIFFERENT),
        (lambda: logs({1: {"val_loss": 0.8}}), DIFFERENT),
        (lambda: logs({1: {"val_accuracy": 0.8}}), "inconclusive"),
        (lambda: logs({2: {"val_loss": 0.8}}), "inconclusive"),
    ],
)  # fmt: skip
def test_what_one_side_lacks_leaves_the_rest_to_be_compared(verdict: Callable[[], str], said: str) -> None:
    assert verdict() == said


# Nothing is left out


def sayings(module: str, code: str) -> Iterator[str]:
    """The outermost function of each use of the verdict that does not compare a value with it, or ``(none)``.

    Another name for the verdict is a use of it, too.
    """

    def walk(node: ast.AST, scope: tuple[str, ...]) -> Iterator[str]:
        if isinstance(node, ast.Compare):
            return
        if isinstance(node, ast.FunctionDef | ast.Lambda):
            scope = (*scope, getattr(node, "name", "lambda"))
        named = isinstance(node, ast.Name) and node.id == "DIFFERENT" and isinstance(node.ctx, ast.Load)
        spelt = isinstance(node, ast.Constant) and node.value == "different"
        renamed = isinstance(node, ast.alias) and node.name == "DIFFERENT" and node.asname is not None
        if named or spelt or renamed or (isinstance(node, ast.Attribute) and node.attr == "DIFFERENT"):
            yield scope[0] if scope else "(none)"
        children = node.values if isinstance(node, ast.Dict) else ast.iter_child_nodes(node)  # words about it are keys
        for child in children:
            yield from walk(child, scope)

    for name in walk(ast.parse(code), ()):
        yield f"{module}.{name}"


@pytest.mark.parametrize(
    ("code", "where"),
    [
        ("def judge(a):\n    return DIFFERENT if a else None", "judge"),
        ("class A:\n    def judge(self):\n        return replace(self, verdict='different')", "judge"),
        ("def judge(a):\n    return [lambda: outcomes.DIFFERENT]", "judge"),
        ("def judge(a, verdict=DIFFERENT): ...", "judge"),
        ("class A:\n    verdict: str = DIFFERENT", "(none)"),
        ("WORST = DIFFERENT", "(none)"),
        ("from compare.verdict.outcomes import DIFFERENT as WORST", "(none)"),
    ],
)
def test_a_new_place_that_says_different_is_found(code: str, where: str) -> None:
    assert list(sayings("m", code)) == [f"m.{where}"]
    assert not list(sayings("m", "from v import DIFFERENT\nx = a == DIFFERENT or {'different': 1}"))


def test_every_place_that_says_different_has_its_ways_here() -> None:
    modules = {".".join(path.relative_to(PACKAGE).with_suffix("").parts): path for path in PACKAGE.rglob("*.py")}
    found = [name for module, path in modules.items() for name in sayings(module, path.read_text())]
    assert found.count("verdict.outcomes.(none)") == 2, "the verdict itself, and the order of verdicts"
    found = [name for name in found if name != "verdict.outcomes.(none)"]
    assert set(found) == WAYS.keys() | CHECKED.keys(), (
        "a place says DIFFERENT and is not in WAYS, or the reverse: add crafted records for which it does, and the "
        "neighbour where what would tell was not recorded"
    )
    ways = {name: len(WAYS[name]) for name in WAYS} | {name: number for name, (number, _) in CHECKED.items()}
    too_few = {name: found.count(name) for name in ways if found.count(name) > ways[name]}
    assert not too_few, "as many ways as places"
    assert all(test in globals() for _, test in CHECKED.values())
