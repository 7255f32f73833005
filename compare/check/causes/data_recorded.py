"""Which examples two recorded sides have in a step, an epoch or a training; no TensorFlow."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from compare.check.causes.base import Measurement, Variant
from compare.check.draws import hints_on_draws
from compare.check.stages import Located
from compare.check.step_values import GRADIENTS, Sides
from compare.verdict.findings import Source
from compare.watch.seen import ENDLESS, CloseUp
from compare.watch.trace import Trace

if TYPE_CHECKING:
    from compare.check.batches import Batches

Row = TypeVar("Row")
"""An example: the hash of its inputs, or its place in the data."""


def kind_of_rows(sides: Sides, located: Located) -> tuple[str, Variant] | None:
    """The cause of other examples in a step."""
    right, other = sides.both(CloseUp.example_rows)
    if not right or not other or len({*sides.skipped_updates}) > 1:
        return None
    if apart := _with_another_label(sides):
        return "labels-shuffled-apart", _labels_apart(sides, apart)
    if rest := _rest_without_update(sides):
        return "examples-dropped", rest
    epoch = sides.steps_of_epoch
    all_right = [row for step in epoch for row in sides.right.example_rows(step)]
    full = max((len(sides.right.example_rows(step)) for step in epoch), default=0)
    if sides.step == epoch[0] and len(right) != len(other) and len(right) == full:
        if left_out := _short_batch_left_out(sides):
            made = _leaving_out(sides.right, 1, sides.step, short=True)
            return "examples-dropped", Variant({}, sides.named(left_out), by_right=True, made=made)
        if full in (len(sides.other.example_rows(step)) for step in sides.other.steps if step > sides.step):
            return None  # one short batch is no other size of all
        parts = sides.parts
        if _called_for_one_loss(sides):
            return None  # by a pair of examples each, say, and not for micro-batches
        if parts[0] != parts[1] and len(right) * parts[1] == len(other) * parts[0]:
            numbers = {"parts": parts[1], "expected": parts[0], "examples": len(right) // parts[0]}
            seen = Measurement.of("script-parts-of-update", **numbers)
            return "batch-size-differs", Variant({}, seen, remedy=IN_PARTS, called=GRADIENTS)
        seen = Measurement.of("script-batch-size", examples=len(other), expected=len(right))
        sizes = sides.other_trace.replicas, sides.right_trace.replicas
        scaled = len(set(sizes)) > 1 and len(other) * sizes[1] == len(right) * sizes[0]
        made = dict.fromkeys(("batch", "padded_batch"), (len(other), len(other) // sizes[0]))
        return "batch-size-differs", Variant({}, seen, remedy=OF_ALL_SIZES if scaled else "", made=made)
    if set(other) - sides.right.all_rows() or has_unknown_pairs(sides, epoch):
        return None  # examples that the right side has never had
    first = sides.right.example_rows(epoch[0])
    unseen = set(right) - sides.other.all_rows()
    # A loop that accumulates may have some of an update's batches before it begins its next epoch.
    both = next((i for i, pair in enumerate(zip(right, other, strict=False)) if pair[0] != pair[1]), 0)
    begins = other[both:]
    begins_anew = begins[: len(first)] == first[: len(begins)] and right != first and unseen
    if len(epoch) > 1 and (begins_anew or _ends_all_epochs_here(sides, epoch)):
        left = sum(len(sides.right.example_rows(step)) for step in epoch if step >= sides.step) - both
        numbers = {"examples": left, "never": left, "of_all": len(all_right)}
        seen = Measurement.of("tail-left-out", side=sides.right_name, other=sides.other_name, **numbers)
        short = sides.step == epoch[-1] and len(right) < full
        batches = replace(sides, step=epoch[0]).parts[1] or 1
        made = _leaving_out(sides.other, epoch[0], sides.step, short=short, parts=batches)
        return "examples-dropped", Variant({}, seen, made=made)
    if again := [step for step in epoch if step < sides.step and sides.other.example_rows(step) == other]:
        seen = Measurement.of("had-again", examples=len(other), earlier_step=again[-1])
        return "examples-repeated", Variant({}, seen)
    return _in_whole_epoch(sides, epoch, all_right)


def _called_for_one_loss(sides: Sides) -> bool:
    """Whether a side calls its model several times for one loss."""
    counts = (
        (len(each.model_events(sides.step, "inputs")), len(each.of(sides.step, "loss"))) for each in sides.close_ups
    )
    return any(0 < losses < calls for calls, losses in counts)


def _ends_all_epochs_here(sides: Sides, epoch: Sequence[int]) -> bool:
    """Whether the other side makes as many steps in all as if each of its epochs ended before this step."""
    epochs, made = len(sides.epochs.ends), sides.step - epoch[0]
    steps = [trace.last for trace in sides.traces]
    return epochs > 1 and epoch[0] == 1 and made > 0 and steps == [epochs * len(epoch), epochs * made]


def _in_whole_epoch(sides: Sides, epoch: Sequence[int], all_right: Sequence[int]) -> tuple[str, Variant] | None:
    """The cause of other examples in a step, by those of its epoch."""
    found = counted([row for step in epoch for row in sides.other.example_rows(step)], Counter(all_right))
    if found is None:
        return None
    right, other = sides.both(CloseUp.example_rows)
    cause, seen = found
    never, made = seen.quantities["never"], dict[str, Collection[float]]()
    if cause == "examples-repeated" and sides.step == epoch[-1] and other[: len(right)] == right:
        if sides.parts[1] > 1:
            return None  # the last update of the epoch has the next one's first micro-batches, too
        made["repeat"] = range(2, ENDLESS + 1)  # before batch, which then mixes the end with the beginning
    elif cause == "examples-dropped" and all_right[never:][:1] == other[:1]:  # the first ones
        made["skip"] = never, never / len(right)
    return cause, Variant({}, seen.but(epoch=sides.epochs.place(sides.step)[0]), made=made)


def _leaving_out(
    close_up: CloseUp, begin: int, end: int, *, short: bool, parts: int = 1
) -> dict[str, Collection[float]]:
    """The operations of a data set that leave out its end, and a short batch, where an epoch had these steps only.

    A step may be made of several batches, its ``parts``.
    """
    sizes = [len(close_up.example_rows(step)) for step in range(begin, end)]
    return {"take": (len(sizes), sum(sizes)), "drop_remainder": [size // parts for size in sizes[:1]] if short else ()}


def operation_of(close_up: CloseUp, step: int, variant: Variant) -> Source | None:
    """The line of the one operation that does this to the data set of a step, and what to write in its place."""
    operations = {each for event in close_up.of(step, "inputs") for each in event.info.get("operations", ())}
    found = [(name, number, line) for name, number, line in operations if number in variant.made.get(name, ())]
    if len(found) != 1:
        return None
    [(name, number, line)], seen = found, variant.evidence.quantities
    wrong, right = rf"\.{name}\({number}\)", ""
    if name == "drop_remainder":
        wrong = ", drop_remainder=True"
    elif "expected" in seen:
        wrong, right = rf"(?<=\.{name}\(){number}\b", str(number * seen["expected"] // seen["examples"])
    elif "repeat" in {each for each, *_ in operations}:
        wrong = "$^"  # without it, an epoch may be another one, or have no end
    text, times = re.subn(wrong, right, line[2])
    source = Source.of(line)
    return source and replace(source, instead=text if times == 1 and not variant.remedy else "")


def counted(rows: Sequence[Row], source: Counter[Row]) -> tuple[str, Measurement] | None:
    """The cause of other examples in an epoch than those that it is to have, and how many they are."""
    seen = Counter(rows)
    never, again = (source - seen).total(), (seen - source).total()
    if again and seen.keys() <= source.keys():
        numbers = {"repeats": again, "of": len(rows), "never": never, "of_all": source.total()}
        return "examples-repeated", Measurement.of("repeats", **numbers)
    if never and not again:
        return "examples-dropped", Measurement.of("never-seen", never=never, of_all=source.total())
    return None


def _short_batch_left_out(sides: Sides) -> Measurement | None:
    """The last batch of an epoch, shorter than the others, in whose place the right side begins its next epoch."""
    begins = [side.example_rows(1) for side in sides.close_ups]
    right, other = sides.both(CloseUp.example_rows)
    following = sides.other.example_rows(sides.step + 1)
    if not begins[0] or begins[0] != begins[1] or right != begins[0] or len(other) >= len(right):
        return None
    if following != begins[1] or set(other) & sides.right.all_rows():
        return None
    total = sum(len(sides.other.example_rows(step)) for step in range(1, sides.step + 1))
    return Measurement.of("tail-left-out", examples=len(other), never=len(other), of_all=total)


def _labels_apart(sides: Sides, apart: int) -> Variant:
    """Labels of other examples; where they are the inputs, as of an autoencoder, of the side whose are not."""
    rows = [(each.example_rows(sides.step), each.rows(sides.step, "targets")) for each in sides.close_ups]
    by_right, theirs = (inputs != labels for inputs, labels in rows)
    seen = Measurement.of("labels-apart", examples=apart, of=len(rows[1][0]))
    return Variant({}, seen, by_right=by_right and not theirs)


def _rest_without_update(sides: Sides) -> Variant | None:
    """The last micro-batches of an epoch, too few for an update, after which one side goes on with the next epoch's."""
    rows = sides.both(CloseUp.example_rows)
    by_right = len(rows[0]) > len(rows[1])
    more_first = sides if by_right else sides.turned()
    (many, few), alone, parts = more_first.both(CloseUp.example_rows), more_first.other, more_first.parts[0]
    more, following = many[len(few) :], alone.example_rows(sides.step + 1) or alone.example_rows(1)
    full = max(len(alone.example_rows(step)) for step in alone.steps)
    keeps, counts_on = (trace.config.get("gradient_accumulation_steps") for trace in more_first.traces)
    if parts < 2 or not more or many[: len(few)] != few or following[: len(more)] != more:
        return None
    if sides.step == 1 if counts_on else len(few) == full:
        return None
    if sides.step < max(sides.steps_of_epoch, default=0):
        return None  # of an epoch that goes on
    kind = "micro-batches-counted-anew" if counts_on else "rest-without-update"
    remedy = COUNTED_ON.format(counts_on) if counts_on else OF_WHOLE_UPDATES if keeps else OF_REST
    seen = Measurement.of(kind, examples=len(few), more=len(more))
    return Variant({}, seen, remedy=remedy, by_right=by_right, called=GRADIENTS)


