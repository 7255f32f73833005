"""Defines an entry of the catalogue: its texts, and the wrong variants by which it is recognised."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from compare.check import words
from compare.check.measurement import Measurement
from compare.check.recipe import MetricFormula, Recipe, Update
from compare.check.report import REPORTING, TRAINING
from compare.check.stages import Located
from compare.check.step_values import EXAMPLES, GRADIENTS, INPUTS, LOSS, PREDICTIONS, STATE, UPDATE, Sides
from compare.check.used import NOTHING, Used
from compare.verdict.findings import Finding, Source
from compare.watch.seen import CloseUp

if TYPE_CHECKING:
    from compare.check.case import Case
    from compare.check.metric_replay import ReportedMetric

__all__ = ["REPORTING", "TRAINING", "Cause", "Measurement", "Variant"]


@dataclass(frozen=True)
class Variant:
    """One wrong variant of the correct recipe.

    Attributes:
        changes: the fields that change, with their values.
        evidence: what is true if the trainer does this.
        measured: whether the variant contains a number read from the observation. Such variants are tried after
            the others, and must explain all steps, too.
        remedy: what to write instead, if it is not the cause's usual remedy.
        harmless: whether fit comes to the same, so that nothing is wrong with it.
        by_right: whether the side that is held to be right does this, where two recorded sides are compared.
        called: the event whose line of code is shown, if it is not the cause's usual one; None if no line made it.
        made: operations of the step's data set that do this, with the numbers by which they do.
        line: the file, number and text of the line that does this, if it is in no step, or one of several calls.
    """

    changes: Mapping[str, Any]
    evidence: Measurement
    measured: bool = False
    remedy: str = ""
    harmless: bool = False
    by_right: bool = False
    called: str | None = ""
    made: Mapping[str, Collection[float]] = field(default_factory=dict)
    line: tuple[str, int, str] | None = None


CALLED = {
    EXAMPLES: "inputs", INPUTS: "inputs", PREDICTIONS: "inputs", LOSS: "targets", GRADIENTS: "loss",
    UPDATE: "gradients", STATE: "gradients",
}  # fmt: skip
"""The event whose line of code is shown for a difference in a stage: a call of model, loss, tape or optimizer."""

NOT_TRAINING = {r"((?:self\.)?\w+)\((.+), training=True\)": r"\2(\3, training=False)"}
"""How to rewrite a line that calls a model in training mode."""
OWN_OPTIMIZER = "model, optimizer, loss_object, metrics = run.build()  # use this optimizer unchanged"
"""What to write instead of an optimizer of the loop's own."""
ARGUMENT = r"((?:[^(),]|\([^()]*\))+)"
"""A pattern of one argument of a call, in rewritten lines."""
_HEAD, _TAIL = r"(?:\w+ = |return )", r"(?: *#.*)?"
"""What stands before and after what is rewritten in a line: it is all that the line computes."""

Recorded = Callable[[Sides, Located], Iterable[Variant]]
"""Variants that two recorded sides show. One without changes was seen; what others change of the loss is predicted."""


def one_of(kind: Callable[..., tuple[str, Variant] | None], wanted: str) -> Callable[..., list[Variant]]:
    """Recognises one of the causes that a function tells apart, each by its id."""

    def recognise(*seen: Any) -> list[Variant]:
        found = kind(*seen)
        return [found[1]] if found and found[0] == wanted else []

    return recognise


