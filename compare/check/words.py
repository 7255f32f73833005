"""The sentences of the check, one for each kind of measurement: made to be shown, and read by no program."""

from __future__ import annotations

import math
import string
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from compare.check.measurement import Measurement
from compare.check.stages import LEARNING_RATE
from compare.check.step_values import INPUTS, PREDICTIONS, STATE
from compare.naming import some
from compare.records import shortest


class _Sentences(string.Formatter):
    """Puts names and choices of words into a sentence, besides what ``str.format`` does."""

    def get_value(self, key: int | str, args: Sequence[Any], quantities: Mapping[str, Any]) -> Any:
        """Returns a quantity; None if it is one that a measurement of the kind may lack."""
        return quantities.get(key) if key in OPTIONAL else super().get_value(key, args, quantities)

    def format_field(self, value: Any, spec: str) -> str:
        """Formats a list by ``some``, ``count``, ``each`` or the word between its names, and by ``one|many`` a number.

        A truth value counts as ``one`` if it is true. ``?`` begins words that are left out where there is no such
        quantity, ``or`` those in its place; ``finite`` begins those for a finite number, and for another one.
        ``exact`` gives all digits of a number, since another one beside it may differ in the last of them.
        """
        kind, _, words = spec.partition(" ")
        if spec.startswith("?"):
            return spec[1:] if value else ""
        if kind == "finite":
            return words.split("|")[not _finite(value)]
        if "|" in spec:
            return spec.split("|")[(len(value) if isinstance(value, list | tuple) else value) != 1]
        if kind == "or":
            return self.format_field(value, "") if value else words
        if spec == "exact":
            return shortest(value)
        if isinstance(value, Mapping):
            return ", ".join(f"{name}={each}" for name, each in value.items())
        if not isinstance(value, list | tuple):
            return "None" if value is None else str(super().format_field(value, spec))
        if kind == "count":
            return str(len(value))
        listed = [self.format_field(each, words) if kind == "each" else str(each) for each in value]
        return some(listed) if kind == "some" else (" and " if kind == "and" else ", ").join(listed)


SENTENCES = _Sentences()
OPTIONAL = (
    "alone", "divided", "epsilon", "examples", "labels", "last", "logits", "output", "predictions", "replicas", "state",
    "training", "when",
)  # fmt: skip


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


def _not_repeated(side: str, step: int, made: int, error: str = "") -> str:
    again = f"{side} was run again to look inside step {step:,}, and"
    if error:
        return f"{again} failed then: {error}; compare again"
    left = "what it leaves on disk, such as a checkpoint, may change its next run; remove that, and compare again"
    return f"{again} made {made:,} steps then: {left}"


def _finite(number: float | None) -> bool:
    """Whether a number is finite; in JSON one that is not is null."""
    return number is not None and math.isfinite(number)


def _explained(text: str, q: Mapping[str, Any]) -> str:
    if "residual" not in q:
        return text
    precision = f"to a relative error of {q['residual']:.1e}" if q["residual"] else "exactly"
    without = f"{q['otherwise']:.2g} without it" if _finite(q["otherwise"]) else "nothing else does"
    return f"{text}; this explains {_what(q)} {precision} ({without})"


def _in_epoch(*place: int) -> str:
    return " (step {1:,} of epoch {0})".format(*place) if place else ""


def _what(q: Mapping[str, Any]) -> str:
    """What is explained: what the optimizer was seen to do in so many steps or epochs, or a reported number."""
    return EXPLAINED[q["explains"]].format_map(q)


EXPLAINED = {
    "gradients": "the gradients of all {places} steps",
    "updates": "all {places} updates",
    "weights after steps": "the weights after all {places} steps",
    "weights after epochs": "the weights after all {places} epochs",
    "metric": "{metric}",
}
"""What a cause may explain, by its id."""

MORE: Mapping[str, Callable[[str, Mapping[str, Any]], str]] = {
    "regularization_included": lambda text, q: f"{text}, regularization included",
    "since_step": lambda text, q: f"from step {q['since_step']} (epoch {q['since_epoch']}) on, {text}",
    "own_data": lambda text, q: f"the loop does not use run.train_dataset: {text}",
    "explains": _explained,
    "as_with": lambda text, q: f"as with {q['as_with']}: {text}; but the {' and '.join(q['agrees'])} agrees",
    "right_loss": lambda text, q: _losses(**q) + text,
    "line": lambda text, q: f"{text} ({q['line']})",
    "begun": lambda text, q: f"{text}; both begin with {shortest(q['begun'])}, and the rate is set later",
    "beside": lambda text, q: f"{text}; with {q['beside']} this gives it",
    "at_step": lambda text, q: f"step {q['at_step']:,}{_in_epoch(*q.get('at_place', ()))}: {text}",
}
"""What quantities that any measurement may have add to its sentence, in this order."""


def _losses(*, loss: float, right_loss: float, side: str, other: str, foreseen: bool = False, **_: Any) -> str:
    if foreseen:
        return f"the loss is {loss:.6g} in {side}, and that of {other} for the same predictions is {right_loss:.6g}"
    return f"the loss is {loss:.6g} in {side} and {right_loss:.6g} in {other}"


def _last_as_full(*, last: int, global_batch_size: int, examples: int, **_: Any) -> str:
    full, rest = divmod(examples, global_batch_size)
    run = f"{examples:,} examples are {full:,} × {global_batch_size}" + (f" + {rest}" if rest else "")
    return (
        f"each of the {last} examples of an epoch's last batch counts 1/{global_batch_size}, as if the batch were full "
        f"({run})"
    )


