"""How the losses of two recorded sides differ, and the gradients of equal ones; no TensorFlow."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from compare.check.causes.base import Measurement, Recorded, Variant
from compare.check.recipe import LOSS_SCALE, OF_SIZE, OTHER_SHARES, Clip, loss_scale, mean_of_means, norm_of, scaled
from compare.check.recorded import A_RATE, CLOSE, RecordedLoss, holds_elsewhere, is_round, same
from compare.check.stages import Located
from compare.check.step_values import (
    GRADIENTS,
    LOSS,
    Sides,
    count_rows,
    equal_gradients,
    other_calls,
    parallel,
    relative_gap,
)
from compare.check.targets import Targets, targets_of, value_of
from compare.watch.seen import CloseUp
from compare.watch.trace import Trace

IN_UPDATE = (
    "variable.assign_sub(learning_rate * gradient / tf.cast(tf.shape(y)[0], tf.float32))  # by the examples there are"
)
"""What to write instead of an update by hand that divides the gradient of a sum by a constant."""


def recorded_share(wanted: str) -> Recorded:
    """Recognises one of ``OTHER_SHARES``; of two that are the same in the step, the more usual."""

    def recognise(sides: Sides, located: Located) -> Iterator[Variant]:
        recorded = RecordedLoss.of(sides)
        if recorded is None or not any(recorded.split.sizes):  # where no examples were seen, none has a share
            return
        factors = {cause: recorded.factor(share) for cause, share in OTHER_SHARES.items()}
        factor = factors[wanted]
        if wanted in OF_SIZE and not sides.foreseen and not holds_elsewhere(sides, OTHER_SHARES[wanted]):
            return
        if wanted == next(cause for cause, each in factors.items() if same(each, factor)):
            numbers = {"examples": sum(recorded.split.sizes), "full": recorded.split.global_batch_size}
            seen = Measurement.of(f"script-{wanted}", **numbers, replicas=sides.replicas)
            alone = seen.but(alone=True) if recorded.penalty else seen
            updating: dict[str, Any] = {}
            if sides.other.scale != 1.0 and wanted in OF_SIZE:  # of a loop without an optimizer, which divides there
                updating = {"called": "gradients", "remedy": IN_UPDATE}
            yield Variant({"share": OTHER_SHARES[wanted]}, alone, **updating)
            yield Variant({"share": OTHER_SHARES[wanted], "regularization": factor}, seen, **updating)

    return recognise


def recorded_sum(sides: Sides, located: Located) -> Iterator[Variant]:
    """The sum over the examples, or the gradient of a vector of losses, which is that of their sum."""
    yield from recorded_share("loss-summed")(sides, located)
    for by_right, name, close_up in zip((True, False), sides.names, sides.close_ups, strict=True):
        losses = [event.arrays[: event.info["targets"]] for event in close_up.of(sides.step, "loss")]
        counts = {np.size(each[0]) if len(each) == 1 else 0 for each in losses}  # of one call, or of micro-batches
        if len(counts) == 1 and (count := min(counts)) > 1:
            factor = 1 / count if by_right else float(count)
            seen = sides.named(Measurement.of("script-losses-summed", losses=count, summing=name))
            for regularization in ({}, {"regularization": factor}):
                yield Variant({"share": scaled(mean_of_means, factor), **regularization}, seen, by_right=by_right)


def recorded_scale(sides: Sides, located: Located) -> Iterator[Variant]:
    """In float16, the loss is multiplied by a large power of two, and the gradients are divided by it.

    It is what an optimizer begins with, and half of that after each update that it has left out.
    """
    half = any(array.dtype == np.float16 for array in sides.right.arrays(sides.step, "layer"))
    right, other = sides.gradients()
    if not half or not right or right.keys() != other.keys():
        return
    norms = [norm_of(list(side.values())) for side in (right, other)]
    factor = loss_scale(norms[1] / norms[0]) if all(norms) else None
    called = sides.right.of(sides.step, "scaled-loss")  # Keras 2 tells neither
    begun = [each.config.get("initial_scale") for each in sides.traces]
    scale = next(filter(None, begun), LOSS_SCALE) / 2 ** sides.skipped_updates[0]
    if factor == 1 / scale and located.stage == LOSS:
        yield Variant({}, Measurement.of("script-not-scaled", loss_scale=scale))
    elif factor == scale and located.stage == GRADIENTS and (called or not sides.right.of(sides.step, "scaled")):
        yield Variant({}, Measurement.of("script-not-unscaled", loss_scale=scale))


def recorded_factor(sides: Sides, located: Located) -> Iterator[Variant]:
    """Any factor, if the loss has it in later steps too, where the predictions are already other ones.

    There it is compared with the loss computed again from the other side's own predictions. Where that is not known, a
    number of equal parts that are added up is believed, such as of the steps of a decoder. Batches of another size
    don't count: what divides by a constant has another factor there. The model's own losses may be added afterwards.
    """
    right, other = sides.losses or (0.0, 0.0)
    if not right or same(right, other) or sides.other.loss(sides.step + 1) is None:
        return
    steps = [step for step in sides.other.steps if step > sides.step and _rows(sides, step) == _rows(sides, sides.step)]
    later = [(step, targets) for step in steps if (targets := own_call(sides, step))]
    for penalty in dict.fromkeys((0.0, sides.right.penalty(sides.step))):
        factor = (other - penalty) / (right - penalty) if right != penalty else 0.0
        parts = max(factor, 1 / factor) if 0 < factor < np.inf else 1.0
        has_factor = all(_is_times(factor, sides, step, targets, apart=bool(penalty)) for step, targets in later)
        if not has_factor or not later:
            known = later and all(_of_same_shape(targets, targets_of(sides.other, step)) for step, targets in later)
            has_factor = not known and not penalty and round(parts) > 1 and same(parts, round(parts))
        if has_factor and (penalty or sides.foreseen or sides.have_factor(factor)):
            kind = "script-data-loss-factor" if penalty else "script-loss-factor"
            seen = Measurement.of(kind, factor=factor, loss=other, right_loss=right, penalty=penalty)
            what = f"the factor {factor:.6g}" if factor == parts else f"the division by {parts:.6g}"
            yield Variant({}, seen, measured=True, remedy=f"loss = ...  # as it is, without {what}")
            return


def _is_times(factor: float, sides: Sides, step: int, targets: Targets, *, apart: bool) -> bool:
    """Whether the loss of the other side's step is a factor times that of its own labels and predictions.

    With ``apart``, the model's own losses do not have the factor.
    """
    own, loss = targets_of(sides.other, step), sides.other.loss(step)
    # Labels of later steps may be computed from weights, which are other ones by then.
    if own is not None and _of_same_shape(targets, own):
        targets = replace(targets, true=own.true, predicted=own.predicted)
    expected = value_of(targets)
    if loss is None or expected is None:
        return False
    penalty = sides.other.penalty(step)
    return same(loss, factor * expected + penalty if apart else factor * (expected + penalty))


def _of_same_shape(targets: Targets, own: Targets | None) -> bool:
    """Whether the labels of two calls, or of all calls together, have one shape; a decoder may call once a step."""
    return own is None or own.true.shape == targets.true.shape


def _rows(sides: Sides, step: int) -> int:
    """For how many examples the other side's model predicts in a step."""
    return count_rows(sides.other.arrays(step, "predictions"))


