"""Causes in the examples of each step, the initial weights, and the state that validation leaves."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np

from compare.check.causes.base import Cause, Measurement, Variant, one_of
from compare.check.recipe import Recipe, Span
from compare.check.recorded import parts_of_step, skipped_updates, steps_of_epoch
from compare.check.sides import Sides
from compare.check.stages import Located
from compare.check.step_values import EXAMPLES, GRADIENTS, STATE, all_rows, example_rows, rows_by_epoch
from compare.check.used import ALONE, RUN, SCRIPT
from compare.verdict.model import Source
from compare.watch.seen import ENDLESS, CloseUp
from compare.watch.trace import Trace

if TYPE_CHECKING:
    from compare.check.batches import Batches
    from compare.check.case import Case


ROUNDED_AWAY = 1e-3
"""Weights whose difference is smaller, relative to the largest weight, share one initialization."""


def _feed(case: Case, recipe: Recipe, wanted: str) -> Iterable[Variant]:
    """The variant with the matched batches, if they show the cause ``wanted``."""
    if recipe.feed is not None:
        return
    feed = case.matched_feed(recipe)
    if feed is not None and feed != case.expected:
        kind, seen = kind_of_feed(case, feed)
        if kind == wanted:
            yield Variant({"feed": feed}, seen, measured=feed != case.seen_feed)


def kind_of_feed(case: Case, feed: tuple[Span, ...]) -> tuple[str | None, Measurement]:
    """The id of the cause, or None, of the sequence of batches that the steps were made from, and the sequence."""
    user_run = case.replay.user_run
    labels = {span: f"{span.epoch}.{i}" for spans in case.replay.spans.values() for i, span in enumerate(spans, 1)}
    if any(span not in labels for span in feed):
        size, expected = feed[0].stop - feed[0].start, case.expected[0].stop - case.expected[0].start
        factor = Fraction(size, expected)
        if user_run is not None and (factor * user_run.global_batch_size).denominator == 1:
            size, expected = int(factor * user_run.global_batch_size), user_run.global_batch_size
        return "batch-size-differs", Measurement.of("batch-size", examples=size, expected=expected)
    by_epoch = {
        epoch: [span for step, span in zip(case.steps, feed, strict=True) if step.epoch == epoch]
        for epoch in {step.epoch for step in case.steps}
    }
    seen = Measurement.of(
        "batches", batches={epoch: [labels[span] for span in spans] for epoch, spans in by_epoch.items()}
    )
    first = [span for span in case.expected if span.epoch == 1]
    if by_epoch.get(1) == first and by_epoch.get(2) == first:
        return "not-reshuffled", seen.but(same_order=True)
    missing = set(case.expected) - set(feed)
    repeated = len(set(feed)) < len(feed)
    in_order = list(dict.fromkeys(feed)) == [span for span in case.expected if span in feed]
    last = {case.replay.spans[epoch][-1] for epoch in case.epochs}
    if missing == last and not repeated and in_order:
        sizes = {"last": user_run.last, "examples": user_run.examples} if user_run is not None else {}
        return "examples-dropped", Measurement.of("last-batch-dropped", **sizes)
    if missing and not repeated and in_order:
        return "examples-dropped", seen.but(never=[labels[span] for span in sorted(missing)])
    if repeated and not missing and in_order:
        twice = sorted({span for span in feed if feed.count(span) > 1})
        return "examples-repeated", seen.but(repeated=[labels[span] for span in twice])
    return None, seen


def _not_shared(case: Case) -> Measurement | None:
    """Evidence that the loop trains other variables, or starts from other weights, than the run's."""
    observation = case.observation
    if observation.foreign:
        return Measurement.of("foreign-variables", count=observation.foreign)
    if names := observation.foreign_in_loss:
        return Measurement.of("foreign-in-loss", variables=names)
    if not observation.optimizer_steps:
        return None
    replicas = list(zip(observation.optimizer_steps[0].state, observation.initial, strict=True))
    gaps = {
        name: max(float(np.abs(np.subtract(a[i], b[i], dtype=np.float64)).max(initial=0)) for a, b in replicas)
        for i, name in enumerate(observation.names[: observation.trainable])
    }
    trainable = observation.initial[0][: observation.trainable]
    scale = max((float(np.abs(v).max(initial=0)) for v in trainable), default=0.0)
    moved = {name: gap for name, gap in gaps.items() if gap > ROUNDED_AWAY * scale}
    if not moved or any(step.moved_before(observation.trainable) for step in observation.optimizer_steps[1:]):
        return None  # weights that change before every step do not show another initialization
    name = max(moved, key=lambda variable: moved[variable])
    return Measurement.of("not-as-built", count=len(moved), variable=name, gap=moved[name])