def _output_weights(*, expected: Mapping[str, float], **_: Any) -> str:
    given = ", ".join(f"{name} {weight:g}" for name, weight in expected.items())
    return f"the outputs' losses all have weight 1, not {given}"


def _never_change(*, zero: str | None, batch: int = 0, **_: Any) -> str:
    why = {
        None: f"no optimizer is ever applied (the check's batches have {batch:,} examples at most)",
        "updates": "its updates are zero",
        "gradients": "all gradients are zero",
        "losses": "its loss is 0 in every step, and so are all gradients",
    }
    return f"the weights never change: {why[zero]}"


def _batches(
    *,
    batches: Mapping[int, Sequence[str]],
    same_order: bool = False,
    never: Sequence[str] = (),
    repeated: Sequence[str] = (),
    **_: Any,
) -> str:
    used = "; ".join(f"{', '.join(labels)} in epoch {epoch}" for epoch, labels in batches.items())
    text = f"the steps use batches (epoch.number) {used}"
    if same_order:
        return f"{text}: the second epoch has the order of the first"
    if never:
        return f"{text}: {', '.join(never)} never"
    return f"{text}: {', '.join(repeated)} more than once" if repeated else text


def _learning_rate(
    *, learning_rate: float, expected: float, step: int, factor: float | None = None, pattern: str = "", **_: Any
) -> str:
    rates = f"learning_rate is {shortest(learning_rate)} in the loop, {shortest(expected)} in the experiment"
    text = f"{rates}, in step {step}"
    if factor is not None:
        return f"{text} (a constant factor of {factor:.6g})"
    patterns = {
        "": "",
        "once per epoch": ": it changes once per epoch, the experiment's with every step",
        "one epoch late": ": each epoch has the rate of the epoch before",
    }
    return text + patterns[pattern]


def _ambiguous(*, causes: Sequence[Sequence[str]], **q: Any) -> str:
    names = " or ".join(" and ".join(ids) for ids in causes)
    return f"{names} would explain {_what(q)} equally well, so no cause is named"


def _optimizer_steps(*, steps: Mapping[int, int], batches: int, **_: Any) -> str:
    counts = ", ".join(f"{count} in epoch {epoch}" for epoch, count in steps.items())
    return f"the optimizer steps are {counts}; the data set has {batches} batches in all"


def _gradient_off(
    *, step: int, epoch: int, relative_error: float, multiples: Mapping[str, float | str], **_: Any
) -> str:
    error = f"has a relative error of {relative_error:.2g}" if _finite(relative_error) else "is not finite"
    listed = [f"{name} {each if isinstance(each, str) else f'{each:.4g}'}" for name, each in multiples.items()]
    return (
        f"the gradient of step {step} (epoch {epoch}) {error}, and no cause explains it; as a multiple of the right "
        f"gradient it is: {', '.join(listed)}"
    )


def _weight_off(*, variable: str, step: int, epoch: int, relative_error: float, gradients: str = "", **_: Any) -> str:
    text = f"{variable} after step {step} (epoch {epoch}) is off by {relative_error:.2g} of its change"
    if gradients:
        text = f"the gradients add up to the right ones, but {text}"
    if gradients == "clipped":
        text += ": the optimizer clips each replica's gradient, and these gradients differ"
    return text


def _weights_change(*, factor: float, learning_rate: float, as_rate: float | None = None, **q: Any) -> str:
    times = f"the weights change {factor:.6g} times as much as they should"
    if as_rate is None:
        return (
            f"{times}, which explains {_what(q)}: the loss or the learning rate, {learning_rate:.4g}, has this factor"
        )
    return f"{times}, as with a learning rate of {as_rate:.4g} instead of {learning_rate:.4g}; this explains {_what(q)}"


def _weights_not_finite(**q: Any) -> str:
    step, epoch, variables = q["step"], q["epoch"], q["variables"]
    when = f"at the end of epoch {epoch}{q['training']}"
    if step is not None:
        when = f"in step {step:,} of epoch {epoch}{q['training']}" if step else "before the first step"
    first = ""
    if q["stage"]:
        against = f", where {q['other']} has {q['other_value']}" if q["other_value"] else ""
        place = f" of step {q['training_step']:,} of the training" if step is None and q["training_step"] else ""
        first = f"first {_first_value(q['stage'], q['where'])}{place}: {q['value']}{against}; "
    counts = f"{len(variables)} of {q['of']} variables" if q["of"] > 1 else "the only variable"
    after = f"after it {counts} of {q['side']} are NaN or infinite ({some(variables)}), those of {q['other']} are not"
    return f"{when}, {first}{after if variables else 'the weights stay finite'}"


def _first_value(stage: str, where: str) -> str:
    if not where:
        return f"the {stage}"
    if stage == STATE or where == LEARNING_RATE:
        return where
    joined = {INPUTS: f"the {where}", PREDICTIONS: f"the output of layer {where}"}
    return joined.get(stage, f"the {stage} of {where}")


def _metric_not_finite(*, epoch: int, where: str, values: Mapping[str, str], training: str, **q: Any) -> str:
    told = " and ".join(f"{value} with {name}" for name, value in values.items())
    inside = ""
    if q["stage"]:
        first = _first_value(q["stage"], q["first"])
        inside = f"; first {first} of step {q['training_step']:,} of the training: {q['value']}"
    return f"{where} of epoch {epoch}{training} is {told}{inside}"