def _with_another_label(sides: Sides) -> int:
    """The number of examples of the step whose label is another one than that of equal inputs on the right side.

    It is 0 unless the step or the epoch has the same inputs and the same labels on both sides, in other pairs: else
    examples with equal inputs may be others, or a label is computed from weights. It also is 0 if labels are only
    called by other names: where each right label has become one and the same other.
    """
    if not any(_in_other_pairs(sides, steps) for steps in ([sides.step], sides.steps_of_epoch)):
        return 0
    labels = _by_first(_labelled(sides.right, sides.right.steps))
    known = _labelled(sides.other, [sides.step])
    became = _by_first((old, label) for row, label in known for old in labels[row])
    renamed = len(became) < len(known) and all(len(others) == 1 for others in became.values())
    return 0 if renamed else sum(label not in labels[row] for row, label in known)


def _in_other_pairs(sides: Sides, steps: Sequence[int]) -> bool:
    """Whether both sides have the same inputs in some steps, and the same labels, but not together."""
    right, other = (Counter(_labelled(side, steps)) for side in sides.close_ups)
    parts = ([Counter(part) for part in zip(*pairs.elements(), strict=True)] for pairs in (right, other))
    return right != other and next(parts) == next(parts)


def has_unknown_pairs(sides: Sides, steps: Sequence[int]) -> bool:
    """Whether inputs and labels that the right side has are together on the other only: they are of other examples."""
    known = set(_labelled(sides.right, sides.right.steps))
    rows, labels = {row for row, _ in known}, {label for _, label in known}
    return any(row in rows and label in labels for row, label in set(_labelled(sides.other, steps)) - known)


