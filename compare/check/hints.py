"""What was seen of two recorded sides that may explain a difference without proving it; no TensorFlow here."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby, product
from typing import Any

import numpy as np

from compare.check.causes.data_recorded import has_unknown_pairs
from compare.check.causes.layers import layers_alone, layers_apart
from compare.check.causes.optimizer_recorded import made_again
from compare.check.causes.step import flags_of
from compare.check.draws import hints_on_draws, hints_on_random_numbers
from compare.check.hints_on_gradients import hints_on_gradients, hints_on_updates, line_of
from compare.check.layer_outputs import SQUASHING, first_layer_apart, given_to
from compare.check.measurement import Measurement
from compare.check.recipe import EPSILON, multiple
from compare.check.recorded import A_RATE, CLOSE, RecordedLoss, clipping_of, is_round, same
from compare.check.stages import Located
from compare.check.step_values import (
    EXAMPLES,
    FEW_ROUNDINGS,
    GRADIENTS,
    INPUTS,
    LOSS,
    PARALLEL,
    PREDICTIONS,
    STATE,
    UPDATE,
    Sides,
    Step,
    relative_gap,
)
from compare.check.targets import name_of
from compare.naming import some
from compare.verdict.findings import Source
from compare.watch.seen import CloseUp

FAR = 1000
"""How many times as far apart the weights of a model are that did not come there by rounding."""


def hints(located: Located, sides: Sides) -> list[Measurement]:
    """What was seen that may explain a difference without proving it."""
    found = [Measurement.of("never-changes")] if sides.other_trace.never_changes else []
    if located.stage in (LOSS, UPDATE) and (calls := sides.other.calls(sides.step) or 1) > 1:
        found.append(Measurement.of("applied-times", times=calls))
    for hint in AT_STAGE[located.stage or ""]:
        found += hint(sides, located)
    if not found and located.stage == PREDICTIONS:  # for another activation, a model may call a function, or none
        found = [seen for seen, _ in layers_apart(sides, replace(located, where=""))]
    return list(map(sides.named, found))


def called_between_steps(sides: Sides, named: Collection[str]) -> Iterator[Measurement]:
    """A side that alone calls its model in training mode outside of its steps, if no cause says so."""
    said = {"validation-in-training-mode", "validation-changes-state"}.intersection(named)
    for at in (sides, sides.turned()) if not said else ():
        line = Source.of(at.other_trace.untaped)
        if line and not at.right_trace.untaped:
            yield Measurement.of("called-between-steps", side=at.other_name, line=str(line))


def _hints_on_layers(sides: Sides, located: Located) -> Iterator[Measurement]:
    """Layers with other settings; of an update, only where it is known which layers' weights differ."""
    if located.stage != UPDATE or located.where:
        yield from (seen for seen, _ in layers_apart(sides, located, certain=not located.where))


def _hints_on_states(sides: Sides, located: Located) -> Iterator[Measurement]:
    """A layer that keeps its state from step to step, which is none of the weights; either side may set it back."""
    keeping = [layer["name"] for layer in sides.right_trace.layers if layer["config"].get("stateful")]
    if sides.step > 1 and located.where in keeping:
        yield Measurement.of("keeps-state", layer=located.where)


def _hints_on_parts(sides: Sides, located: Located) -> Iterator[Measurement]:
    """What another number of replicas, or of micro-batches in an update, changes by itself."""
    counts, limiting = sides.parts, list(sides.close_ups)
    dropout, batch_norm, clips = "dropout-per-replica", "batch-norm-per-replica", "clips-per-replica"
    numbers: dict[str, Any] = {"replicas": sides.replicas}
    if len({trace.replicas for trace in sides.traces}) == 1:
        if counts[0] == counts[1]:
            return
        at = sides if counts[1] > counts[0] else sides.turned()
        limiting = [at.other]
        dropout, batch_norm, clips = "dropout-per-micro-batch", "batch-norm-per-micro-batch", "clips-per-micro-batch"
        line = line_of(at.other, at.step, "clip") if located.stage == GRADIENTS else None
        numbers = {"side": at.other_name, "count": max(counts), "line": line}
    if located.stage == PREDICTIONS:
        classes = {layer["name"]: layer["class"] for layer in sides.right_trace.layers}
        for layer in located.where.split(", "):
            if "Dropout" in classes.get(layer, ""):
                yield Measurement.of(dropout, layer=layer, **numbers)
            elif classes.get(layer) == "BatchNormalization":
                yield Measurement.of(batch_norm, layer=layer, **numbers)
    by_hand = located.stage == GRADIENTS and all(each.of(sides.step, "clip") for each in limiting)
    if by_hand or (located.stage == UPDATE and "replicas" in numbers and all(map(clipping_of, sides.traces))):
        yield Measurement.of(clips, **numbers)