def _script_flag(
    *, training: Any = False, by_fit: bool, side: str, other: str, layer: str = "the model", call: int = 0, **_: Any
) -> str:
    how = "without training=" if training == "not given" else f"with training={training}"
    how = f"{how} (call {call} of the step)" if call else how
    why = ": fit passes it only to a model whose call() takes it" if by_fit else ""
    return f"{side} calls {layer} {how}, {other} with training=True{why}"


def _script_limits(
    *,
    limited: str,
    limit: float,
    side: str,
    other: str,
    replicas: int,
    clipping: Mapping[str, float],
    other_clipping: Mapping[str, float],
    **_: Any,
) -> str:
    own, others = (", ".join(f"{key}={value:g}" for key, value in each.items()) for each in (clipping, other_clipping))
    each = " on each replica" if replicas > 1 else ""
    then = f", and its optimizer clips by {own}" if own else ""
    does = f"clips by its optimizer's {others}" if others else "does not"
    return f"{side} limits {limited} to {limit:.4g}{each} before it applies the gradients{then}; {other} {does}"


def _value(setting: Any) -> str:
    """A setting as it is written in code: an object of Keras by its class and the numbers that it was made with."""
    if isinstance(setting, Mapping) and "class_name" in setting:
        options = dict(setting.get("config") or {})
        return f"{setting['class_name']}({', '.join(f'{key}={_value(value)}' for key, value in options.items())})"
    return f"{setting:.10g}" if isinstance(setting, float) else str(setting)


def _script_settings(
    *, side: str, optimizer: str, settings: Mapping[str, Sequence[Any]], variables: Sequence[str] = (), **_: Any
) -> str:
    shown = ", ".join(f"{key}={_value(own)} instead of {_value(right)}" for key, (own, right) in settings.items())
    return f"{side}'s {optimizer} has {shown}" + (f" for {some(list(variables))}" if variables else "")


def _script_by_hand(*, side: str, other: str, optimizers: Sequence[str], rates: Sequence[float], **_: Any) -> str:
    does = ["subtracts" if rate > 0 else "adds" for rate in rates]
    own, right = (f"({optimizer or 'by hand'})" for optimizer in optimizers)
    verb = "" if does[0] == does[1] else f"{does[1]} "
    first, second = (f"{abs(rate):.3g} times" for rate in rates)
    return f"{side} {does[0]} {first} the gradient {own}, {other} {verb}{second} {right}"


def _steps_made(*, steps: Mapping[str, int], **_: Any) -> str:
    (one, first), (other, second) = steps.items()
    return f"{one} makes {first:,} steps, {other} {second:,}"


def _reported(lacking: str, *, joined: str = ": ") -> Callable[..., str]:
    """The sentence on a reported loss that follows from what is lacking; one on validation names the other side."""

    def text(*, metric: str, epoch: int, value: float, right: float, **q: Any) -> str:
        shown = f"{metric} in epoch {epoch} is {value:.6g}"
        if "other" in q:
            return f"{shown}, and {right:.6g} in {q['other']}: {SENTENCES.format(lacking, it='it is ', **q)}"
        expected = f"the mean over its {q['examples']:,.0f} examples is {right:.6g}"
        return f"{shown}{joined}{SENTENCES.format(lacking, it='', **q)}; {expected}"

    return text


def _script_other_metric(
    *, metric: str, side: Mapping[str, Any], other: str, expected: Mapping[str, Any], **_: Any
) -> str:
    own, right = (
        f"{each['metric_class']} of labels {_shape(each['labels'])} and predictions {_shape(each['predictions'])}"
        for each in (side, expected)
    )
    return f"{metric} is {own}; in {other} it is {right}"


def _shape(shape: Sequence[int | None]) -> str:
    return f"[{', '.join('n' if size is None else str(size) for size in shape)}]"


_SHARE = (
    "1/{replicas} of the {alone:?examples' }loss, on {replicas} replicas{alone:?, and has all of the layers' losses}"
    "{divided:? (Keras's loss object divides by the number of replicas inside strategy.run)}"
)
_LACKS = "it lacks the model's own losses, {penalty:.6g}"
_SO_FAR = "{metric} in epoch {epoch} is {value:.6g}, the mean over all epochs so far"