def _validation_changes(case: Case) -> Measurement | None:
    """Evidence that validation trains, or changes other state as a forward pass in training mode does."""
    observation, usual = case.observation, case.reference.changed_after_steps
    trained = set(observation.names[: observation.trainable])
    for epoch, gaps in observation.changed_after_steps.items():
        changed = [name for name in gaps if name not in usual.get(epoch, {})]
        if not changed:
            continue
        if trained & set(changed):
            more = len(observation.of_epoch(epoch)) - len(case.replay.spans[epoch])
            if more > 0 and more == len(case.replay.validation):
                return Measurement.of("validation-updates", epoch=epoch, updates=more)
            continue
        if _explained_by_forward_pass(case, epoch, changed):
            return Measurement.of("changed-by-validation", variables=changed)
    return None


def _explained_by_forward_pass(case: Case, epoch: int, changed: list[str]) -> bool:
    """Whether calling the model with ``training=True`` on the first validation or training batches explains this."""
    observation, replay = case.observation, case.replay
    before, after = observation.state_after_last_step(epoch), observation.epoch_end_states[epoch]
    indices = [i for i, name in enumerate(observation.names) if name in changed]
    training = [replay.batch(span) for span in replay.spans[epoch]]
    for batches in (replay.validation, training):
        state = list(before[0])
        for batch in batches:
            state = replay.forward(state, replay.divided(batch)[0], Recipe(training=True)).state
            if all(np.allclose(state[i], after[0][i], rtol=1e-4, atol=1e-6) for i in indices):
                return True
    return False


# Two recorded sides