def _hints_on_flags(sides: Sides, located: Located) -> Iterator[Measurement]:
    """A model that one side alone calls in training mode, where it is not known whether the predictions agree."""
    predictions, (right, other) = located.of(PREDICTIONS), flags_of(sides)
    if predictions is not None and predictions.equal is None and set(right) == {True} and other and True not in other:
        yield Measurement.of("script-flag", training=other[0], by_fit=False)


def _hints_on_calls(sides: Sides, located: Located) -> Iterator[Measurement]:
    """Calls of the model in training mode, which move statistics, if one side makes more of them in the step."""
    trace = sides.right_trace
    if located.where.partition(", ")[0] in [trace.variables[i].name for i in trace.trained]:
        return  # no statistics
    right, other = (flags.count(True) for flags in flags_of(sides))
    if right != other:
        yield Measurement.of("called-in-training-times", times=other, other_times=right)


def _hints_on_masks(sides: Sides, located: Located) -> Iterator[Measurement]:
    """Layers that one side alone gives a mask, which is lost where tensors are computed from those that have it."""

    def masked(close_up: CloseUp, step: int) -> dict[str, bool | None]:
        calls = [*close_up.of(step, "inputs"), *close_up.of(step, "layer")]
        return {each.info.get("name") or each.info["model"]: each.info.get("masked") for each in calls}

    for at in (sides, sides.turned()):
        right, other = at.both(masked)
        if lost := [name for name, masked in right.items() if masked and other.get(name) is False]:
            yield at.named(Measurement.of("mask-not-given", layers=lost))


def _hints_on_outputs(sides: Sides, located: Located) -> Iterator[Measurement]:
    """One side's predictions are probabilities, made from the other's."""
    both = [side.arrays(sides.step, "predictions") for side in sides.close_ups]
    shapes = [[np.shape(each) for each in arrays] for arrays in both]
    known = [each.dtype.kind == "f" and each.size and np.ptp(each) for arrays in both for each in arrays]
    if not known or not all(known) or shapes[0] != shapes[1]:
        return
    for at, (name, function) in product((sides, sides.turned()), SQUASHING.items()):
        pairs = zip(*(side.arrays(at.step, "predictions") for side in at.close_ups), strict=True)
        if all(np.allclose(function(a.astype(np.float64)), b, rtol=1e-4, atol=1e-7) for a, b in pairs):
            yield at.named(Measurement.of("predictions-squashed", function=name))


def _hints_on_models(sides: Sides, located: Located) -> Iterator[Measurement]:
    """Models that a step calls after the first with weights that differ by far more than those of the first."""
    both = ([each for each in close_up.of(sides.step, "weights") if not each.replica] for close_up in sides.close_ups)
    first = 0.0
    for number, (one, other) in enumerate(zip(*both, strict=False)):
        if list(map(np.shape, one.arrays)) != list(map(np.shape, other.arrays)):
            return
        gap = max((relative_gap(a, b) for a, b in zip(one.arrays, other.arrays, strict=True)), default=0.0)
        if number and gap > max(FEW_ROUNDINGS, FAR * first):
            yield Measurement.of("model-begins-apart", model=other.info["model"])
        first = gap if not number else first


def _hints_on_weights(sides: Sides, located: Located) -> Iterator[Measurement]:
    """Weighted losses that one side divides by the sum of the weights, as PyTorch does, instead of their number."""
    for at in (sides, sides.turned()):
        recorded, loss = RecordedLoss.of(at), at.other.loss(at.step)
        weight = recorded.targets.weight if recorded is not None and recorded.targets is not None else None
        if recorded is None or loss is None or weight is None or same(float(np.mean(weight)), 1.0):
            continue
        if same(loss, recorded.data / float(np.mean(weight)) + recorded.penalty):
            yield at.named(Measurement.of("divided-by-weights"))