@dataclass(frozen=True, kw_only=True)
class Cause:
    """A mistake that users make, and how it is recognised.

    A recogniser returns variants of the correct recipe. The cause is named if one of its variants explains the
    observation, and no simpler or other cause does. The recognisers that are set say where the cause shows.

    Attributes:
        id: as in ``verdict.json``.
        kind: ``TRAINING`` or ``REPORTING``.
        symptom: what the user sees.
        explanation: why it happens.
        wrong: the mistake, in code.
        remedy: what to write instead, in code.
        remedies: other remedies, each by the words of ``Used`` that must all hold; the first such one counts.
            "{optimizer}" in them is the class of the other side's optimizer, "{options}" its learning rate.
        rewrites: by a pattern of a whole line that makes the mistake, what to write in its place.
        by_hand: by a pattern of the whole line where it is seen, the remedy in the names of that line.
        made_in: a pattern of the statement that makes the mistake, if the function where it is seen, or else the file,
            has only one such.
        unnamed: the names of the remedy that stay, since what the code calls so may be the mistake.
        gradient: variants of how a step's gradient is computed, starting from the given recipe.
        update: variants of how the optimizer turns gradients into weights.
        formula: variants of how a reported number is computed.
        fact: returns what was observed directly; None if the cause does not apply.
        recorded: by the stage of a step that differs first (empty if none could be found), what two recorded sides
            show of it.
        stages: the stages of a step at which it must show: one of them differs; empty if it may show anywhere.
        called: the event whose line of code is shown; empty for that of the stage, None if no step has the line.
        of_whole_loss: whether it is a mistake in what is made of the examples' losses.
        of_penalty: whether it is a mistake in what is added to the loss.
        of_each_metric: whether the remedy is for one metric, and each of several needs it.
    """

    id: str
    kind: str = TRAINING
    symptom: str
    explanation: str
    wrong: str = ""
    remedy: str
    remedies: Mapping[str, str] = field(default_factory=dict)
    rewrites: Mapping[str, str] = field(default_factory=dict)
    by_hand: Mapping[str, str] = field(default_factory=dict)
    made_in: str = ""
    unnamed: tuple[str, ...] = ()
    gradient: Callable[[Case, Recipe], Iterable[Variant]] | None = None
    update: Callable[[Case, Update], Iterable[Variant]] | None = None
    formula: Callable[[ReportedMetric, MetricFormula], Iterable[Variant]] | None = None
    fact: Callable[[Case], Measurement | None] | None = None
    recorded: Mapping[str, Recorded] = field(default_factory=dict)
    stages: tuple[str, ...] = ()
    called: str | None = ""
    of_whole_loss: bool = False
    of_penalty: bool = False
    of_each_metric: bool = False

    def found(self, side: str, seen: Measurement, *, used: Used = NOTHING, remedy: str = "") -> Finding:
        """The cause of the side with a name, which explains what was seen; with the remedy for what it uses."""
        found = Finding(self.id, self.kind, side, words.said(seen), remedy, seen.as_json())
        return found if remedy else replace(found, remedy=self.remedy_for(used.of_numbers(found.metrics)))

    def contradicted(self, located: Located) -> bool:
        """Whether all stages at which the cause must show agree in the step that differs first."""
        agree = {each.stage for each in located.stages if each.equal}
        return bool(self.stages) and agree.issuperset(self.stages) and located.stage not in self.stages

    def remedy_for(self, used: Used) -> str:
        """What to write instead, in code that uses this."""
        texts = (text for words, text in self.remedies.items() if used.words.issuperset(words.split()))
        return next(texts, self.remedy).replace("{optimizer}", used.optimizer).replace("{options}", used.options)

    def instead_of(self, line: str) -> str:
        """The line to write in place of one that makes this mistake; empty if it is written in no known way."""
        found = (
            (re.fullmatch(f"(?P<head>{_HEAD}){wrong}(?P<tail>{_TAIL})", line), right)
            for wrong, right in self.rewrites.items()
        )
        return next((match.expand(rf"\g<head>{right}\g<tail>") for match, right in found if match), "")

    def remedy_at(self, line: str) -> str:
        """The remedy for a line, in its names; empty if the line is written in no known way."""
        found = ((re.fullmatch(pattern, line), remedy) for pattern, remedy in self.by_hand.items())
        return next((match.expand(remedy) for match, remedy in found if match), "")

    def knows(self, line: str) -> bool:
        """Whether a line is written in a way that is known to make this mistake."""
        return bool(self.instead_of(line) or self.remedy_at(line))

    def line_in(
        self, close_up: CloseUp, step: int, stage: str, *, usual: bool = True, called: str = ""
    ) -> Source | None:
        """The line of the user's code that makes this mistake in a step; None if it was not seen.

        It says what to write instead if the step has one such line only, and the remedy is the ``usual`` one.
        ``called`` is the event whose line it is, if that is another one than usual.
        """
        if self.called is None:
            return None
        stage = self.stages[0] if self.stages and stage not in self.stages else stage
        shown = [(called or self.called or CALLED.get(stage, ""), "line"), (CALLED[GRADIENTS], "line")]
        if stage == LOSS:
            shown.insert(not self.of_whole_loss, (CALLED[GRADIENTS], "made"))
        for kind, key in shown:
            lines = dict.fromkeys(tuple(line) for event in close_up.of(step, kind) if (line := event.info.get(key)))
            source = Source.of(next(iter(lines), None), shows=kind == "inputs" and stage in (EXAMPLES, INPUTS))
            if source is not None:
                alone = usual and len(lines) == 1
                return replace(source, instead=self.instead_of(source.text)) if alone else source
        return None