def _labelled(close_up: CloseUp, steps: Iterable[int]) -> list[tuple[int, int]]:
    """The hashes of each example and of its label in some steps."""
    both = ((close_up.example_rows(step), close_up.rows(step, "targets")) for step in steps)
    return [pair for rows, labels in both if len(rows) == len(labels) for pair in zip(rows, labels, strict=True)]


def _by_first(pairs: Iterable[tuple[int, int]]) -> dict[int, set[int]]:
    """What pairs have second, by what they have first."""
    found: dict[int, set[int]] = {}
    for first, second in pairs:
        found.setdefault(first, set()).add(second)
    return found


def recorded_statistics(sides: Sides, located: Located) -> Iterator[Variant]:
    right, changed = sides.both(partial(_changed_between, trace=sides.other_trace))
    if changed and not right and all("moving_" in name for name in changed):
        seen = Measurement.of("script-changed-between", variable=changed[0], steps=sides.step - 1)
        yield Variant({}, seen, line=sides.other_trace.untaped)


def recorded_draws(sides: Sides, located: Located) -> Iterator[Variant]:
    for seen in hints_on_draws(sides, located):
        if seen.kind == "drawn-in-validation":
            yield Variant({}, seen, measured=True, line=sides.other_trace.untaped)


def _changed_between(close_up: CloseUp, step: int, trace: Trace) -> list[str]:
    """The names of the weights that change between the step before and the predictions of this one."""
    before, now = close_up.after.get(step - 1), close_up.of(step, "weights")
    pairs = zip(trace.variables, before or (), now[0].arrays if now else (), strict=False)
    return [variable.name for variable, a, b in pairs if not np.array_equal(a, b)]