def _hints_on_squares(sides: Sides, located: Located) -> Iterator[Measurement]:
    """A multiple of the squares of the weights in the loss of one side alone, as of a weight decay written into it."""
    losses = sides.losses
    weights = sides.right.arrays(sides.step, "weights")
    trained = [np.asarray(weights[i], np.float64) for i in sides.right.gradients(sides.step) if i < len(weights)]
    if losses is None or not trained or same(*losses):
        return
    at, more = (sides, losses[1] - losses[0]) if losses[1] > losses[0] else (sides.turned(), losses[0] - losses[1])
    rounding = 1e-5 + 16 * EPSILON * max(map(abs, losses)) / more
    for what, those in (("all weights", trained), ("all weights but biases", [w for w in trained if w.ndim > 1])):
        squares = sum(float(np.sum(np.square(each))) for each in those)
        for times, of in ((1.0, "the sum of the squares"), (0.5, "half of the sum of the squares")):
            factor = more / (times * squares) if squares else 0.0
            if factor and is_round(factor, 1, min(rounding, A_RATE)):
                line = line_of(at.other, at.step, LOSS)
                yield at.named(
                    Measurement.of("squares-added", factor=float(f"{factor:.1g}"), of=of, weights=what, line=line)
                )
                return


def _hints_between_layers(sides: Sides, located: Located) -> Iterator[Measurement]:
    """What comes between the last layer that agrees and the first that does not, where functions or layers differ."""
    apart = first_layer_apart(Step(*sides.close_ups, [], sides.step, ()), rounding=PARALLEL)
    if apart.before is None or apart.after is None:
        return
    given = [given_to(side, sides.step, event) for side, event in zip(sides.close_ups, apart.after, strict=True)]
    calls = [f"{name} calls {some(list(alone))}" for name, alone in zip(sides.names, apart.alone, strict=True) if alone]
    if calls or any(given):
        names = {"before": apart.before.info["name"], "after": apart.after[0].info["name"]}
        line = given[1] and given[1].info.get("line")
        yield Measurement.of("between-layers", **names, calls=calls, line=str(Source.of(line)) if line else None)


def _hints_on_terms(sides: Sides, located: Located) -> Iterator[Measurement]:
    """Equal losses, as of several outputs, of which one side alone takes the plain sum; or the one that differs.

    Of a single one that is equal, what else each side's loss has.
    """
    both, totals = sides.both(_terms), sides.losses
    names = [[name for name, _ in terms] for terms in both]
    if len(names[0]) == len(names[1]) == 1 and names[0] != names[1]:
        line = line_of(sides.other, sides.step, LOSS)
        yield Measurement.of("other-loss", loss=names[1][0], right=names[0][0], line=line)
    if totals is None or not names[0] or sorted(names[0]) != sorted(names[1]) or max(sides.parts) > 1:
        return
    pairs = list(zip(*(both if names[0] == names[1] else map(sorted, both)), strict=True))
    numbered = enumerate(pairs, start=1)
    off = [(i, name, right, other) for i, ((name, right), (_, other)) in numbered if not same(right, other)]
    sums = [sum(loss for _, loss in terms) for terms in both]
    of_sum = [
        same(total, own + side.penalty(sides.step))
        for total, own, side in zip(totals, sums, sides.close_ups, strict=True)
    ]
    losses = [f"{loss:.6g} ({name})" for name, loss in both[1]]
    added = [total - own for total, own in zip(totals, sums, strict=True)]
    if len(names[0]) == 1:
        if not off and of_sum[0] and not of_sum[1] and min(added) >= 0:
            line, (right, other) = line_of(sides.other, sides.step, LOSS), added
            yield Measurement.of("added-to-loss", loss=names[0][0], equal=sums[0], value=other, right=right, line=line)
    elif not off and of_sum[0] != of_sum[1]:
        at = sides if of_sum[1] else sides.turned()
        yield at.named(Measurement.of("terms-summed", losses=losses, line=line_of(at.other, at.step, LOSS)))
    elif len(off) == 1:
        number, name, right, other = off[0]
        loss = name if names[0].count(name) == 1 else f"number {number} ({name})"
        yield Measurement.of("term-differs", loss=loss, value=other, right=right, of=len(pairs))


def _hints_on_given(sides: Sides, located: Located) -> Iterator[Measurement]:
    """Loss functions that are given something else, where the models' predictions agree."""
    predictions = located.of(PREDICTIONS)
    if predictions is None or not predictions.equal or _hints_on_labels(sides, located):
        return
    right, other = ([each for each in side.of(sides.step, "targets") if each.arrays] for side in sides.close_ups)
    if [name_of(each.info) for each in right] != [name_of(each.info) for each in other]:
        return
    for one, own in zip(right, other, strict=True):
        if [np.shape(each) for each in one.arrays] != [np.shape(each) for each in own.arrays]:
            continue
        ends = np.cumsum([own.info[what] for what in ("true", "predicted", "weights")])
        for what, begin, end in zip(("labels", "predictions", "sample weights"), (0, *ends), ends, strict=False):
            pairs = zip(one.arrays[begin:end], own.arrays[begin:end], strict=True)
            if any(relative_gap(*pair) > max(CLOSE, (what == "predictions") * predictions.noise) for pair in pairs):
                loss, line = name_of(own.info), own.info.get("line")
                yield Measurement.of("given-to-loss", loss=loss, what=what, line=str(Source.of(line)) if line else None)


