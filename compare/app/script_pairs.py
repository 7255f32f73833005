"""Which trainings of two scripts are the same one, and what is left out of their comparison."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from fractions import Fraction
from itertools import product

import numpy as np

from compare.naming import some
from compare.records.model import INITIAL, Variable, total_norm, variable_norms
from compare.verdict import rounding
from compare.watch.pairing import END_OF_PATH, PATH, by_key, in_order, paired, shapes_of
from compare.watch.trace import APART, INSIDE, LEFT, Trace

Pair = tuple[Trace, Trace]


def paired_models(traces: Sequence[Sequence[Trace]], max_steps: int) -> list[Pair]:
    """The trainings that are compared, in pairs, with their variables in one order.

    Trainings are paired if they train variables of equal shapes: best with all their variables, and with equal initial
    weights, else in the order in which their models are made. Where one script makes more trainings than the other, as
    for trial, those that make equally many steps are pairs. The trainings of one script that go on at the same time,
    as of a GAN's two models, are paired with those that come next. Where one optimizer is
    given only some of the weights that the other trains, the rest belongs to its training all the same.
    """
    if len(traces) == 1:
        first, second = [*stretches(traces[0]), [], []][:2]
    else:
        first, second = ([trace for stretch in stretches(side) for trace in stretch] for side in traces)
    again = len(first) != len(second)
    still = [[each for each in side if each.state == APART and len(each.steps) > 1] for side in (*traces, [])[:2]]
    found = [
        ((not begin_equal(*pair), way, again and one.last != other.last, i, j), pair)
        for i, one in enumerate(first)
        for j, other in enumerate(second)
        for way, pair in enumerate(_ways(one, other, still))
        if pair is not None
    ]
    pairs: dict[int, Pair] = {}
    taken = set()
    for (*_, i, j), pair in sorted(found, key=lambda each: each[0]):
        if i not in pairs and j not in taken:
            pairs[i] = limited(*pair, max_steps)
            taken.add(j)
    made = [pairs[i] for i in sorted(pairs)]
    # What they leave, where their last steps end with equal weights and they leave others.
    begun = (_begun_as_one(*each) for each in _apart_when_left(traces, made))
    left = [(a.up_to(a.last - 1), b.up_to(b.last - 1)) for a, b in filter(None, begun)]
    return [*made, *left, *(_states(traces) if pairs else ())]


def _left(traces: Sequence[Sequence[Trace]], pairs: Sequence[Pair]) -> Iterator[Pair]:
    """What pairs of trainings leave: their weights after the last step, as ``fit`` ends, and at the script's end."""
    one, other = ({trace.of: trace for trace in side if trace.state == LEFT} for side in (*traces, ())[:2])
    for pair in pairs:
        if pair[0].number in one and pair[1].number in other:
            yield one[pair[0].number].like(pair[0]), other[pair[1].number].like(pair[1])


