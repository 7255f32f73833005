"""The sentences on what two scripts show, by their kind."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from compare.check.phrases import SENTENCES, SHARE
from compare.check.stages import LEARNING_RATE
from compare.check.step_values import INPUTS, PREDICTIONS, STATE
from compare.naming import some
from compare.records.metrics_csv import shortest


def _not_repeated(side: str, step: int, made: int, error: str = "") -> str:
    again = f"{side} was run again to look inside step {step:,}, and"
    if error:
        return f"{again} failed then: {error}; compare again"
    left = "what it leaves on disk, such as a checkpoint, may change its next run; remove that, and compare again"
    return f"{again} made {made:,} steps then: {left}"


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


def _script_limits(*, clipping: Mapping[str, float], other_clipping: Mapping[str, float], **q: Any) -> str:
    own, others = (", ".join(f"{key}={value:g}" for key, value in each.items()) for each in (clipping, other_clipping))
    limit = f"{q['limit']:.4g}{' on each replica' if q['replicas'] > 1 else ''}"
    then = f", and its optimizer clips by {own}" if own else ""
    does = f"clips by its optimizer's {others}" if others else "does not"
    return f"{q['side']} limits {q['limited']} to {limit} before it applies the gradients{then}; {q['other']} {does}"


def _value(setting: Any) -> str:
    """A setting as it is written in code: an object of Keras by its class and the numbers that it was made with."""
    if isinstance(setting, Mapping) and "class_name" in setting:
        options = dict(setting.get("config") or {})
        return f"{setting['class_name']}({', '.join(f'{key}={_value(value)}' for key, value in options.items())})"
    return f"{float(shortest(setting)):.10g}" if isinstance(setting, float) else str(setting)


def _known(value: Any) -> str:
    """A value of a run, or the classes of its parts."""
    if isinstance(value, list):
        return ", ".join(value) or "none"
    return "unset" if value in ("", None) else str(value)


def _script_settings(
    *, side: str, optimizer: str, settings: Mapping[str, Sequence[Any]], variables: Sequence[str] = (), **q: Any
) -> str:
    shown, others = (
        ", ".join(f"{key}={_value(own)} instead of {_value(right)}" for key, (own, right) in each.items())
        for each in (settings, q.get("others", {}))
    )
    of = f" for {some(list(variables))}" if variables else ""
    also = f"; also {others}, which alone would hardly change this step" if others else ""
    return f"{side}'s {optimizer} has {shown}{of}{also}"


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
        rest = f"; the rest is {' and '.join(q['rest'])}" if q.get("rest") else ""
        if "other" in q:
            return f"{shown}, and {right:.6g} in {q['other']}: {SENTENCES.format(lacking, it='it is ', **q)}{rest}"
        expected = f"the mean over its {q['examples']:,.0f} examples is {right:.6g}"
        return f"{shown}{joined}{SENTENCES.format(lacking, it='', **q)}{rest}; {expected}"

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


_LACKS = "it lacks the model's own losses, {penalty:.6g}"
_SO_FAR = "{metric} in epoch {epoch} is {value:.6g}, the mean over all epochs so far"


OF_SCRIPTS: Mapping[str, str | Callable[..., str]] = {
    # Two scripts: the examples, the forward pass and callbacks
    "copies": "{side} has {variables:count} weights more than {other} ({variables:some}), of the shapes of "
    "{layers:some}, which {other} calls {times} times in a step",
    "script-ended": "{side} ended after epoch {epochs} ({callbacks:and})",
    "script-rate-changed": "{callbacks:and} changed the learning rate of {side} to {learning_rate:exact}; that of "
    "{other} is {other_rate:exact}",
    "script-lr": "{side} sets optimizer.lr (in the end to {lr:exact}), which changes nothing in Keras 3: its learning "
    "rate is still {learning_rate:exact}, that of {other} is {expected:exact}",
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
    "micro-batches-counted-anew": "{other} counts micro-batches on where an epoch ends and makes an update of its last "
    "and the next one's first ones, {examples} examples; {side} counts anew in each epoch and makes its update only "
    "after {more} more",
    "had-again": "{side} had the same {examples} examples in step {earlier_step}",
    "script-frozen": "{variables:some}: {side}'s optimizer gets no gradient, and a layer that is not trainable "
    "predicts in inference mode",
    "script-flag": _script_flag,
    "script-layer-flag": _script_flag,
    # Two scripts: the loss, after the two losses
    "script-loss-factor": ": {factor:.6g} times as much, and so is the gradient of every variable",
    "script-data-loss-factor": ": without the model's own losses, {penalty:.6g}, it is {factor:.6g} times as much",
    "script-no-penalty": "; it lacks the model's own losses, {penalty:.6g}",
    "script-penalty-times": "; it has {factor:g} times the model's own losses, {penalty:.6g}",
    "script-half-penalty": "; it has half of the model's own losses, {penalty:.6g} in place of {whole:.6g}",
    "script-some-penalties": "; it lacks {losses} of the model's {of} own losses, {penalty:.6g}",
    "script-penalty-each": "; {side} adds {penalty:.6g} on each replica",
    "script-pairs": "; that of {side} is the mean over all pairs of a label and a prediction"
    "{labels:? (labels {labels!s}, predictions {predictions!s})}",
    "script-probabilities": ": the model gives probabilities, and from_logits=True says that they are logits. In a "
    "graph, such as {other}'s, Keras takes the logits from before the last activation; {side}'s loss takes the "
    "probabilities for logits",
    "script-from-logits": "; {side} takes the predictions for {from_logits:logits|probabilities}, as with "
    "from_logits={from_logits}{logits:?, and they are no probabilities}",
    "script-squashed": "; that of {side} is the loss of {function}(predictions), which it takes for logits",
    "script-unsmoothed": "; that of {side} is the one without label smoothing, which is {label_smoothing:g} in {other}",
    "script-mask-zeros": "; that of {side} is divided by the number of all positions, of which the model's mask leaves "
    "{counted:.0%}",
    "script-mask-by-hand": "; that of {side} is the mean over all {positions:,} positions, also over the {left_out:,} "
    "of label {label}, which {other} leaves out",
    "script-unmasked": "; that of {side} is the mean over all positions, also those that the model's mask leaves out",
    "script-mean-unweighted": "; that of {side} is the mean without sample weights, that of {other} the weighted sum",
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
    # Two runs
    "changed": lambda side, what, now, then: f"{side} has {what} {_known(now)}, not {_known(then)}",
    "changed-files": "{files:and} {files:has|have} changed since the recorded run",
    "nothing-changed": "{same:and} are as in the recorded run: look for what changed in other files, or whether either "
    "run can be repeated",
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
    "stage-unexplained": "what makes the {stage} differ in that step is not known",
    "not-looked-for": "the search for a cause failed ({error})",
    "batch-norm-per-replica": "{layer} takes its statistics from the examples of one replica, on {replicas} replicas "
    "from fewer: this differs by itself; BatchNormalization(synchronized=True) takes them from all",
    "dropout-per-replica": "{layer} draws its mask for each of {replicas} replicas, not once for the whole batch: this "
    "differs by itself; to compare the rest, set its rate to 0",
    "clips-per-replica": "both limit gradients; on {replicas} replicas, each limits its own before they are added up: "
    "limit the sum instead, in a tf.distribute merge_call or after all_reduce",
    "batch-norm-per-micro-batch": "{layer} takes its statistics from each of the {count} micro-batches of {side}, not "
    "from the whole batch: this differs by itself; to compare the rest, set its trainable to False in both",
    "dropout-per-micro-batch": "{layer} draws its mask for each of the {count} micro-batches of {side}, not once for "
    "the whole batch: this differs by itself; to compare the rest, set its rate to 0",
    "clips-per-micro-batch": "{side} limits gradients and makes an update of {count} micro-batches: limit what they "
    "add up to, and not the gradients of each",
    "equal-without-xla": "without the XLA that {sides:and} {sides:asks|ask} for (jit_compile=True), step {step:,} is "
    "the same in both up to rounding: what differs is what XLA makes of it, such as the random numbers of dropout",
    "applied-times": "{side} applies its optimizer {times} times to the gradients of one step",
    "never-changes": "the weights of {side} never change",
    "drawn": "both call {functions:some}, which gives other numbers in a graph than in an eager loop, whatever the "
    "seed: draw from a keras.random.SeedGenerator, or with tf.random.stateless_normal, to compare the rest",
    "drawn-otherwise": "both call {functions:some}, which gave other numbers in this step, as it does in an eager "
    "loop, or in a graph of other operations, whatever the seed: draw from a keras.random.SeedGenerator, or with "
    "tf.random.stateless_normal, to compare the rest",
    "drawn-in-other-shape": "{side} draws numbers of shape {shape} by {function} in this step, {other} of shape "
    "{other_shape}, so the numbers differ",
    "drawn-in-validation": "before this step {layer} has drawn random numbers {times:,} times in {side} and "
    "{other_times:,} times in {other}, so the next ones differ: {side} calls its model with training=True outside of "
    "the training step",
    "called-in-training-times": "{side} calls the model {times:,} {times:time|times} with training=True in this step, "
    "{other} {other_times:,} {other_times:time|times}; each call moves the statistics of batch normalization",
    "drawn-without-data": "before this step {layer} has drawn random numbers {times:,} times in {side} and "
    "{other_times:,} times in {other}, so the next ones differ: at the end of each epoch over data of unknown size, "
    "fit makes one more step, without data; dataset.apply(tf.data.experimental.assert_cardinality(steps)) says where "
    "an epoch ends",
    "drawn-more-often": "before this step {layer} has drawn random numbers {times:,} times in {side} and "
    "{other_times:,} times in {other}, so the next ones differ: one side calls the model more often, such as for "
    "validation, or with training=True there, where Dropout draws only then; do the same in both",
    "unknown-examples": "{side} was not seen to have {examples:,} of the {of:,} examples that {other} has in "
    "steps {first:,} to {last:,}",
    "split-off": "{side} keeps the last {share:.0%} of its examples for validation (validation_split={share:g})",
    "epoch-ended-first": "in {side}, fit calls {data}.on_epoch_end before its first epoch, too, as Keras 3 does; "
    "to have the same examples, a loop has to call it there as well",
    "micro-batches-alike": "{side} takes the mean of the losses of micro-batches of {sizes:and} examples, {loss:.6g}, "
    "as if they had equally many; weighted by their examples, it is {weighted:.6g}, as in {other}: add up each "
    "micro-batch's gradients times its examples, and divide by all examples",
    "steps-on-each-batch": "{side} makes {times:,} {times:step|steps} on each batch, {other} {other_times:,}",
    "same-inputs": "both have the same inputs in this step, with other labels: look at which label each example gets",
    "reordered": "both see the same {examples:,} examples in this epoch, in another order, so their steps cannot be "
    "compared; give both the same order, without what a script shuffles by itself, as with NumPy (--keep order leaves "
    "the order to the scripts)",
    "keeps-state": "{layer} keeps its state from batch to batch (stateful=True): look at where {side} and {other} set "
    "it back, as by reset_state() at the beginning of an epoch",
    "predictions-as-labels": "{side} gives its loss the predictions as y_true: a loss takes the labels first, then the "
    "predictions",
    "model-begins-apart": "{side} calls {model} with other weights than {other}: look at what sets them",
    "divided-by-weights": "{side} divides the weighted losses by the sum of the weights, {other} by their number, as "
    "Keras does",
    "inputs-times": "the inputs of {side} are {factor:.6g} times those of {other}: scale them alike, as by a division "
    "by 255",
    "inputs-moved": lambda how, side, other: (
        f"the sequences in the inputs of {side} are those of {other} from their end to their beginning"
        if how == "reversed"
        else f"the inputs of {side} are those of {other} with the last axis reversed, as BGR in place of RGB"
        if how == "mirrored"
        else f"the sequences in the inputs of {side} begin one position {how} than those of {other}: look at how "
        "inputs and labels are cut from them"
    ),
    "mask-not-given": "{other} gives a mask to {layers:some}, {side} does not: what is computed from a tensor has no "
    "mask, so pass it on, as in layer(x, mask=mask)",
    "inputs-swapped": "{side} gives its model the inputs of {other} in another order",
    "inputs-shifted": lambda factor, constant, side, other: (
        f"the inputs of {side} are {factor:.6g} times those of "
        f"{other} {'plus' if constant > 0 else 'minus'} {abs(constant):.6g}: prepare them alike, and once"
    ),
    "given-to-loss": "the models give the same predictions, but {loss} is given other {what} in {side} than in "
    "{other}: look at what is done to them before the loss",
    "constraint-left-out": "{variables:some} {variables:has a constraint|have constraints}, which an optimizer applies "
    "after its update, as in {other}; {side} changes weights by hand: variable.assign(variable.constraint(variable))",
    "some-gradients-have-factor": "the gradients of {variables:some} are {factor:.6g} times those of {other} in "
    "{side}, and all others are equal: look at what scales these",
    "calls-not-taped": "{side} calls its models {times} times in this step, and the tape has "
    "recorded {taped} of these calls: the others count in the loss, but have no gradient; put all of them under one "
    "tape, or add up the gradients of each",
    "called-under-tape": "{side} takes gradients through {times} calls of models in this step, {other} through "
    "{other_times}: tf.stop_gradient(...) around what counts as a target, or a call outside of the tape, lets none "
    "through",
    "in-rows": "{side} gives its optimizer the gradient of {variables:some} as rows (tf.IndexedSlices), {other} as a "
    "whole tensor: where an index occurs twice in a batch, Keras's Adam squares the parts of its row one by one, so "
    "this differs by itself",
    "squares-added": "the loss of {side} has {factor:g} times {of} of {weights} more than that of {other}, as of a "
    "weight decay that is written into it",
    "first-update": "{side} makes its first update after {micro} micro-batch{micro:|es} and the next after {expected}, "
    "as {other} does from the first on: count micro-batches from 1",
    "left-over": "{side} makes this update from {micro} micro-batches and the next from {expected}, {other} both from "
    "{expected}: what an epoch has left over is in the next one's first update, since it counts anew in each epoch and "
    "{other} goes on counting",
    "called-between-steps": "{side} calls its model with training=True outside of its steps, as if in training",
    "between-layers": "{before} gives the same on both sides (but for an activation, maybe) and {after} does not: look "
    "at what comes between them{calls:?: }{calls:and}",
    "terms-summed": "the loss of {side} is the plain sum of {losses:and}; {other} has the same losses, but weights "
    "them, by loss_weights of compile, say",
    "term-differs": "of {of} losses in the step, {loss} alone differs: {value:.6g} in {side}, {right:.6g} in {other}",
    "other-loss": "the loss function of {side} is {loss}, that of {other} is {right}",
    "added-to-loss": "{loss} is {equal:.6g} on both sides; what is added to it, such as a penalty on weights, is "
    "{value:.6g} in {side} and {right:.6g} in {other}",
    "layers-alone": "only {side} calls {classes:some} as a layer in this step",
    "limits-alone": "only {side} calls a function that limits gradients",
    "predictions-squashed": "the predictions of {side} are the {function} of those of {other}: {side} gives "
    "probabilities, {other} logits",
    "calls-alone": "only {side} calls {functions:some}",
    "gradients-have-factor": "every gradient of {side} is {factor:.6g} times that of {other}, and the loss is the "
    "same: the factor comes between tape.gradient and apply_gradients, or from tf.stop_gradient or tf.custom_gradient",
    "gradients-kept": "the gradients of {side} in step {step:,} are those of {other} and its own of the step before: "
    "set what adds them up back to zero after each update",
    "more-gradients": "{side}'s optimizer is given gradients of {variables:some}, {other}'s is not{frozen:?: these are "
    "frozen (trainable = False), so take model.trainable_variables after that is set, not before}",
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
    "mixed-means-of-train": "from the second epoch on, {metrics:and} {metrics:is|are} the mean over training and the "
    "validation before it: the metric's state is not reset between them",
    "mixed-means-of-validation": "{metrics:and} in each epoch {metrics:is|are} the mean over training and "
    "validation: the metric's state is not reset between them",
    "reported-loss-not-reduced": _reported(f"in every epoch it is {SHARE}"),
    "reported-loss-without-regularization": _reported(_LACKS),
    "reported-validation-loss-without-regularization": _reported(_LACKS),
    "reported-loss-averaged-over-batches": _reported(
        "{it}the mean over {batches} batches, of which the last has {last:.0f} examples", joined=", "
    ),
    "reported-last-batch-only": _reported("that of the epoch's last batch alone", joined=", "),
    "returned-for-the-last-batch": "{metrics:and} {metrics:is|are} what its own step returned for the last batch "
    "alone: in epoch {epoch} {metric} is {value:.6g}; the mean of what it returned for all batches is {right:.6g}, as "
    "{other} reports",
    "reported-metrics-not-reset": _SO_FAR,
    "script-other-metric": _script_other_metric,
    "loss-never-updated": "{side} reports 0 as the loss of epoch {epoch}, and the losses of its steps are not 0: "
    "nothing updates the metric that it is read from; a train_step does so itself, with update_state(loss) of the "
    "metric of self.metrics that is called loss",
    "loss-after-update": "{metric} in epoch {epoch} is {value:.6g}, the mean of the losses that the batches have after "
    "their update; before it, as fit reports it, it is {expected:.6g}",
    "called-again": "{side} calls the model again with the examples of a step after its update ({steps} of {of} "
    "steps); numbers of these predictions are those of the updated weights, and fit's are not",
    "share-of-pairs": "{metric} in each epoch is the share of all pairs of a label and a prediction of a batch that "
    "are equal: labels of shape [n] meet predictions of shape [n, 1]; tf.reshape one of them",
    # Values that are not finite on one side only
    "weights-not-finite": _weights_not_finite,
    "metric-not-finite": _metric_not_finite,
}