def own_call(sides: Sides, step: int) -> Targets | None:
    """The right call of the loss function in a step of the same examples, with the other side's own predictions."""
    right, predictions = targets_of(sides.right, step), sides.other.arrays(step, "predictions")
    if right is None or len(predictions) != 1 or sides.other.loss(step) is None:
        return None
    if sides.right.example_rows(step) != sides.other.example_rows(step):
        return None
    return replace(right, predicted=np.asarray(predictions[0], np.float64))


def recorded_gradients(sides: Sides, located: Located) -> Iterator[Variant]:
    """Gradients that are the right ones times a factor, where the loss is the same."""
    variants = list(recorded_micro_batches(sides, located))
    factor, length = sides.factor_of_gradients, norm_of(list(sides.gradients()[1].values()))
    clips = sides.clip_alike() or is_round(length, 2)  # or a norm may be limited
    written = factor and any(is_round(each, 3, CLOSE) for each in (factor, 1 / factor))  # that of a limit is not
    if not variants and written and sides.replicas == 1 and not clips:
        variants.append(Variant({}, Measurement.of("gradients-have-factor", factor=factor), measured=True))
    yield from variants


def recorded_micro_batches(sides: Sides, located: Located) -> Iterator[Variant]:
    """One side adds up the gradients of micro-batches, or divides them twice, which the other averages."""
    parts = sides.parts
    for at, count, once in zip((sides.turned(), sides), parts, parts[::-1], strict=True):
        kind, remedy, called = "", "", GRADIENTS
        if count > 1 and _has_sum(at, count):
            kind = "script-micro-batches"
            called, remedy = _dividing(at.other, at.step, count)
        elif count > once == 1 and at.have_factor(1 / count):
            kind = "script-divided-twice"
            remedy = "gradients = accumulated  # if the loss of each micro-batch is divided already"
        if kind:
            by_right = at is not sides
            yield Variant({}, Measurement.of(kind, factor=count), remedy=remedy, by_right=by_right, called=called)
            return


def _has_sum(sides: Sides, count: int) -> bool:
    """Whether one side has the right gradients times a number, if need be limited as the right optimizer does."""
    right, own = sides.gradients()
    clip = Clip.by_options(sides.right_trace.config)
    total = {i: count * each for i, each in right.items()}
    ways = [total, clip.of_variables(total)] if clip and not sides.clip_alike() else [total]
    return bool(own) and any(equal_gradients(own, each) for each in ways)