@dataclass(frozen=True)
class Known:
    """Examples by the hash of their inputs.

    Attributes:
        of_run: how often the run has each example.
        of_experiment: how often the experiment's own data has it.
        labels: the hashes of its labels; equal inputs may have several.
    """

    of_run: Counter[int]
    of_experiment: Counter[int]
    labels: Mapping[int, set[int]]

    @staticmethod
    def of(run: Iterable[tuple[int, int]], experiment: Iterable[tuple[int, int]]) -> Known:
        """What is known, from the hashes of each example and its label."""
        both = [list(pairs) for pairs in (run, experiment)]
        of_run, of_experiment = (Counter(row for row, _ in pairs) for pairs in both)
        return Known(of_run, of_experiment, _by_first(itertools.chain(*both)))


def kinds_of_own_rows(
    known: Known, reference: CloseUp, candidate: CloseUp, batches: Batches
) -> tuple[list[tuple[str, Measurement]], list[Measurement]]:
    """What is wrong with the examples of a loop whose steps have other examples than the reference's.

    Such a loop may load and batch the data by itself. Its gradients match no batch of the run, but its rows are known.

    Returns:
        Causes, and evidence where there are none; both empty if its examples are not known.
    """
    right, epochs = map(CloseUp.rows_by_epoch, (reference, candidate))
    seen = candidate.all_rows()
    if not seen or not seen <= known.labels.keys():
        return [], []
    own = not seen <= known.of_run.keys()
    if (times := _passes(reference, candidate)) > 1:
        return [], [Measurement.of("passes", times=times)]
    causes = [*_own_labels(known, candidate), *_own_batch_size(reference, candidate, batches, own)]
    if not any(cause == "batch-size-differs" for cause, _ in causes):  # batches that are collected for an update
        for number, rows in enumerate(epochs, 1):
            if found := counted(rows, known.of_experiment if own else known.of_run):
                causes.append((found[0], found[1].but(epoch=number)))
                break
        if len(epochs) > 1 and epochs[0] == epochs[1] and len(right) > 1 and right[0] != right[1]:
            causes.append(("not-reshuffled", Measurement.of("same-order")))
    kind = "other-labels" if epochs == right else "own-order" if own else "other-order"
    named = [(cause, seen.but(own_data=own)) for cause, seen in causes]
    return named, [] if named else [Measurement.of(kind, own_data=own)]