TEXTS: Mapping[str, str | Callable[..., str]] = {
    "several": lambda parts, **_: "; ".join(map(said, parts)),
    # How the loss is put together
    "gradients-times-replicas": "every gradient is {replicas} times the right one, on {replicas} replicas",
    "gradients-by-replicas": "every gradient is 1/{replicas} of the right one, on {replicas} replicas",
    "example-weight": "every example has weight {divisor:1|1/{divisor:.6g}}, whatever the size of its batch",
    "short-batch-as-full": "an example of a short batch counts as if the batch were full",
    "last-batch-as-full": _last_as_full,
    "loss-factor": "the loss has a constant factor of {factor:.6g}",
    "gradients-factor": "every gradient has a constant factor of {factor:.6g}, and the loss agrees: the factor comes "
    "between tape.gradient and apply_gradients",
    "loss-not-scaled": "the loss is not scaled, but the optimizer divides every gradient by the loss scale, "
    "{loss_scale:,.0f}",
    "gradients-not-unscaled": "the loss is scaled, but its gradients are not divided by the loss scale, "
    "{loss_scale:,.0f}, before the update",
    "even-weights": "every example of a batch has the same weight, even if the batch does not split evenly over the "
    "replicas",
    "strategy-unused": "strategy.run is never called: one replica computes the whole batch; fit averages the replicas' "
    "means",
    "no-layer-losses": "the gradient does not include the layers' losses",
    "layer-losses-left-out": "the gradient leaves out {numbers:loss|losses} {numbers:some} of the layers' {of}",
    "layer-loss-left-out": "the gradient of {variables:some} does not include its layer's loss",
    "layer-losses-times-replicas": "the layers' losses have {replicas} times the right weight, on {replicas} replicas",
    "probabilities-as-logits": "the model's probabilities are taken as logits, since the experiment's loss has "
    "from_logits=True; in {reference}'s graph Keras finds the logits behind the softmax or sigmoid",
    "other-from-logits": "the loss is computed with from_logits={from_logits}, the experiment's with "
    "from_logits={expected}",
    "applied-twice": "the loss, which takes logits, is given {function}(predictions): {function} is applied twice",
    "no-label-smoothing": "the loss has no label smoothing, the experiment's has {expected:g}",
    "mask-unused": "padded positions count in the loss like any other: the mask is not used",
    "mask-lost": "the mask of {layers:some} is lost, so later layers see the padding",
    "output-weight": "the loss of output {output} has weight 1 instead of {expected:g}, {factor:.6g} times as much",
    "output-weights": _output_weights,
    "micro-batches-summed": "the gradients of micro-batches of {examples} are added up, not averaged: {factor} times "
    "too large",
    "micro-batches-by-constant": "the sum over micro-batches of {examples} is divided by {divisor}, also where a batch "
    "has fewer",
    "labels-broadcast": "{output:?of output {output}, }labels [n] minus predictions [n, 1] gives [n, n]: every label "
    "is compared with every prediction",
    "sample-weights-unused": "every example counts the same: the sample weights are not used",
    "class-weights-unused": "every example counts the same: the experiment's class weights are not used",
    "no-weights-used": "every example counts the same: the experiment's class weights are not used, and neither are "
    "the sample weights",
    # The step: forward pass, clipping, reduction
    "inference-gradient": "the gradient is that of a model called with training=False",
    "inference-layers": "{layers:some} ({layer_class}) {layers:runs|run} with training=False",
    "gradients-clipped": "gradients are clipped by {by} at {limit:.6g}{when:?, {when} they are summed over the "
    "replicas}",
    "clipped-when": "gradients are clipped {when} they are summed over the replicas",
    "not-clipped": "gradients are not clipped; the experiment's optimizer has {expected}",
    "other-clipping": "the loop's optimizer has {options:or no clipping}, the experiment's has {expected:or no "
    "clipping}",
    "own-gradients": "every replica is updated with its own gradient only, so the replicas' weights diverge",
    "first-gradient": "only the first replica's gradient is used",
    "weights-never-change": _never_change,
    "no-gradient": "{output:?the loss of output {output} is left out: }{variables} {variables:gets|get} no gradient "
    "or no update",
    # Examples, initial weights, validation
    "batch-size": "a full batch has {examples} examples, but the global batch size is {expected}",
    "batches": _batches,
    "last-batch-dropped": "the last batch of each epoch is never trained on{last:?, {last} of {examples:,} examples}",
    "foreign-variables": "the optimizer was applied to {count} variables that do not belong to the model from "
    "run.build()",
    "foreign-in-loss": "the loss is computed from variables that do not belong to the model from run.build(): "
    "{variables:some}",
    "not-as-built": "before the first step {count} {count:variable is|variables are} not as built, {variable} by up "
    "to {gap:.3g}",
    "validation-updates": "after the last step of epoch {epoch}, {updates} updates follow, one for each batch of "
    "validation",
    "changed-by-validation": "{variables} {variables:is|are} not the same before and after validation",
    "passes": "each step computes predictions for its batch {times} times",
    "own-order": "it takes the experiment's examples in an order of its own",
    "other-order": "the examples are in another order",
    "other-labels": "the labels are not those of the examples",
    "labels-apart": "{examples:,} of {of:,} examples are trained on with another one's label",
    "several-batches": "each update is made from {batches} batches of {examples} examples",
    "own-batch-size": "its batches have {examples} examples, but the global batch size is {expected}",
    "repeats": "in epoch {epoch}, {repeats:,} of its {of:,} examples are repeats{never:?, and {never:,} of all "
    "{of_all:,} are never seen}",
    "never-seen": "{never:,} of all {of_all:,} examples are never seen in epoch {epoch}",
    "same-order": "the second epoch has the order of the first",
    "empty-replica-gradient": "the gradient of step {step}, whose batch leaves one replica empty, "
    "{relative_error:finite has a relative error of {relative_error:.2g}|is NaN}; all others are right",
    "empty-replica-metric": "{metric} is NaN if a batch leaves one replica empty",
    # The optimizer and callbacks
    "other-optimizer": "the loop's optimizer is {optimizer}, the experiment's {expected}",
    "slots-emptied-per-epoch": "the optimizer's slots are empty again when an epoch begins",
    "slots-emptied-in-epochs": "the optimizer's slots are empty again in each epoch",
    "setting": "{name} is {value!s} in the loop, {expected!s} in the experiment",
    "learning-rate": _learning_rate,
    "applied-again": "the optimizer is applied {times} times in each step, each time with the same gradients",
    "applied-in-parts": "the optimizer is applied {times} times in each step, and counts as many steps",
    "begins-anew": "the optimizer begins anew in step {step} (epoch {epoch}): its slots are empty again",
    "begins-anew-per-epoch": "the optimizer begins anew with each epoch: its slots are empty again",
    "counted-anew-per-epoch": "the optimizer's steps are counted from 1 again in each epoch",
    "iterations": "the optimizer's iterations are {iterations} before its steps, not 0, 1, 2 and so on",
    "decayed": "weight decay {left_out:leaves out|also applies to} {variables}",
    "as-with-nesterov": "the weights change as with nesterov={nesterov}",
    "as-with": "the weights change as with {name} {value:g}; the experiment's {optimizer} has {expected:g}",
    "formula-damped": "the velocity is momentum · v + (1 - momentum) · g, not momentum · v + g",
    "formula-uncorrected": "Adam's bias correction is missing",
    "formula-mean-uncorrected": "Adam's mean of gradients is not divided by 1 - beta_1^t",
    "formula-square-uncorrected": "Adam's mean of squares is not divided by 1 - beta_2^t",
    "formula-epsilon-last": "epsilon is added to the root of the corrected mean of squares; Keras adds it before that "
    "is corrected",
    "formula-epsilon-inside": "epsilon is added under the root; Keras adds it to the root{epsilon:? (epsilon is "
    "{epsilon:g})}",
    "formula-epsilon-inside-uncorrected": "epsilon is added under the root; Keras adds it to the root{epsilon:? "
    "(epsilon is {epsilon:g})}",
    "rate-of-epoch-from-0": "the learning rate is that of the schedule at the epoch's number, from 0",
    "rate-of-epoch": "the learning rate is that of the schedule at the epoch's number, not at the step's",
    "rate-per-epoch": "the learning rate changes once per epoch, not with every step",
    "rate-of-next-step": "the learning rate is that of the step after: the schedule counts steps from 0",
    "rate-of-step-before": "the learning rate is that of the step before",
    "rate-of-first-step": "the learning rate stays {learning_rate:exact}, that of the first step",
    "rate-stays": "the learning rate stays {learning_rate:exact}; it should be {expected:each exact}",
    "callbacks-set-rate": "{callbacks:some} of {reference} set the learning rate to {expected:exact} from step {step} "
    "(epoch {epoch}) on; here it stays {learning_rate:exact}",
    "averages-not-taken": "after the last epoch {reference} gives {variables:some} the moving averages that the "
    "optimizer keeps (use_ema), {side} does not",
    "ends-earlier": "{reference} ends after epoch {expected} ({callbacks:some}), {side} after epoch {epochs}",
    "ended": "{reference} ended after epoch {expected} ({callbacks:some}), {side} after epoch {epochs}",
    "changed-after-training": "after the last epoch {variables:some} change once more under {reference} "
    "({callbacks:some})",
    "changed-at-epoch-end": "at the end of epoch {epoch} {variables:some} change once more under {reference} "
    "({callbacks:some})",
    "callbacks-changed-rate": "{callbacks:some} of {reference} changed the learning rate from {before:exact} to "
    "{learning_rate:exact} for epoch {epoch}",
    "callbacks-changed-weights": "at the end of epoch {epoch} {callbacks:some} of {reference} changed the weights "
    "outside of any step",
    "epoch-ends-early": "epoch {epoch} has {steps:,} steps, that of {reference} has {expected:,}; all weights are "
    "equal until there, so {left:the last batch is|the last batches are} left out",
    # Reported numbers
    "includes-earlier-epochs": "{metric} includes the earlier epochs",
    "sum-over-epochs": "{metric} is a sum over all epochs, divided by the number of batches in one epoch",
    "includes-training": "{metric} includes the epoch's training examples",
    "includes-validation": "{metric} includes the examples of the validation before",
    "includes-everything": "{metric} includes all training and validation examples since the start",
    "other-metric": "{metric} is that of {metric_class}, and the experiment's is {expected}",
    "mean-over-batches": "{metric} is the mean over batches: a short batch counts as much as a full one",
    "mean-over-examples": "{metric} is the mean over the examples of an epoch; that of fit, of one of several outputs, "
    "is the mean over its batches, where a short one counts as much as a full one",
    "mean-of-batch-values": "{metric} is the mean of its values of each batch: a short batch counts as much as a full "
    "one",
    "last-batch": "{metric} is that of the epoch's last batch alone{replicas:?, the mean over its {replicas} replicas}",
    "loss-by-replicas": f"{{metric}} is {_SHARE}",
    "loss-times-replicas": "{metric} is {replicas} times the loss, on {replicas} replicas",
    "without-layer-losses": "{metric} does not include the layers' losses",
    "without-layer-loss": "{metric} leaves out loss {number} of the layers' {of}",
    "in-training-mode": "{metric} is computed with training=True",
    "first-validation-batches": "{metric} covers only the first {batches} of the check's {of} validation batches",
    "without-last-validation-batch": "{metric} leaves out the last validation batch",
    "validation-batches": "{metric} covers only {batches} of the check's {of} validation batches",
    "one-replica": "{metric} covers only replica {replica} of {replicas}",
    "metric-unweighted": "{metric} counts every example the same: the sample weights are not used",
    "after-update": "{metric} is computed with the weights that each step's update has made{training:?, by model(x, "
    "training=True)}",
    "metric-broadcast": "{metric} compares each label with the prediction of every example: labels [n, 1] against [n]",
    "as-trained": "{metric} {loss:is the loss|weights examples as in the loss} that is trained on, which is not the "
    "experiment's",
    "metric-off": "{metric} differs from the value recomputed from the weights{relative_error:finite  (relative error "
    "{relative_error:.2g})|: one of them is not finite}",
    # What no cause explains
    "ambiguous": _ambiguous,
    "other-epochs": lambda side, reference, epochs, expected, **_: (
        f"{side} trains {epochs} epoch(s), {reference} {expected}: check whether a callback or model.stop_training "
        "ends training"
        if epochs
        else f"{side} never calls run.end_epoch, so it has no epoch: call run.end_epoch(epoch, logs) at the end of each"
    ),
    "changed-last": "after the last epoch {reference}'s {variables} change once more (in a callback's on_train_end), "
    "{side}'s do not",
    "changed-after-last-step": "changed after the last step of epoch {epoch}: {variable}{others:? and {others} "
    "others}, by up to {gap:.3g}",
    "optimizer-steps": _optimizer_steps,
    "end-steps": "end_step was called {steps} times; the data set has {batches} batches",
    "gradient-off": _gradient_off,
    "gradients-off-together": "no single step's gradient is off, but all steps together do not match the right "
    "gradients",
    "gradient-factors": "all variables' gradients are the right ones times one number in each step: {factors:each .4g}",
    "update-off": "the weights after step {step} (epoch {epoch}) are not what the experiment's optimizer computes "
    "from the gradients passed to it: {relative_error:finite {relative_error:.2g} of the change, relative, is "
    "unexplained|it is not finite}",
    "weight-off": _weight_off,
    "weights-off": "the observed weights are not those that right gradients and the experiment's optimizer give: "
    "{relative_error:.2g} of the change, relative, is unexplained",
    "weights-change": _weights_change,
    "changed-between-steps": "{variables} {variables:changes|change} between steps {step} and {following}, not by an "
    "optimizer",
    "changed-after-update": "{variables:some} {variables:changes|change} after the update of step {step} (epoch "
    "{epoch}); {reference}'s {variables:does|do} not",
    "state-off": "{variable} after the forward pass of step {step} (epoch {epoch}) is not what the model computes "
    "from the batch: {gap:finite off by {gap:.3g}, where rounding explains {noise:.1g}|a random state, such as "
    "dropout's, has moved on more often or less often}",
    "hidden-gradients": "the weights are equal, but different gradients were passed to the optimizers",
    "apart": "each step is right, computed from the weights that it had, but something else changes {variable:or the "
    "weights}: rounding does not explain the gap",
    # Two scripts: the examples, the forward pass and callbacks
    "copies": "{side} has {variables:count} weights more than {other} ({variables:some}), of the shapes of "
    "{layers:some}, which {other} calls {times} times in a step",
    "script-ended": "{side} ended after epoch {epochs} ({callbacks:and})",
    "script-rate-changed": "{callbacks:and} changed the learning rate of {side} to {learning_rate:exact}; that of "
    "{other} is {other_rate:exact}",
    "script-lr": "{side} sets optimizer.lr to {lr:exact}, which changes nothing in Keras 3: its learning rate is still "
    "{learning_rate:exact}, that of {other} is {expected:exact}",
    "script-labels-apart": "{examples} of the {of} examples have another label than in {other}",
    "script-batch-size": "{other} has {expected} examples in a batch, {side} {examples}",
    "script-parts-of-update": "{side} makes an update of {parts} micro-batch{parts:|es} of {examples} examples each, "
    "{other} of {expected}",
    "updates-skipped": "until then {side} has left out {count} update{count:|s} and {other} {others}, as a "
    "LossScaleOptimizer does where gradients of float16 overflow, so that their steps have other batches; scale the "
    "loss in both (optimizer.scale_loss), or in neither",
    "tail-left-out": "{side} has the last {examples} examples of its epoch here, {other} begins the next epoch; "
    "{never:,} of {of_all:,} examples are left out",
    "rest-without-update": "{other} makes an update of the last {examples} examples of the epoch, {side} makes its "
    "next one only after {more} of the next epoch",
    "had-again": "{side} had the same {examples} examples in step {earlier_step}",
    "script-repeats": "{repeats} of the {of} examples of this epoch are repeats{never:?, and {never} of {of_all} are "
    "never seen}",
    "script-never-seen": "{never} of the {of_all} examples of this epoch are not seen",
    "script-frozen": "{variables:some}: {side}'s optimizer gets no gradient, and a layer that is not trainable "
    "predicts in inference mode",
    "script-flag": _script_flag,
    "script-layer-flag": _script_flag,
    # Two scripts: the loss, after the two losses
    "script-loss-factor": ": {factor:.6g} times as much, and so is the gradient of every variable",
    "script-data-loss-factor": ": without the model's own losses, {penalty:.6g}, it is {factor:.6g} times as much",
    "script-no-penalty": "; it lacks the model's own losses, {penalty:.6g}",
    "script-some-penalties": "; it lacks {losses} of the model's {of} own losses, {penalty:.6g}",
    "script-penalty-each": "; {side} adds {penalty:.6g} on each replica",
    "script-pairs": "; that of {side} is the mean over all pairs of a label and a prediction"
    "{labels:? (labels {labels!s}, predictions {predictions!s})}",
    "script-probabilities": ": the model gives probabilities, and from_logits=True says that they are logits. In a "
    "graph, such as {other}'s, Keras takes the logits from before the last activation; {side}'s loss takes the "
    "probabilities for logits",
    "script-from-logits": "; that of {side} is the one with from_logits={from_logits}"
    "{logits:?, and the predictions are no probabilities}",
    "script-unsmoothed": "; that of {side} is the one without label smoothing",
    "script-unmasked": "; that of {side} is the mean over all positions, also those that the model's mask leaves out",
    "script-unweighted": "; that of {side} is the one without sample weights or class weights",
    "script-loss-constant-denominator": ": {alone:?that of the examples is }{examples}/{full} of it, as this batch has "
    "{examples} examples, not {full}",
    "script-loss-summed": ": {alone:?that of the examples is }{examples} times as much, the number of examples in the "
    "batch",
    "script-loss-not-divided-by-replicas": ": {alone:?that of the examples is }{replicas} times as much, on "
    "{replicas} replicas",
    "script-loss-divided-twice": ": {alone:?that of the examples is }1/{replicas} of it, on {replicas} replicas",
    "script-losses-summed": ": {summing} takes the gradient of {losses} losses, not of their mean: that of their sum",
    # Two scripts: gradients, update and state
    "script-not-scaled": "the loss is {loss_scale:,.0f} times as large in {other} as in {side}, whose optimizer "
    "divides the gradients by that scale all the same",
    "script-not-unscaled": "the loss is scaled, but the gradients are {loss_scale:,.0f} times as large in {side} as in "
    "{other}: nothing divides them by the scale",
    "script-not-updated": "{variables:some}: {side} takes {variables:a gradient of it|gradients of them} that "
    "{variables:is|are} not zero, but does not change {variables:it|them}",
    "script-no-gradient": "{variables:some}: {side}'s optimizer gets no gradient",
    "script-zero-gradient": "{variables:some}: the gradient that {side}'s optimizer gets is zero",
    "script-first-replica": "{side} applies the gradients of the first replica only",
    "script-limits": _script_limits,
    "script-micro-batches": "{side} adds up the gradients of {factor} micro-batches and does not divide them by "
    "{factor}: each gradient is {factor} times that of {other}",
    "script-divided-twice": "{side} divides the gradients of {factor} micro-batches by {factor} twice: each is "
    "1/{factor} of that of {other}",
    "script-shapes": "the difference of shapes [n] and [n, 1] in the loss of {side} is [n, n]: each label is compared "
    "with the prediction of every example; {other} has no such difference",
    "script-pairs-next": "the loss of the next step is {next_loss:.6g} in {side}, the mean over all pairs of a label "
    "and a prediction, and {next_right:.6g} if each label has its own",
    "script-optimizer": "{side} uses {optimizer}, {other} {expected}",
    "script-schedule": "the learning rate is {expected:exact} in {other} ({schedule}), {learning_rate:exact} in {side}",
    "script-by-hand": _script_by_hand,
    "script-settings": _script_settings,
    "layer-settings": lambda layer, **q: _script_settings(optimizer=layer, **q),
    "script-kept-optimizer": "{side} begins with the weights of {other}, but with an {optimizer} at iteration "
    "{iterations:,}, not {expected:,}: it keeps the slots of the steps that it has made before",
    "script-without-momentum": "{side} subtracts {rate:.3g} times the gradient (by hand), without the momentum of "
    "{other}'s {optimizer}, which is {momentum:g}",
    "script-counted-more": "{side}'s {optimizer} counts {iterations:,} earlier steps, {other}'s {expected:,}: at the "
    "end of data of unknown size, Keras counts one more, which changes no weights",
    "script-new-optimizer": "{side} goes on with a new {optimizer}, whose slots are empty and iteration is 0",
    "script-changed-between": lambda variable, steps, **_: f"{variable} changed between steps {steps} and {steps + 1}",
    # Two scripts: what may explain a difference
    "optimizers-in-turn": "{side} uses {optimizers} optimizers in turn; each begins with empty slots and iteration 0",
    "not-repeated": _not_repeated,
    "batch-norm-per-replica": "{layer} takes its statistics from the examples of one replica, on {replicas} replicas "
    "from fewer: this differs by itself; BatchNormalization(synchronized=True) takes them from all",
    "dropout-per-replica": "{layer} draws its mask for each of {replicas} replicas, not once for the whole batch: this "
    "differs by itself; to compare the rest, set its rate to 0",
    "clips-per-replica": "both limit gradients; on {replicas} replicas, each limits its own before they are added up: "
    "limit the sum instead, in a tf.distribute merge_call or after all_reduce",
    "batch-norm-per-micro-batch": "{layer} takes its statistics from each of the {count} micro-batches of {side}, not "
    "from the whole batch: this differs by itself",
    "dropout-per-micro-batch": "{layer} draws its mask for each of the {count} micro-batches of {side}, not once for "
    "the whole batch: this differs by itself; to compare the rest, set its rate to 0",
    "clips-per-micro-batch": "{side} limits gradients and makes an update of {count} micro-batches: limit what they "
    "add up to, and not the gradients of each",
    "equal-without-xla": "without the XLA that {sides:some} asks for (jit_compile=True), step {step:,} is the same in "
    "both up to rounding: what differs is what XLA makes of it, such as the random numbers of dropout",
    "applied-times": "{side} applies its optimizer {times} times to the gradients of one step",
    "never-changes": "the weights of {side} never change",
    "drawn": "both call {functions:some}, which gives other numbers in a graph than in an eager loop, whatever the "
    "seed: draw from a keras.random.SeedGenerator, or with tf.random.stateless_normal, to compare the rest",
    "drawn-otherwise": "both call {functions:some}, which gave other numbers in this step, as it does in an eager "
    "loop, or in a graph of other operations, whatever the seed: draw from a keras.random.SeedGenerator, or with "
    "tf.random.stateless_normal, to compare the rest",
    "drawn-more-often": "before this step {layer} has drawn random numbers {times:,} times in {side} and "
    "{other_times:,} times in {other}, so the next ones differ: one side calls the model more often, such as for "
    "validation, or with training=True there, where Dropout draws only then; do the same in both",
    "unknown-examples": "{side} was not seen to have {examples:,} of the {of:,} examples that {other} has in "
    "steps {first:,} to {last:,}",
    "split-off": "{side} keeps the last {share:.0%} of its examples for validation (validation_split={share:g})",
    "reordered": "both see the same {examples:,} examples in this epoch, in another order; give both the same order",
    "predictions-as-labels": "{side} gives its loss the predictions as y_true: a loss takes the labels first, then the "
    "predictions",
    "model-begins-apart": "{side} calls {model} with other weights than {other}: look at what has set them before this "
    "step",
    "divided-by-weights": "{side} divides the weighted losses by the sum of the weights, {other} by their number, as "
    "Keras does",
    "layers-alone": "only {side} calls {classes:some} in this step",
    "limits-alone": "only {side} calls a function that limits gradients",
    "predictions-squashed": "the predictions of {side} are the {function} of those of {other}: {side} gives "
    "probabilities, {other} logits",
    "calls-alone": "only {side} calls {functions:some}",
    "gradients-have-factor": "every gradient of {side} is {factor:.6g} times that of {other}, and the loss is the "
    "same: the factor comes between tape.gradient and apply_gradients",
    "gradients-kept": "the gradients of {side} in step {step:,} are those of {other} and its own of the step before: "
    "set what adds them up back to zero after each update",
    "more-gradients": "{side}'s optimizer is given gradients of {variables:some}, {other}'s is not",
    "apart-by-weights": "what the gradients of {other} and {side} differ by is a multiple of the weights themselves "
    "({variables:some}), as of an L2 penalty, which the loss of both has: look for tf.stop_gradient, or a penalty "
    "that is computed outside of the tape",
    "weights-added": "the gradients of {side} are those of {other} plus {factor:.4g} times the weights "
    "({variables:some}), as when weight decay or an L2 penalty is added by hand"
    "{penalized:, or those of model.losses twice|; {other} has neither in its loss}",
    "steps-made": _steps_made,
    "follows": "{side} differs from step {step:,} of epoch {epoch} on, and this may follow from that{state:?, or that "
    "from this, which is compared at the end only}",
    "reseeded": "after step {step:,} {side} goes on with another model of equal weights, whose layers draw other "
    "random numbers (dropout): saving a model, or copying its weights, keeps no state of them",
    # Two scripts: reported numbers
    "running-means": "{metrics:and} in each epoch {metrics:is|are} the mean over all epochs so far of what {other} "
    "reports",
    "counts-all-epochs": "at the end of epoch {epochs} {metrics:and} {metrics:is|are} the mean of {counted:,.0f} "
    "values, and after the first of {first:,.0f}: those of all epochs so far",
    "called-in-training-mode": "the model is called with training=True outside of the training step; in epoch {epoch}, "
    "from equal weights, {metric} is {value:.6g}, and {right:.6g} in {other}",
    "mixed-means": "{metrics:and} in each epoch {metrics:is|are} the mean over training and validation: the metric's "
    "state is not reset between them",
    "reported-loss-not-reduced": _reported(f"in every epoch it is {_SHARE}"),
    "reported-loss-without-regularization": _reported(_LACKS),
    "reported-validation-loss-without-regularization": _reported(_LACKS),
    "reported-loss-averaged-over-batches": _reported(
        "{it}the mean over {batches} batches, of which the last has {last:.0f} examples", joined=", "
    ),
    "reported-last-batch-only": _reported("that of the epoch's last batch alone", joined=", "),
    "reported-metrics-not-reset": _SO_FAR,
    "script-other-metric": _script_other_metric,
    "loss-never-updated": "{side} reports 0 as the loss of epoch {epoch}, and the losses of its steps are not 0: "
    "nothing updates the metric that it is read from; a train_step does so itself, with update_state(loss) of the "
    "metric of self.metrics that is called loss",
    "loss-after-update": "loss in epoch {epoch} is {value:.6g}, the mean of the losses that the batches have after "
    "their update; before it, as fit reports it, it is {expected:.6g}",
    "called-again": "{side} calls the model again with the examples of a step after its update ({steps} of {of} "
    "steps); numbers of these predictions are those of the updated weights, and fit's are not",
    "share-of-pairs": "{metric} in each epoch is the share of all pairs of a label and a prediction of a batch that "
    "are equal: labels of shape [n] meet predictions of shape [n, 1]; tf.reshape one of them",
    # Values that are not finite on one side only
    "weights-not-finite": _weights_not_finite,
    "metric-not-finite": _metric_not_finite,
}
"""A sentence for each kind of measurement: its quantities put in, or a function of them."""