def _terms(close_up: CloseUp, step: int) -> list[tuple[str, float]]:
    """What the loss functions of a step gave: by name, the mean over the examples."""
    found = []
    for event in close_up.of(step, "targets"):
        values = event.arrays[event.info["true"] + event.info["predicted"] + event.info["weights"] :]
        mean = float(np.mean(values[0])) if len(values) == 1 and np.size(values[0]) else np.nan
        found.append((name_of(event.info), mean))
    return found


def _hints_on_sizes(sides: Sides, located: Located) -> Iterator[Measurement]:
    """Micro-batches of different sizes whose losses one side averages as if each had equally many examples."""
    for at in (sides, sides.turned()):
        sizes = [len(event.rows) for event in at.other.calls_with_examples(at.step)]
        losses = [float(np.sum(event.arrays[: event.info["targets"]])) for event in at.other.of(at.step, "loss")]
        right = at.right.loss(at.step)
        if at.other_trace.replicas > 1 or right is None or len(set(sizes)) < 2 or len(losses) != len(sizes):
            continue
        weighted, mean = float(np.average(losses, weights=sizes)), float(np.mean(losses))
        if same(weighted, right) and not same(mean, right):
            yield at.named(Measurement.of("micro-batches-alike", sizes=sizes, loss=mean, weighted=weighted))


def _hints_on_inputs(sides: Sides, located: Located) -> Iterator[Measurement]:
    """Inputs that are a multiple of the other side's and a constant, as of pixels that are scaled by one side alone.

    Or sequences that begin one position earlier or later, or at their end.
    """
    whole = [side.arrays(sides.step, "inputs") for side in sides.close_ups]
    moved = {_moved(*pair) for pair in zip(*whole, strict=False)}
    if len(moved) == 1 and (how := moved.pop()):
        yield Measurement.of("inputs-moved", how=how)
        return
    both = [[np.ravel(a) for a in arrays] for arrays in whole]
    numbers = all(each.dtype.kind in "fiu" for arrays in both for each in arrays)
    if not all(both) or not numbers or len({tuple(each.shape for each in arrays) for arrays in both}) > 1:
        return
    a, b = (np.concatenate(each).astype(np.float64) for each in both)
    factor = multiple([b], [a])
    if factor and np.allclose(b, factor * a, rtol=1e-4, atol=1e-6 * np.abs(b).max()):
        yield Measurement.of("inputs-times", factor=factor)
    elif np.ptp(a) and np.ptp(b):
        slope, constant = (float(each) for each in np.polyfit(a, b, 1))
        if np.abs(b - slope * a - constant).max() <= 1e-5 * np.ptp(b):
            yield Measurement.of("inputs-shifted", factor=slope, constant=constant)


def _moved(a: np.ndarray, b: np.ndarray) -> str:
    """How sequences are moved against others that are the same where both are; empty if they are not.

    The last axis of images, which is mirrored where one side takes BGR for RGB, is that of their channels.
    """
    if a.shape != b.shape or a.ndim < 2 or np.array_equal(a, b):
        return ""
    a, b = (each.astype(np.float32) if each.dtype == np.float64 else each for each in (a, b))  # as models take them
    for how, one, other in (
        ("later", a[:, 1:], b[:, :-1]),
        ("earlier", a[:, :-1], b[:, 1:]),
        ("reversed", a, b[:, ::-1]),
        ("mirrored", a, b[..., ::-1]),
    ):
        if np.array_equal(one, other) and (one != one[:1, :1]).any():
            return how
    return ""


def _hints_on_order(sides: Sides, located: Located) -> Iterator[Measurement]:
    """Inputs of a model that are the other side's, in another order."""
    one, other = (side.arrays(sides.step, "inputs") for side in sides.close_ups)
    order = [[i for i, a in enumerate(one) if np.array_equal(a, b)] for b in other]
    if len(one) > 1 and sorted(order) == [[i] for i in range(len(one))] != order:
        yield Measurement.of("inputs-swapped")


def _steps_on_each_batch(close_up: CloseUp, steps: Sequence[int]) -> int:
    """How many steps in a row have the same examples, in all batches but the last alike; 0 if that is not so."""
    batches = [tuple(close_up.example_rows(step)) for step in steps]
    times = [len(list(same)) for batch, same in groupby(batches) if batch]
    return times[0] if len(times) > 1 and len(set(times[:-1])) == 1 and times[-1] <= times[0] else 0