def _passes(reference: CloseUp, candidate: CloseUp) -> int:
    """How often every step of the candidate sees each example of the reference's step; 0 if it sees other ones."""
    ratios = set()
    for step in reference.steps:
        batch, rows = (Counter(side.example_rows(step)) for side in (reference, candidate))
        times = rows.total() // max(batch.total(), 1)
        ratios.add(times if rows == Counter({row: times * number for row, number in batch.items()}) else 0)
    return ratios.pop() if len(ratios) == 1 else 0


def _own_labels(known: Known, candidate: CloseUp) -> Iterator[tuple[str, Measurement]]:
    pairs = _labelled(candidate, candidate.steps)
    right = [known.labels[row] for row, _ in pairs]
    given = Counter(label for _, label in pairs)
    if any(len(labels) > 1 for labels in right) or given != Counter(label for labels in right for label in labels):
        return  # labels in a form of the loop's own, or others than those of its examples
    if apart := sum(label not in known.labels[row] for row, label in pairs):
        yield "labels-shuffled-apart", Measurement.of("labels-apart", examples=apart, of=len(pairs))


def _own_batch_size(
    reference: CloseUp, candidate: CloseUp, batches: Batches, own: bool
) -> Iterator[tuple[str, Measurement]]:
    user_run = batches.user_run
    if own and user_run is None:
        return  # the loop may know the batch size of the user's own run
    whole, seen = ([frozenset(side.example_rows(step)) for step in (1, 2)] for side in (reference, candidate))
    if all(some < every for some, every in zip(seen, whole, strict=True)):
        return  # a part of each batch
    expected = user_run.global_batch_size if own and user_run is not None else batches.full
    first, second = (len(candidate.example_rows(step)) for step in (1, 2))
    if not own and first > batches.full and first % batches.full == 0:
        several = Measurement.of("several-batches", batches=first // batches.full, examples=batches.full)
        yield "batch-size-differs", several
    elif first not in (batches.full, expected) and second in (first, 0):
        yield "batch-size-differs", Measurement.of("batch-size", examples=first, expected=expected)


OF_ALL_SIZES = "dataset = dataset.batch(64)  # the global batch size, the same for any number of replicas"
"""The remedy where a batch grows with the number of replicas: then each size makes other steps."""
IN_PARTS = (
    "if micro_batch % micro_batches == 0:  # counted from 1, as many for each update as in the other script\n"
    "    optimizer.apply_gradients(zip(accumulated, variables))"
)


OF_REST = (
    "if rest := micro_batch % micro_batches:  # after the epoch's last micro-batch, counted from 1\n"
    "    gradients = [total / rest for total in accumulated]  # * micro_batches, if these are divided already\n"
    "    optimizer.apply_gradients(zip(gradients, variables))"
)
COUNTED_ON = (
    "micro_batch += 1  # counted from the first epoch on; neither it nor the sum is set back where an epoch begins\n"
    "if micro_batch % {} == 0:\n"
    "    ...  # make the update, then set back the sum"
)
OF_WHOLE_UPDATES = (
    "update = batch_size * gradient_accumulation_steps  # the optimizer keeps what is left for the next epoch\n"
    "examples = len(x) // update * update  # to train on, or choose sizes that divide len(x)"
)
