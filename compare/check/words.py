"""The sentences of the check, one for each kind of measurement: made to be shown, and read by no program."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from compare.check.measurement import Measurement
from compare.check.phrases import SENTENCES, SHARE, is_finite, what_is_explained
from compare.check.script_texts import OF_SCRIPTS
from compare.records.metrics_csv import shortest


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
    precision = f"to {max(1, int(-math.log10(q['residual'])))} digits" if q["residual"] else "exactly"
    off = f"{100 * float(format(q['otherwise'], '.2g')):,g}%" if is_finite(q["otherwise"]) else ""
    without = f"one without it is off by {off}" if off else "nothing else does"
    return f"{text}; a replay with this mistake gives {what_is_explained(q)} {precision}, {without}"


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
    "begun": lambda text, q: f"{text}; both begin with {q['begun']:.6g}, and the rate is set later",
    "set_later": lambda text, q: f"{text}; it begins with {q['set_later']:.6g}, and the rate is set later",
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


# The check


def _last_as_full(*, last: int, global_batch_size: int, examples: int, **_: Any) -> str:
    full, rest = divmod(examples, global_batch_size)
    run = f"{examples:,} examples are {full:,} × {global_batch_size}" + (f" + {rest}" if rest else "")
    return (
        f"each of the {last} examples of an epoch's last batch counts 1/{global_batch_size}, as if the batch were full "
        f"({run})"
    )


def _never_change(*, zero: str | None, batch: int = 0, **_: Any) -> str:
    why = {
        None: f"no optimizer is ever applied (the check's batches have {batch:,} examples at most)",
        "updates": "its updates are zero",
        "gradients": "all gradients are zero",
        "losses": "its loss is 0 in every step, and so are all gradients",
    }
    return f"the weights never change: {why[zero]}"


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
        "one epoch late": ": in the check's second epoch it is that of the first",
    }
    return text + patterns[pattern]


def _gradient_off(
    *, step: int, epoch: int, relative_error: float, multiples: Mapping[str, float | str], **_: Any
) -> str:
    error = f"has a relative error of {relative_error:.2g}" if is_finite(relative_error) else "is not finite"
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
        of_which = f"the loss or the learning rate, {learning_rate:.4g}, has this factor"
        return f"{times}, which explains {what_is_explained(q)}: {of_which}"
    as_with = f"as with a learning rate of {as_rate:.4g} instead of {learning_rate:.4g}"
    return f"{times}, {as_with}; this explains {what_is_explained(q)}"


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
    "even-weights": "every example has the same weight, even in a batch that splits unevenly over the replicas, where "
    "fit gives the examples of the smaller part more",
    "strategy-unused": "strategy.run is never called: one replica computes the whole batch; fit averages the replicas' "
    "means",
    "no-layer-losses": "the gradient does not include the layers' losses",
    "layer-losses-left-out": "the gradient leaves out {numbers:loss|losses} {numbers:some} of the layers' {of}",
    "layer-loss-left-out": "the gradient of {variables:some} does not include its layer's loss",
    "layer-losses-times": "the layers' losses have {factor:.6g} times the right weight",
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
    "output-weights": lambda expected, **_: (
        "the outputs' losses all have weight 1, not "
        + ", ".join(f"{name} {weight:g}" for name, weight in expected.items())
    ),
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
    "uses-one-replica": "{side} never calls strategy.run and does not distribute its data, so it trains on one "
    "replica, and the reference on {replicas}: what depends on a replica's batch, such as BatchNormalization and "
    "Dropout, differs",
    # The step: forward pass, clipping, reduction
    "frozen-layers": "{layers:some} {layers:runs|run} with training=False, for the loop sets trainable = False: a "
    "frozen BatchNormalization always does",
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
    "callbacks-not-run": "{side} does not run the experiment's callbacks ({callbacks:some})",
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
    "last-batch": "{metric} is that of the epoch's last batch alone{replicas:?, the mean over its {replicas} replicas}",
    "loss-by-replicas": f"{{metric}} is {SHARE}",
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
    "as-trained": "{metric} {loss:is the loss|weights examples as in the loss} that is trained on: once that is "
    "right, so is this",
    "metric-off": "{metric} differs from its value with the model's weights{relative_error:finite  (relative error "
    "{relative_error:.2g})|: one of them is not finite}",
    # What no cause explains
    "ambiguous": lambda causes, **q: (
        f"{' or '.join(map(' and '.join, causes))} would explain {what_is_explained(q)} equally well, so no cause is "
        "named"
    ),
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
    "optimizer-steps": lambda steps, batches, **_: (
        f"the optimizer steps are {', '.join(f'{count} in epoch {epoch}' for epoch, count in steps.items())}; the data "
        f"set has {batches} batches in all"
    ),
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
    **OF_SCRIPTS,
}
"""A sentence for each kind of measurement: its quantities put in, or a function of them."""