def _hints_on_examples(sides: Sides, located: Located) -> Iterator[Measurement]:
    right_skips, skips = sides.skipped_updates
    if right_skips != skips:
        yield Measurement.of("updates-skipped", count=skips, others=right_skips)
        return
    steps = sides.steps_of_epoch
    right_times, times = (_steps_on_each_batch(side, steps) for side in sides.close_ups)
    if right_times and times and right_times != times:
        yield Measurement.of("steps-on-each-batch", times=times, other_times=right_times)
        return
    right, other = ([row for step in steps for row in side.example_rows(step)] for side in sides.close_ups)
    if unknown := len(set(other) - sides.right.all_rows()):
        numbers = {"examples": unknown, "of": len(other), "first": min(steps), "last": max(steps)}
        yield sides.turned().named(Measurement.of("unknown-examples", **numbers))
    fits = [(name, trace.fit) for name, trace in zip(sides.names, sides.traces, strict=True)]
    ending = [(name, fit["ends_epochs"]) for name, fit in fits if "ends_epochs" in fit]
    if len(ending) == 1 and min(steps, default=0) == 1:
        yield Measurement.of("epoch-ended-first", side=ending[0][0], data=ending[0][1])
    if located.where == "labels":
        yield Measurement.of("same-inputs")
    if unknown or has_unknown_pairs(sides, steps):
        split = [(name, float(fit["validation_split"])) for name, fit in fits if fit.get("validation_split")]
        if len(split) == 1:
            yield Measurement.of("split-off", side=split[0][0], share=split[0][1])
        yield from hints_on_random_numbers(sides, located)
    elif right != other and sorted(right) == sorted(other):
        yield Measurement.of("reordered", examples=len(right))
    for at in (sides, sides.turned()):
        others = at.right_trace.calls
        if others and (alone := [call for call in at.other_trace.calls if call not in others]):
            yield Measurement.of("calls-alone", side=at.other_name, functions=alone)


def _hints_on_first_updates(sides: Sides, located: Located) -> Iterator[Measurement]:
    """A first update of another number of micro-batches, where the next ones are of as many: counted from 0, say.

    Later, one of more of them has those that an epoch has left over, where counting begins again with each epoch.
    """
    first, next_ones = sides.parts, replace(sides, step=sides.step + 1).parts
    usual = first[0] > 0 and first[0] == next_ones[0] == next_ones[1]  # else one side has ended
    if usual and first[1] != first[0] and (sides.step == 1 or first[1] > first[0]):
        kind, line = "first-update" if sides.step == 1 else "left-over", line_of(sides.other, sides.step, GRADIENTS)
        yield Measurement.of(kind, micro=first[1], expected=first[0], line=line)


def _hints_on_labels(sides: Sides, located: Located) -> list[Measurement]:
    """A loss of one side alone that is given the predictions as labels, and something else as predictions."""
    own = [
        Measurement.of("predictions-as-labels", side=name, line=line_of(side, sides.step, "targets"))
        for name, side in zip(sides.names, sides.close_ups, strict=True)
        if side.predictions_as_labels(sides.step)
    ]
    return own if len(own) == 1 else []


AT_STAGE: Mapping[str, Sequence[Callable[[Sides, Located], Iterable[Measurement]]]] = {
    "": (made_again, _hints_on_parts),
    EXAMPLES: (_hints_on_order, _hints_on_first_updates, _hints_on_examples, made_again, _hints_on_parts),
    INPUTS: (_hints_on_order, made_again, _hints_on_inputs, _hints_on_parts, hints_on_random_numbers),
    PREDICTIONS: (
        made_again, hints_on_draws, layers_alone, _hints_on_masks, _hints_on_outputs, _hints_on_models,
        _hints_between_layers, _hints_on_states, _hints_on_parts, _hints_on_layers, hints_on_random_numbers,
    ),
    LOSS: (
        made_again, _hints_on_labels, _hints_on_weights, _hints_on_sizes, _hints_on_squares,
        _hints_on_terms, _hints_on_given, _hints_on_flags, _hints_on_parts, _hints_on_layers, hints_on_random_numbers,
    ),
    GRADIENTS: (hints_on_gradients, made_again, _hints_on_parts, _hints_on_layers),
    UPDATE: (hints_on_updates, _hints_on_parts, _hints_on_layers),
    STATE: (
        made_again, _hints_on_calls, _hints_on_parts, _hints_on_layers, hints_on_random_numbers,
    ),
}  # fmt: skip
"""What is looked for where a stage is the first that differs, in the order in which it is told; "" if none is known."""