def _same_variables(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """By variable, whether rounding may be all that differs between the weights of two moments."""
    a, b = one["projections"], other["projections"]
    equal: np.ndarray = (one["hashes"] == other["hashes"]).all(axis=-1)
    return equal | (variable_norms(a, b) <= rounding.UNLIKELY * total_norm(a))


def _same_weights(one: np.ndarray, other: np.ndarray) -> bool:
    return bool(_same_variables(one, other).all())


def _apart_when_left(traces: Sequence[Sequence[Trace]], pairs: Sequence[Pair]) -> Iterator[Pair]:
    """What pairs of trainings leave, where it is never the same.

    A script may change its weights once more when training is over, and set them to something else even later. So the
    two are the same where they were the same at any of these moments.
    """
    for first, second in _left(traces, pairs):
        if _never_same(first, second):
            yield first, second


def _never_same(first: Trace, second: Trace) -> bool:
    return not any(_same_weights(a, b) for a, b in product(first.steps[1:], second.steps[1:]))


def set_at_the_end(
    names: Sequence[str], traces: Sequence[Sequence[Trace]], pairs: Sequence[Pair]
) -> tuple[list[str], list[str]]:
    """The models whose weights both scripts set, to others, when their trainings are over; and those that one does.

    As sentences, where the last steps' are the same; nobody knows whether this belongs to the training.
    """
    both, one = list[str](), list[str]()
    for first, second in _left(traces, pairs):
        last, *_, end = map(_same_variables, first.steps, second.steps)
        compared = _never_same(first, second) and _begun_as_one(first, second) is not None
        if compared or not (last & ~end).any():  # rounding alone moves some, as a bias before a BatchNormalization
            continue
        what = f"the weights{f' of {first.model}' if first.model else ''}"
        setting = [n for n, each in zip(names, (first, second), strict=True) if not _same_weights(*each.steps[1:])]
        if not any(_same_weights(each.steps[0], each.steps[-1]) for each in (first, second)):
            both.append(f"at their end both scripts set {what}, to different values")
        elif setting:
            one.append(f"at its end {setting[0]} sets {what} once more, which is not compared")
    return both, one


def _begun_as_one(first: Trace, second: Trace) -> Pair | None:
    """What two trainings leave, if their last steps end with equal weights; None if they do not.

    Where only one side changes its weights afterwards, and by far more than they differ, the other's count as equal.
    """
    if begin_equal(first, second):
        return first, second
    for changing, still in ((first, second), (second, first)):
        a, b = changing.steps, still.steps["projections"]
        only_one = still.never_changes and not changing.up_to(changing.last - 1).never_changes
        if only_one and total_norm(*a["projections"][:2]) > rounding.FACTOR * total_norm(a["projections"][0], b[0]):
            steps = still.steps.copy()
            for name in ("hashes", "projections"):
                steps[name] = a[name][0]
            left = replace(still, steps=steps)
            return (first, left) if still is second else (left, second)
    return None


def changed_last(names: Sequence[str], traces: Sequence[Sequence[Trace]], pairs: Sequence[Pair]) -> list[str]:
    """The scripts that alone change weights after the last step, as sentences, where the last steps' are not equal."""
    apart = [each for each in _apart_when_left(traces, pairs) if _begun_as_one(*each) is None]
    return [
        f"after its last step only {name} changes the weights{f' of {trace.model}' if trace.model else ''} once more"
        for first, second in apart
        for name, trace, other in ((names[0], first, second), (names[1], second, first))
        if other.never_changes and not trace.up_to(trace.last - 1).never_changes
    ]


def _states(traces: Sequence[Sequence[Trace]]) -> Iterator[Pair]:
    """The models that begin with equal weights on both sides and that one side at least changes without an optimizer.

    What trainings have on both sides is compared with these.
    """
    first, second = ([trace for trace in side if trace.state in (INSIDE, APART)] for side in (*traces, ())[:2])
    for one in first:
        for other in second:
            pair = _all_of(one, other)
            if pair is not None and begin_equal(*pair):
                second.remove(other)
                if not (all(each.never_changes for each in pair) or all(each.state == INSIDE for each in pair)):
                    yield pair
                break


def begun_apart(names: Sequence[str], traces: Sequence[Sequence[Trace]], pairs: Sequence[Pair]) -> dict[str, Pair]:
    """The models that scripts change without an optimizer and of which one begins as a copy of what it trains.

    By a sentence on each.
    """
    found: dict[str, Pair] = {}
    sides: list[list[Trace]] = [[], []]
    for side, trace in _only_one(traces, pairs):
        sides[side] += [trace] * (trace.state in (INSIDE, APART))
    for one, other in product(*sides):
        pair = _all_of(one, other)
        copies = [_begins_as_trained(each, of) for each, of in zip((one, other), traces, strict=True)]
        if pair is not None and copies[0] != copies[1] and not all(each.never_changes for each in pair):
            right = copies.index(True)
            what = f"{(one, other)[1 - right].model or 'a model'} of {names[1 - right]}, which changes it itself"
            why = f"in {names[right]} it begins as a copy of them, as by set_weights"
            found[f"{what}, begins with other weights than those it trains; {why}, so the two are not compared"] = pair
    return found


def _begins_as_trained(copy: Trace, trainings: Sequence[Trace]) -> bool:
    own = set(_beginnings(copy))
    return bool(own) and any(own <= set(_beginnings(each)) for each in trainings if not each.state)


def _not_trained(one: Trace, other: Trace, still: Sequence[Sequence[Trace]]) -> Pair | None:
    """Two trainings of which one trains all that the other does, and models besides that the other leaves as they are.

    Only what no optimizer trains may change there, such as statistics of batches. All weights must have the same names
    and shapes, and begin with the same values; variables that are in no model, the same shapes and values.
    """
    for first, second in ((one, other.beside(still[1])), (one.beside(still[0]), other)):
        few, many = (second, first) if second.still else (first, second)
        same = by_key(PATH, few.variables, many.variables)
        if len(same) < len(many.variables):
            same = _by_first_update(few, many)
        models = [each for each in few.still for _ in each.variables]
        own = len(few.variables) - len(models)
        changing = [False] * own + [bool(each) for trace in few.still for each in trace.changing]
        untrained = [same[i] for i in many.trained if same.get(i, 0) >= own]
        if (
            untrained
            and not any(changing[i] for i in untrained)
            and len(same) == len(many.variables)
            and set(range(own)) <= set(same.values())
        ):
            order = [same[i] for i in range(len(same))]
            pair = (first, second.ordered(order)) if few is second else (first.ordered(order), second)
            used = {models[i - own].number for i in order if i >= own}
            if len(used) < len(few.still):  # the others are no part of this training
                return _not_trained(one, other, [[each for each in side if each.number in used] for side in still])
            if begin_equal(*pair):
                return pair
    return None


def _ways(one: Trace, other: Trace, still: Sequence[Sequence[Trace]]) -> Iterator[Pair | None]:
    """The ways to pair the variables of two trainings, the likeliest first; none if they are not the same training.

    With all variables, but what one script alone has and never changes; else with those that optimizers train, and the
    state that both have.
    """
    everything = range(len(one.variables)), range(len(other.variables))
    yield _not_trained(one, other, still) or _all_of(one, other)
    if len(one.variables) > len(other.variables):
        order = paired(one.variables, other.variables)
        pair = _ordered(one, other, order, everything[1] if order else [])
        yield pair if pair and not any(changes for _, changes in pair[0].left_out) else None
    same = by_key(PATH, other.variables, one.variables)
    whole = len(same) == len(one.variables) == len(other.variables)
    yield _ordered(one, other, everything[0], [same[i] for i in everything[0]] if whole else [])
    begun = _by_beginning(one, other) if shapes_of(one.variables) == shapes_of(other.variables) else []
    pair = _ordered(one, other, everything[0], begun)
    moved = tuple(other.variables[i].name for place, i in enumerate(begun) if i != place)
    yield pair and (pair[0], replace(pair[1], unsure=moved))
    if len(one.trained) != len(other.trained):
        return
    a, b = list(one.trained), list(other.trained)
    order = paired(_of(other, b), _of(one, a))
    yield _with_state(one, other, a, [b[i] for i in order])
    if order:
        return
    guessed = [b[i] for i in in_order(_of(other, b), _of(one, a))]
    guessed, unsure = _settled(one, other, a, guessed)
    pair = _with_state(one, other, a, guessed)
    yield pair and (pair[0], replace(pair[1], unsure=unsure))


def _of(trace: Trace, numbers: Sequence[int]) -> list[Variable]:
    return [trace.variables[i] for i in numbers]


def _all_of(one: Trace, other: Trace) -> Pair | None:
    return _ordered(one, other, range(len(one.variables)), paired(other.variables, one.variables))


def _ordered(one: Trace, other: Trace, first: Sequence[int], second: Sequence[int]) -> Pair | None:
    return (one.ordered(first), other.ordered(second)) if second and len(first) == len(second) else None


def _with_state(one: Trace, other: Trace, first: Sequence[int], second: Sequence[int]) -> Pair | None:
    """Two trainings with what they train, and with the other variables of equal names."""
    if not second:
        return None
    a, b = (sorted(set(range(len(t.variables))) - set(taken)) for t, taken in ((one, first), (other, second)))
    there, wanted = _of(other, b), _of(one, a)
    if shapes_of(wanted) == shapes_of(there):
        state = dict(enumerate(range(len(a))))
    else:
        keys = (by_key(key, there, wanted) for key in (PATH, END_OF_PATH))
        state = next((found for found in keys if found), {})
    return _ordered(one, other, [*first, *(a[i] for i in state)], [*second, *(b[i] for i in state.values())])


def _settled(one: Trace, other: Trace, first: Sequence[int], second: list[int]) -> tuple[list[int], tuple[str, ...]]:
    """Pairs variables of equal shape that begin with equal values by their first update; names those of other values.

    Training is the same in whatever order variables begin with equal values, so the nearest update is the right one.
    Where values differ, a wrong order would have given them to the wrong variables.
    """
    settled, unsure = list(second), []
    for shape in dict.fromkeys(shapes_of(_of(one, first)) if second else ()):
        places = [k for k, i in enumerate(first) if one.variables[i].shape == shape]
        if len(places) == 1:
            continue
        rows = [_rows(one, [first[k] for k in places]), _rows(other, [second[k] for k in places])]
        begun = {int(each) for row in rows for each in (row[INITIAL]["hashes"].ravel() if INITIAL in row else (0, 1))}
        if len(begun) > 1 or any(INITIAL + 1 not in row for row in rows):
            unsure += [other.variables[second[k]].name for k in places]
            continue
        updates, left = [row[INITIAL + 1]["projections"] for row in rows], list(range(len(places)))
        for k, update in zip(places, updates[0], strict=True):
            settled[k] = second[places[left.pop(_nearest(update, updates[1][left]))]]
    return settled, tuple(unsure)


def _by_beginning(one: Trace, other: Trace) -> list[int]:
    """For each variable of one training, that of the other of equal shape and initial value; empty if not all have one.

    Scripts that make variables of equal shape in one order may hand them to their optimizers in another.
    """
    wanted, there = _beginnings(one), _beginnings(other)
    known = {key: i for i, key in enumerate(there)}
    alike = one.replicas == other.replicas and len(known) == len(there) and set(wanted) == set(known)
    return [known[key] for key in wanted] if alike else []


def _by_first_update(few: Trace, many: Trace) -> dict[int, int]:
    """For variables of many, those of few of equal shape and initial value; of several, that of the nearest update.

    Few's own variables choose first; those that it does not train take what is left.
    """
    rows, found = [_rows(trace, range(len(trace.variables))).get(INITIAL + 1) for trace in (few, many)], {}
    if rows[0] is None or rows[1] is None or few.replicas != many.replicas:
        return {}
    there = _beginnings(many)
    for i, key in enumerate(_beginnings(few)):
        free = [j for j, each in enumerate(there) if each == key and j not in found]
        if free:
            found[free[_nearest(rows[0]["projections"][i], rows[1]["projections"][free])]] = i
    return found


def _beginnings(trace: Trace) -> list[tuple[tuple[int, ...], bytes]]:
    """The shape and initial value of each variable; empty if the values are not known."""
    rows = () if trace.initial is None else zip(trace.variables, trace.initial, strict=True)
    return [(variable.shape, row.tobytes()) for variable, row in rows]


def _nearest(update: np.ndarray, updates: np.ndarray) -> int:
    """Which of some variables' fingerprints after the first step is nearest to one."""
    gaps = variable_norms(np.repeat(update[None], len(updates), 0), updates)
    return int(np.argmin(np.nan_to_num(gaps, nan=np.inf)))


def _rows(trace: Trace, numbers: Sequence[int]) -> dict[int, np.ndarray]:
    """The fingerprints of some variables at first and after the first step."""
    some_only = trace.up_to(INITIAL + 1).ordered(numbers)
    return {int(row["step"]): row for row in some_only.steps}


def begin_equal(one: Trace, other: Trace) -> bool:
    """Whether two trainings are known to begin with equal weights."""
    return one.initial is not None and other.initial is not None and np.array_equal(one.initial, other.initial)


def left_over(names: Sequence[str], traces: Sequence[Sequence[Trace]], pairs: Sequence[Pair]) -> list[str]:
    """What only one of two scripts trains, as sentences."""
    found = []
    for side, trace in _only_one(traces, pairs):
        if not trace.state:
            weights = [trace.variables[i].name for i in trace.trained] or [each.name for each in trace.variables]
            parts = {each.split("/")[0] for each in weights} - {trace.model}
            model = f"{parts.pop()} of {trace.model}" if len(parts) == 1 and trace.model else trace.model
            what = f"{model + ': ' if model else ''}{weights[0]} to {weights[-1]}, {trace.last:,} steps"
            other = f"{names[1 - side]} makes no other training of such weights"
            found.append(f"only {names[side]} also trains {what}; {other}")
    return found


def _only_one(traces: Sequence[Sequence[Trace]], pairs: Sequence[Pair]) -> Iterator[tuple[int, Trace]]:
    """What only one of two scripts has, with its side."""
    for side, trainings in enumerate(traces):
        taken = {each.number for pair in pairs for each in (pair[side], *pair[side].still)}
        yield from ((side, trace) for trace in trainings if trace.number not in taken)


def further_trainings(name: str, traces: Sequence[Trace], pairs: Sequence[Pair]) -> list[str]:
    """The trainings of one script that are neither of the two that are compared, as sentences."""
    taken = {trace.number for pair in pairs for trace in pair}
    return [
        f"another training of {name} ({trace.model or trace.variables[0].name}, {trace.last:,} steps): its first two "
        "are compared"
        for trace in traces
        if trace.number not in taken and not trace.state
    ]


def left_out(names: Sequence[str], pair: Pair, pairs: Sequence[Pair], *, changing: bool) -> list[str]:
    """The state that only one of two trainings has, as sentences.

    Args:
        pairs: all trainings that are compared; what does not change may be compared in another one, and what changes in
            one of the same steps.
        changing: whether to name what changes while they train, or what does not.
    """
    found = []
    for side, (name, trace) in enumerate(zip(names, pair, strict=True)):
        known = [each[side] for each in pairs if not changing or each[side].state or each[side].is_beside(trace)]
        elsewhere = {each.name for trace in known for each in trace.variables}
        without = [each.name for each, changes in trace.left_out if changes == changing and each.name not in elsewhere]
        if without:
            which = "change while it trains" if changing else "do not change"
            found.append(f"only {name} also has {some(without)}: weights that {which}, and are not compared")
    return found


def changed_apart(names: Sequence[str], traces: Sequence[Sequence[Trace]], pairs: Sequence[Pair]) -> list[str]:
    """The models that only one of two scripts changes without an optimizer, as sentences, if both came to their end."""
    if not all(trace.whole for trainings in traces for trace in trainings):
        return []
    return [
        f"only {names[side]} also has {trace.model}: it changes it without an optimizer, and it is not compared"
        for side, trace in _only_one(traces, pairs)
        if trace.state == APART and not trace.never_changes
    ]


def stretches(traces: Sequence[Trace]) -> list[list[Trace]]:
    """The trainings of a script that go on at the same time, as of a GAN's two models, in their order of creation.

    The first of each stretch has what the script reports.
    """
    found: list[list[Trace]] = []
    for trace in sorted((each for each in traces if not each.state), key=lambda trace: trace.began):
        if found and trace.began <= max(each.ended for each in found[-1]):
            found[-1].append(trace)
        else:
            found.append([trace])
    return [_in_order_of_creation(stretch) for stretch in found]


def _in_order_of_creation(traces: Sequence[Trace]) -> list[Trace]:
    first, *others = sorted(traces, key=lambda trace: trace.created)
    told = next((trace for trace in traces if trace.epochs or trace.reported), first)
    if not (first.epochs or first.reported):
        # A critic may make several steps for each of the other model's.
        share = Fraction(first.last, told.last or 1)
        epochs = [replace(each, steps=int(each.steps * share)) for each in told.epochs]
        reported = [replace(each, steps=int(each.steps * share)) for each in told.reported]
        first = replace(first, epochs=epochs, reported=reported)
    return [first, *others]


def limited(one: Trace, other: Trace, limit: int) -> Pair:
    """Two trainings up to the last step that both have, if only the limit has ended them."""
    if min(one.last, other.last) >= limit:
        common = np.intersect1d(one.steps["step"], other.steps["step"])
        last = int(common.max(initial=0))
        return one.up_to(last), other.up_to(last)
    return one, other