def kind_of_rows(sides: Sides, located: Located) -> tuple[str, Variant] | None:
    """The cause of other examples in a step."""
    right, other = (example_rows(each, sides.step) for each in (sides.right, sides.other))
    if not right or not other or len({*skipped_updates(sides)}) > 1:
        return None
    if apart := _with_another_label(sides):
        return "labels-shuffled-apart", _labels_apart(sides, apart)
    if rest := _rest_without_update(sides):
        return "examples-dropped", rest
    epoch = steps_of_epoch(sides)
    all_right = [row for step in epoch for row in example_rows(sides.right, step)]
    full = max((len(example_rows(sides.right, step)) for step in epoch), default=0)
    if sides.step == epoch[0] and len(right) != len(other) and len(right) == full:
        if left_out := _short_batch_left_out(sides):
            made = _leaving_out(sides.right, 1, sides.step, short=True)
            return "examples-dropped", Variant({}, sides.named(left_out), by_right=True, made=made)
        if full in (len(example_rows(sides.other, step)) for step in sides.other.steps if step > sides.step):
            return None  # one short batch is no other size of all
        parts = parts_of_step(sides)
        if parts[0] != parts[1] and len(right) * parts[1] == len(other) * parts[0]:
            numbers = {"parts": parts[1], "expected": parts[0], "examples": len(right) // parts[0]}
            seen = Measurement.of("script-parts-of-update", **numbers)
            return "batch-size-differs", Variant({}, seen, remedy=IN_PARTS, called=GRADIENTS)
        seen = Measurement.of("script-batch-size", examples=len(other), expected=len(right))
        sizes = sides.other_trace.replicas, sides.right_trace.replicas
        scaled = len(set(sizes)) > 1 and len(other) * sizes[1] == len(right) * sizes[0]
        made = dict.fromkeys(("batch", "padded_batch"), (len(other), len(other) // sizes[0]))
        return "batch-size-differs", Variant({}, seen, remedy=OF_ALL_SIZES if scaled else "", made=made)
    if set(other) - all_rows(sides.right) or has_unknown_pairs(sides, epoch):
        return None  # examples that the right side has never had
    first = example_rows(sides.right, epoch[0])
    unseen = set(right) - {row for step in sides.other.steps for row in example_rows(sides.other, step)}
    if len(epoch) > 1 and other[: len(first)] == first[: len(other)] and right != first and unseen:
        left = sum(len(example_rows(sides.right, step)) for step in epoch if step >= sides.step)
        numbers = {"examples": left, "never": left, "of_all": len(all_right)}
        seen = Measurement.of("tail-left-out", side=sides.right_name, other=sides.other_name, **numbers)
        short = sides.step == epoch[-1] and len(right) < full
        return "examples-dropped", Variant({}, seen, made=_leaving_out(sides.other, epoch[0], sides.step, short=short))
    if again := [step for step in epoch if step < sides.step and example_rows(sides.other, step) == other]:
        seen = Measurement.of("had-again", examples=len(other), earlier_step=again[-1])
        return "examples-repeated", Variant({}, seen)
    return _in_whole_epoch(sides, epoch, all_right)


def _in_whole_epoch(sides: Sides, epoch: Sequence[int], all_right: Sequence[int]) -> tuple[str, Variant] | None:
    """The cause of other examples in a step, by those of its epoch."""
    counted = _counted([row for step in epoch for row in example_rows(sides.other, step)], Counter(all_right))
    if counted is None:
        return None
    right, other = (example_rows(each, sides.step) for each in (sides.right, sides.other))
    cause, seen = counted
    never, made = seen.quantities["never"], dict[str, Collection[float]]()
    if cause == "examples-repeated" and sides.step == epoch[-1] and other[: len(right)] == right:
        made["repeat"] = range(2, ENDLESS + 1)  # before batch, which then mixes the end with the beginning
    elif cause == "examples-dropped" and all_right[never:][:1] == other[:1]:  # the first ones
        made["skip"] = never, never / len(right)
    kind = {"examples-repeated": "script-repeats", "examples-dropped": "script-never-seen"}[cause]
    return cause, Variant({}, Measurement(kind, seen.quantities), made=made)


def _leaving_out(close_up: CloseUp, begin: int, end: int, *, short: bool) -> dict[str, Collection[float]]:
    """The operations of a data set that leave out its end, and a short batch, where an epoch had these steps only."""
    sizes = [len(example_rows(close_up, step)) for step in range(begin, end)]
    return {"take": (len(sizes), sum(sizes)), "drop_remainder": sizes[:1] if short else ()}


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


def _counted(rows: Sequence[int], source: Counter[int]) -> tuple[str, Measurement] | None:
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
    begins = [example_rows(side, 1) for side in (sides.right, sides.other)]
    right, other = (example_rows(side, sides.step) for side in (sides.right, sides.other))
    following = example_rows(sides.other, sides.step + 1)
    if not begins[0] or begins[0] != begins[1] or right != begins[0] or len(other) >= len(right):
        return None
    if following != begins[1] or set(other) & all_rows(sides.right):
        return None
    total = sum(len(example_rows(sides.other, step)) for step in range(1, sides.step + 1))
    return Measurement.of("tail-left-out", examples=len(other), never=len(other), of_all=total)


def _labels_apart(sides: Sides, apart: int) -> Variant:
    """Labels of other examples; where they are the inputs, as of an autoencoder, of the side whose are not."""
    rows = [(example_rows(each, sides.step), each.rows(sides.step, "targets")) for each in (sides.right, sides.other)]
    by_right, theirs = (inputs != labels for inputs, labels in rows)
    seen = Measurement.of("script-labels-apart", examples=apart, of=len(rows[1][0]))
    return Variant({}, seen, by_right=by_right and not theirs)


def _rest_without_update(sides: Sides) -> Variant | None:
    """The last micro-batches of an epoch, too few for an update, after which one side goes on with the next epoch's."""
    both = [(example_rows(side, sides.step), parts) for side, parts in zip(
        (sides.right, sides.other), parts_of_step(sides), strict=True)]  # fmt: skip
    by_right = len(both[0][0]) > len(both[1][0])
    (many, parts), (few, _) = both if by_right else both[::-1]
    alone = sides.other if by_right else sides.right
    more, following = many[len(few) :], example_rows(alone, sides.step + 1)
    full = max(len(example_rows(alone, step)) for step in alone.steps)
    if parts < 2 or not more or many[: len(few)] != few or following[: len(more)] != more or len(few) == full:
        return None
    seen = Measurement.of("rest-without-update", examples=len(few), more=len(more))
    accumulates = (sides.right_trace if by_right else sides.other_trace).config.get("gradient_accumulation_steps")
    remedy = OF_WHOLE_UPDATES if accumulates else OF_REST
    return Variant({}, seen, remedy=remedy, by_right=by_right, called=GRADIENTS)


def _with_another_label(sides: Sides) -> int:
    """The number of examples of the step whose label is another one than that of equal inputs on the right side.

    It is 0 unless the step or the epoch has the same inputs and the same labels on both sides, in other pairs: else
    examples with equal inputs may be others, or a label is computed from weights. It also is 0 if labels are only
    called by other names: where each right label has become one and the same other.
    """
    if not any(_in_other_pairs(sides, steps) for steps in ([sides.step], steps_of_epoch(sides))):
        return 0
    labels: dict[int, set[int]] = {}
    for row, label in _labelled(sides.right, sides.right.steps):
        labels.setdefault(row, set()).add(label)
    known = _labelled(sides.other, [sides.step])
    became: dict[int, set[int]] = {}
    for row, label in known:
        for old in labels[row]:
            became.setdefault(old, set()).add(label)
    renamed = len(became) < len(known) and all(len(others) == 1 for others in became.values())
    return 0 if renamed else sum(label not in labels[row] for row, label in known)


def _in_other_pairs(sides: Sides, steps: Sequence[int]) -> bool:
    """Whether both sides have the same inputs in some steps, and the same labels, but not together."""
    right, other = (Counter(_labelled(side, steps)) for side in (sides.right, sides.other))
    parts = ([Counter(part) for part in zip(*pairs.elements(), strict=True)] for pairs in (right, other))
    return right != other and next(parts) == next(parts)


def has_unknown_pairs(sides: Sides, steps: Sequence[int]) -> bool:
    """Whether inputs and labels that the right side has are together on the other only: they are of other examples."""
    known = set(_labelled(sides.right, sides.right.steps))
    rows, labels = {row for row, _ in known}, {label for _, label in known}
    return any(row in rows and label in labels for row, label in set(_labelled(sides.other, steps)) - known)


def _labelled(close_up: CloseUp, steps: Iterable[int]) -> list[tuple[int, int]]:
    """The hashes of each example and of its label in some steps."""
    both = ((example_rows(close_up, step), close_up.rows(step, "targets")) for step in steps)
    return [pair for rows, labels in both if len(rows) == len(labels) for pair in zip(rows, labels, strict=True)]


def _recorded_statistics(sides: Sides, located: Located) -> Iterator[Variant]:
    right, changed = (_changed_between(each, sides.step, sides.other_trace) for each in (sides.right, sides.other))
    if changed and not right and all("moving_" in name for name in changed):
        yield Variant({}, Measurement.of("script-changed-between", variable=changed[0], steps=sides.step - 1))


def _changed_between(close_up: CloseUp, step: int, trace: Trace) -> list[str]:
    """The names of the weights that change between the step before and the predictions of this one."""
    before, now = close_up.after.get(step - 1), close_up.of(step, "weights")
    pairs = zip(trace.variables, before or (), now[0].arrays if now else (), strict=False)
    return [variable.name for variable, a, b in pairs if not np.array_equal(a, b)]


# A loop with data of its own


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
        labels: dict[int, set[int]] = {}
        counted = Counter[int](), Counter[int]()
        for rows, pairs in zip(counted, (run, experiment), strict=True):
            for row, label in pairs:
                rows[row] += 1
                labels.setdefault(row, set()).add(label)
        return Known(*counted, labels)


def kinds_of_own_rows(
    known: Known, reference: CloseUp, candidate: CloseUp, batches: Batches
) -> tuple[list[tuple[str, Measurement]], list[Measurement]]:
    """What is wrong with the examples of a loop whose steps have other examples than the reference's.

    Such a loop may load and batch the data by itself. Its gradients match no batch of the run, but its rows are known.

    Returns:
        Causes, and evidence where there are none; both empty if its examples are not known.
    """
    right, epochs = map(rows_by_epoch, (reference, candidate))
    seen = all_rows(candidate)
    if not seen or not seen <= known.labels.keys():
        return [], []
    own = not seen <= known.of_run.keys()
    if (times := _passes(reference, candidate)) > 1:
        return [], [Measurement.of("passes", times=times)]
    causes = [*_own_labels(known, candidate), *_own_batch_size(reference, candidate, batches, own)]
    if not any(cause == "batch-size-differs" for cause, _ in causes):  # batches that are collected for an update
        for number, rows in enumerate(epochs, 1):
            if counted := _counted(rows, known.of_experiment if own else known.of_run):
                causes.append((counted[0], counted[1].but(epoch=number)))
                break
        if len(epochs) > 1 and epochs[0] == epochs[1] and len(right) > 1 and right[0] != right[1]:
            causes.append(("not-reshuffled", Measurement.of("same-order")))
    kind = "other-labels" if epochs == right else "own-order" if own else "other-order"
    found = [(cause, seen.but(own_data=own)) for cause, seen in causes]
    return found, [] if found else [Measurement.of(kind, own_data=own)]


def _passes(reference: CloseUp, candidate: CloseUp) -> int:
    """How often every step of the candidate sees each example of the reference's step; 0 if it sees other ones."""
    ratios = set()
    for step in reference.steps:
        batch, rows = (Counter(example_rows(side, step)) for side in (reference, candidate))
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
    whole, seen = ([frozenset(example_rows(side, step)) for step in (1, 2)] for side in (reference, candidate))
    if all(some < every for some, every in zip(seen, whole, strict=True)):
        return  # a part of each batch
    expected = user_run.global_batch_size if own and user_run is not None else batches.full
    first, second = (len(example_rows(candidate, step)) for step in (1, 2))
    if not own and first > batches.full and first % batches.full == 0:
        several = Measurement.of("several-batches", batches=first // batches.full, examples=batches.full)
        yield "batch-size-differs", several
    elif first not in (batches.full, expected) and second in (first, 0):
        yield "batch-size-differs", Measurement.of("own-batch-size", examples=first, expected=expected)


OF_ALL_SIZES = "dataset = dataset.batch(64)  # the global batch size, the same for any number of replicas"
"""The remedy where a batch grows with the number of replicas: then each size makes other steps."""
IN_PARTS = (
    "if micro_batch % micro_batches == 0:  # counted from 1, as many for each update as in the other script\n"
    "    optimizer.apply_gradients(zip(accumulated, variables))"
)

OF_REST = (
    "if rest := micro_batch % micro_batches:  # after the epoch's last micro-batch, counted from 1\n"
    "    gradients = [total / rest for total in accumulated]\n"
    "    optimizer.apply_gradients(zip(gradients, variables))"
)
OF_WHOLE_UPDATES = (
    "update = batch_size * gradient_accumulation_steps  # the optimizer keeps what is left for the next epoch\n"
    "examples = len(x) // update * update  # to train on, or choose sizes that divide len(x)"
)


CAUSES = (
    Cause(
        id="not-reshuffled",
        stages=(EXAMPLES,),
        symptom="The first epoch is equal; later epochs are not.",
        explanation="The loop iterates over one data set in every epoch, so it sees the examples in the same order "
        "again.",
        wrong="dataset = strategy.experimental_distribute_dataset(run.train_dataset(1))\n"
        "for epoch in run.epochs:\n"
        "    for batch in dataset: ...",
        remedy="for epoch in run.epochs:\n"
        "    dataset = strategy.experimental_distribute_dataset(run.train_dataset(epoch))",
        remedies={f"{RUN} {ALONE}": "for epoch in run.epochs:\n    dataset = run.train_dataset(epoch)"},
        recognised="Every step's gradient is matched against the gradients of all batches: those of the second epoch "
        "belong to the first epoch's batches, in the first epoch's order.",
        met='"Datasets not reshuffling between epochs in eager mode", '
        "https://github.com/tensorflow/tensorflow/issues/26179\n"
        'Review of "Add benchmarks for custom training loops + tf.distribute": the same order in every epoch, '
        "https://github.com/tensorflow/models/pull/6980",
        gradient=lambda case, recipe: _feed(case, recipe, "not-reshuffled"),
    ),
    Cause(
        id="examples-dropped",
        stages=(EXAMPLES,),
        symptom="An epoch has fewer steps than fit's, or the same number of steps from fewer batches.",
        explanation="Batches are left out: the short last batch (because of drop_remainder, or a step count computed "
        "with //), or skipped steps.",
        wrong="for step in range(examples // batch_size): ...",
        remedy="for batch in dataset: ...  # all of them; steps = math.ceil(examples / batch_size)",
        recognised="Every step's gradient is matched against the gradients of all batches: some batches, which are "
        "named, match no step, and the others are in order.",
        met='"Model performs differently for model.fit and custom training loop": n_batches = '
        "int(len(train_set) / opt.b_size), https://github.com/tensorflow/tensorflow/issues/41957",
        gradient=lambda case, recipe: _feed(case, recipe, "examples-dropped"),
        recorded={EXAMPLES: one_of(kind_of_rows, "examples-dropped")},
    ),
    Cause(
        id="examples-repeated",
        stages=(EXAMPLES,),
        symptom="An epoch has more steps than fit's.",
        explanation="Some batches are trained on more than once: because of repeat() without a step count, "
        "or an iterator that is restarted.",
        wrong="for batch in dataset.repeat(2): ...",
        remedy="dataset = strategy.experimental_distribute_dataset(run.train_dataset(epoch))  # without repeat()\n"
        "for batch in dataset: ...",
        remedies={
            SCRIPT: "for batch in dataset: ...  # in every epoch, once over all examples, without repeat()",
            f"{RUN} {ALONE}": "dataset = run.train_dataset(epoch)  # without repeat()\nfor batch in dataset: ...",
        },
        recognised="Every step's gradient is matched against the gradients of all batches: some batches, which are "
        "named, match more than one step, and the order is right.",
        met='"Question about the number of steps per epoch": with several GPUs, epochs larger than expected '
        "(tensorpack), https://github.com/tensorpack/tensorpack/issues/598",
        gradient=lambda case, recipe: _feed(case, recipe, "examples-repeated"),
        recorded={EXAMPLES: one_of(kind_of_rows, "examples-repeated")},
    ),
    Cause(
        id="batch-size-differs",
        stages=(EXAMPLES,),
        symptom="An epoch has more or fewer steps than fit's; with several replicas, often by a factor of their "
        "number.",
        explanation="The loop uses another batch size, for example the one per replica instead of the global one.",
        wrong="dataset = dataset.unbatch().batch(GLOBAL_BATCH_SIZE * strategy.num_replicas_in_sync)  # it was "
        "the global batch size already",
        remedy="batch_size = per_replica_batch_size * strategy.num_replicas_in_sync  # run.train_dataset uses it",
        remedies={
            SCRIPT: "dataset = dataset.batch(batch_size)  # fit's, which is 32 if it is not given",
            f"{RUN} {ALONE}": "batch_size = run.global_batch_size  # run.train_dataset uses it",
        },
        recognised="The gradients match none of the batches, but they match the same examples in the same order, split "
        "into batches of another size.",
        met='"Fix batch size in multiple GPU training": the data set has to have global batches, '
        "https://github.com/OpenNMT/OpenNMT-tf/pull/540",
        gradient=lambda case, recipe: _feed(case, recipe, "batch-size-differs"),
        recorded={EXAMPLES: one_of(kind_of_rows, "batch-size-differs")},
    ),
    Cause(
        id="labels-shuffled-apart",
        stages=(EXAMPLES,),
        symptom="The loss falls to that of guessing and no further; accuracy stays at chance.",
        explanation="Inputs and labels are shuffled one after the other, with different random numbers, so that labels "
        "no longer belong to their inputs.",
        wrong="np.random.shuffle(x)\nnp.random.shuffle(y)",
        remedy="order = np.random.permutation(len(x))\nx, y = x[order], y[order]",
        recognised="The examples of a step are recognised by their values: an example has another label than fit's.",
        recorded={EXAMPLES: one_of(kind_of_rows, "labels-shuffled-apart")},
    ),
    Cause(
        id="weights-not-shared",
        symptom="fit and the loop differ before the first step.",
        explanation="The loop trains a model of its own, or initializes the model again, so that fit and the loop do "
        "not start from the same weights. Or it makes copies of layers that are to be shared, such as an encoder of "
        "two inputs.",
        wrong="model = tf.keras.models.clone_model(model)  # with new random weights",
        remedy="model, optimizer, loss_object, metrics = run.build()  # and train this model unchanged",
        remedies={
            SCRIPT: "encoder = make_encoder()  # once\nfirst, second = encoder(a), encoder(b)  # the same layers",
        },
        recognised="The weights before the first step differ from those that run.build() returned, or the optimizer is "
        "applied to variables of another model. This is observed directly.",
        met='"[Chapter 17] Unsupervised pretraining: Exercise Solutions: Model cloning error", '
        "https://github.com/ageron/handson-ml2/issues/246\n"
        '"Feature Request": a user finds that clone_model leaves the weights behind, '
        "https://github.com/keras-team/keras/issues/16668",
        fact=_not_shared,
    ),
    Cause(
        id="validation-changes-state",
        stages=(EXAMPLES, STATE),  # an update on a batch of validation is a step with other examples
        called=None,
        symptom="Training depends on how often validation runs.",
        explanation="The model is called with training=True in validation, so that batch normalization's moving "
        "statistics, or the random state of dropout, are updated by validation data; or validation updates weights.",
        wrong="predictions = model(x, training=True)  # in validation",
        remedy="predictions = model(x, training=False)  # in validation",
        remedies={SCRIPT: "predictions = model(x, training=False)  # wherever it is called but to train it"},
        recognised="All weights, moving statistics and random states are read before and after validation: some of "
        "them, which are named, change, and fit's do not; or the optimizer is applied once for each batch of "
        "validation. This is observed directly.",
        met='"Val loss behaves strange while using custom training loop": moving averages change in '
        "validation, https://github.com/tensorflow/tensorflow/issues/33771\n"
        '"WS07: Evaluation loop trains on the test set" (PyTorch), '
        "https://github.com/Graylab/DL4Proteins-notebooks/issues/11",
        fact=_validation_changes,
        recorded={STATE: _recorded_statistics},
    ),
    Cause(
        id="empty-replica-batch",
        symptom="With several replicas the loss is NaN, or weights jump, after a last batch of very few examples.",
        explanation="A batch with fewer examples than replicas leaves some replica without any. The mean over no "
        "examples is 0/0; convolutions and batch normalization fail on an empty batch.",
        wrong="loss = tf.reduce_mean(per_example)  # 0/0 on a replica without examples",
        remedy="count = tf.cast(tf.size(per_example), tf.float32)\n"
        "loss = tf.math.divide_no_nan(tf.reduce_sum(per_example), count) / strategy.num_replicas_in_sync\n"
        "# or drop such batches in both fit and the loop",
        recognised="If everything else is right, fit and the loop train once more with a last batch that leaves one "
        "replica empty: the gradient of that step, or a reported number, is wrong or NaN, and fit's is not.",
        met='"NaN loss and accuracy when using MirroredStrategy on multiple GPUs (ROCm)", '
        "https://github.com/tensorflow/tensorflow/issues/41657",
        # Recognised in a separate run, by compare/check/empty_replica.py, since some models fail on empty batches.
    ),
)
