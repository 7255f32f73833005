"""The sentences of the check, one for each kind of measurement: made to be shown, and read by no program."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from compare.check.measurement import Measurement
from compare.check.phrases import SENTENCES, is_finite, what_is_explained
from compare.check.script_texts import OF_SCRIPTS
from compare.check.texts import OF_CHECK
from compare.records import shortest


def said(measurement: Measurement) -> str:
    """What was measured, as a sentence without its full stop."""
    quantities = measurement.quantities
    sentence = TEXTS[measurement.kind]
    text = SENTENCES.vformat(sentence, (), quantities) if isinstance(sentence, str) else sentence(**quantities)
    for name, more in MORE.items():
        if quantities.get(name) not in (None, False):
            text = more(text, quantities)
    return text


def as_evidence(seen: Sequence[Measurement]) -> dict[str, Any]:
    """The fields of a ``Comparison`` that say what no cause explains: in words, and as quantities."""
    return {"evidence": tuple(map(said, seen)), "measurements": tuple(each.as_json() for each in seen)}


def _explained(text: str, q: Mapping[str, Any]) -> str:
    if "residual" not in q:
        return text
    precision = f"to a relative error of {q['residual']:.1e}" if q["residual"] else "exactly"
    without = f"{q['otherwise']:.2g} without it" if is_finite(q["otherwise"]) else "nothing else does"
    return f"{text}; this explains {what_is_explained(q)} {precision} ({without})"


def _in_epoch(*place: int) -> str:
    return " (step {1:,} of epoch {0})".format(*place) if place else ""


MORE: Mapping[str, Callable[[str, Mapping[str, Any]], str]] = {
    "regularization_included": lambda text, q: f"{text}, regularization included",
    "since_step": lambda text, q: f"from step {q['since_step']} (epoch {q['since_epoch']}) on, {text}",
    "own_data": lambda text, q: f"the loop does not use run.train_dataset: {text}",
    "explains": _explained,
    "also": lambda text, q: SENTENCES.format("{text}; it explains {also:and}, too", text=text, also=q["also"]),
    "as_with": lambda text, q: _as_with(text, **q),
    "right_loss": lambda text, q: _losses(**q) + text,
    "line": lambda text, q: f"{text} ({q['line']})",
    "begun": lambda text, q: f"{text}; both begin with {shortest(q['begun'])}, and the rate is set later",
    "set_later": lambda text, q: f"{text}; it begins with {shortest(q['set_later'])}, and the rate is set later",
    "beside": lambda text, q: f"{text}; with {q['beside']} this gives it",
    "at_step": lambda text, q: (
        f"{'by ' * bool(q.get('at_end'))}step {q['at_step']:,}{_in_epoch(*q.get('at_place', ()))}: {text}"
    ),
}
"""What quantities that any measurement may have add to its sentence, in this order."""


def _as_with(text: str, *, as_with: str, agrees: Sequence[str], **_: Any) -> str:
    if as_with == "loss-not-divided-by-replicas":
        twice = "gradients are added up twice, as by all_reduce and again by apply_gradients, which does so itself"
        return f"{text}; but the loss is right: {twice}"
    return f"as with {as_with}: {text}; but the {' and '.join(agrees)} agree{'s' * (len(agrees) == 1)}"


def _losses(*, loss: float, right_loss: float, side: str, other: str, foreseen: bool = False, **_: Any) -> str:
    if foreseen:
        return f"the loss is {loss:.6g} in {side}, and that of {other} for the same predictions is {right_loss:.6g}"
    return f"the loss is {loss:.6g} in {side} and {right_loss:.6g} in {other}"


TEXTS: Mapping[str, str | Callable[..., str]] = {
    "several": lambda parts, **_: "; ".join(map(said, parts)),
    **OF_CHECK,
    **OF_SCRIPTS,
}
"""A sentence for each kind of measurement: its quantities put in, or a function of them."""