def _dividing(close_up: CloseUp, step: int, count: int) -> tuple[str, str]:
    """Before which event a step is to divide the sum of its gradients, and how, in the words of that line."""
    called = "clip" if close_up.of(step, "clip") else GRADIENTS
    line = next((event.info.get("line") for event in close_up.of(step, called)), None)
    name = re.search(r"(?:zip|global_norm|\.apply)\((\w+),|\bin (\w+)\]", line[2] if line else "")
    given = next(filter(None, name.groups())) if name else "accumulated"
    then = "before clipping: clip and apply these" if called == "clip" else "apply these"
    return called, f"gradients = [total / {count} for total in {given}]  # {then}"


def recorded_without_penalty(sides: Sides, located: Located) -> Iterator[Variant]:
    recorded = RecordedLoss.of(sides)
    again = other_calls(*sides.both(CloseUp.calls))
    if recorded is None or not recorded.penalty or again:  # which may be by the gradients of a penalty
        return
    right, other = (_regularized(trace) for trace in sides.traces)
    of_layers = f"{right[0]}  # and the like, as in {sides.right_name}'s model" if right and other == [] else ""
    of_layers += "\nloss += tf.add_n(model.losses)" * bool(of_layers and sides.other_trace.trained_by == "loop")
    if right and other and not any(event.info["penalties"] for event in sides.other.of(sides.step, "loss")):
        of_layers = f"{right[0]}  # when the layer is made: what is set later adds nothing to model.losses"
    seen = Measurement.of("script-no-penalty", penalty=recorded.penalty)
    yield Variant({"regularization": 0.0}, seen, remedy=of_layers)
    if sides.replicas == 1:
        half = Measurement.of("script-half-penalty", penalty=recorded.penalty / 2, whole=recorded.penalty)
        yield Variant({"regularization": 0.5}, half, remedy=BY_HAND if other == [] else WHOLE)
    own = recorded.penalties
    numbers = range(len(own))
    parts = [{i} for i in numbers]  # the first ones come from add_loss, the others from regularizers
    share = " / strategy.num_replicas_in_sync" if sides.other_trace.replicas > 1 else ""
    all_of_them = f"loss += tf.add_n(model.losses){share}  # all of them, in place of the line that adds some"
    remedy = all_of_them if sides.other_trace.trained_by == "loop" else ""
    parts += [set(part) for count in numbers[2:] for part in (numbers[:count], numbers[-count:])]
    for omitted in dict.fromkeys(map(frozenset, parts if len(own) > 1 else [])):
        lacking = {"losses": len(omitted), "of": len(own), "penalty": sum(own[i] for i in omitted)}
        yield Variant({"omitted": omitted}, Measurement.of("script-some-penalties", **lacking), remedy=remedy)


def _regularized(trace: Trace) -> list[str] | None:
    """The layers with a regularizer, in code; None if no layers are known."""
    found = (
        f"layers.{layer['class']}(..., {name}=tf.keras.regularizers.{value['class_name']}({_arguments(value)}))"
        for layer in trace.layers
        for name, value in layer["config"].items()
        if name.endswith("regularizer") and isinstance(value, dict) and "class_name" in value
    )
    return list(found) if trace.layers else None


def _arguments(made: dict[str, Any]) -> str:
    return ", ".join(f"{name}={value:.6g}" for name, value in made["config"].items() if isinstance(value, float))


BY_HAND = "2 * tf.nn.l2_loss(weight)  # tf.nn.l2_loss(weight) is half of the sum of its squares"
WHOLE = "loss += tf.add_n(model.losses)  # whole: tf.nn.l2_loss(weight) is half of the sum of its squares"


def recorded_penalty_scaled(sides: Sides, located: Located) -> Iterator[Variant]:
    """The model's own losses times a number that people write; gradients are apart by multiples of the weights."""
    recorded, loss, (right, other) = RecordedLoss.of(sides), sides.other.loss(sides.step), sides.gradients()
    if recorded is None or loss is None or not recorded.penalty or right.keys() != other.keys() or sides.foreseen:
        return
    if not same(recorded.penalty, sides.other.penalty(sides.step)):
        return  # its layers have other regularizers
    factor, weights = (loss - recorded.data) / recorded.penalty, sides.right.arrays(sides.step, "weights")
    written = any(is_round(each, 1, A_RATE) for each in (factor, 1 / factor if factor else 0.0))
    off = [i for i in right if i < len(weights) and relative_gap(right[i], other[i]) > CLOSE]
    if written and factor > 0 and off and all(parallel(other[i] - right[i], weights[i]) for i in off):
        seen = Measurement.of("script-penalty-times", factor=float(f"{factor:.3g}"), penalty=recorded.penalty)
        yield Variant({"regularization": factor}, seen, measured=True)


def recorded_penalty_each(sides: Sides, located: Located) -> Iterator[Variant]:
    recorded = RecordedLoss.of(sides)
    if recorded is not None and sides.replicas > 1:
        seen = Measurement.of("script-penalty-each", penalty=recorded.penalty)
        yield Variant({"regularization": float(sides.replicas)}, seen)
