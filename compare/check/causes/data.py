"""Causes in which examples a step is made from, and in what a run begins with or leaves behind."""

from __future__ import annotations

from collections.abc import Iterable
from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np

from compare.check.causes.base import Cause, Variant
from compare.check.observation import Applied
from compare.check.recipe import Place, Recipe

if TYPE_CHECKING:
    from compare.check.case import Case


ROUNDED_AWAY = 1e-3
"""Weights that differ by less, relative to the largest of all, do not come from another initialization."""


def _feed(case: Case, base: Recipe, wanted: str) -> Iterable[Variant]:
    if base.feed is not None:
        return
    feed = case.matched_feed(base)
    if feed is not None and feed != case.expected:
        kind, text = kind_of_feed(case, feed)
        if kind == wanted:
            yield Variant({"feed": feed}, text, measured=True)


def kind_of_feed(case: Case, feed: tuple[Place, ...]) -> tuple[str | None, str]:
    """The cause that a sequence of batches tells of, if one does, and the sequence in words."""
    own = case.replay.own
    places = {place: f"{place.epoch}.{i}" for each in case.replay.places.values() for i, place in enumerate(each, 1)}
    if any(place not in places for place in feed):
        ours, theirs = feed[0].stop - feed[0].start, case.expected[0].stop - case.expected[0].start
        times = Fraction(ours, theirs)
        if own is not None and (times * own.global_batch_size).denominator == 1:
            ours, theirs = int(times * own.global_batch_size), own.global_batch_size
        return "batch-size-differs", f"a full batch has {ours} examples, where the global batch size is {theirs}"
    by_epoch = {
        epoch: [place for step, place in zip(case.steps, feed, strict=True) if step.epoch == epoch]
        for epoch in {step.epoch for step in case.steps}
    }
    names = [f"{', '.join(places[place] for place in each)} in epoch {epoch}" for epoch, each in by_epoch.items()]
    text = f"the steps are made from batches (epoch.number) {'; '.join(names)}"
    first = [place for place in case.expected if place.epoch == 1]
    if by_epoch.get(1) == first and by_epoch.get(2) == first:
        return "not-reshuffled", text + ": the second epoch has the order of the first"
    missing = set(case.expected) - set(feed)
    repeated = len(set(feed)) < len(feed)
    in_order = list(dict.fromkeys(feed)) == [place for place in case.expected if place in feed]
    last = {case.replay.places[epoch][-1] for epoch in case.epochs}
    if missing == last and not repeated and in_order:
        of_own = f", {own.last} of {own.examples:,} examples" if own is not None else ""
        return "examples-dropped", f"the last batch of each epoch is never trained on{of_own}"
    if missing and not repeated and in_order:
        return "examples-dropped", text + f": {', '.join(places[p] for p in sorted(missing))} never"
    if repeated and not missing and in_order:
        twice = sorted({place for place in feed if feed.count(place) > 1})
        return "examples-repeated", text + f": {', '.join(places[p] for p in twice)} more than once"
    return None, text


def _not_shared(case: Case) -> str | None:
    seen = case.seen
    if seen.foreign:
        return f"the optimizer was applied to {seen.foreign} variables that are not those of the model from run.build()"
    if not seen.applied:
        return None
    first = seen.applied[0].state
    gaps = {
        name: max(
            float(np.abs(np.subtract(mine[i], given[i], dtype=np.float64)).max(initial=0)) for mine, given in pairs
        )
        for i, name in enumerate(seen.names[: seen.trainable])
        for pairs in [list(zip(first, seen.initial, strict=True))]
    }
    scale = max((float(np.abs(v).max(initial=0)) for v in seen.initial[0][: seen.trainable]), default=0.0)
    moved = {name: gap for name, gap in gaps.items() if gap > ROUNDED_AWAY * scale}
    if not moved or any(_moved_before(step, seen.trainable) for step in seen.applied[1:]):
        return None  # what is done before every step is no other beginning
    name = max(moved, key=lambda each: moved[each])
    return f"before the first step {len(moved)} variables are not as built, {name} by up to {moved[name]:.3g}"


def _moved_before(step: Applied, trainable: int) -> bool:
    """Whether trained weights were changed between the step before and this one."""
    pairs = zip(step.before, step.state, strict=True)
    return any(
        not np.array_equal(a, b, equal_nan=True)
        for before, state in pairs
        for a, b in zip(before[:trainable], state[:trainable], strict=True)
    )


def _validation_changes(case: Case) -> str | None:
    """State that is not trained, changed between the last step and the epoch's end as a forward pass changes it."""
    seen, usual = case.seen, case.reference.changed_after_steps
    trained = set(seen.names[: seen.trainable])
    for epoch, gaps in seen.changed_after_steps.items():
        changed = [name for name in gaps if name not in usual.get(epoch, {})]
        if not changed or trained & set(changed):
            continue
        if _passed_forward(case, epoch, changed):
            are = "is" if len(changed) == 1 else "are"
            return f"{', '.join(changed)} {are} not the same before and after validation"
    return None


def _passed_forward(case: Case, epoch: int, changed: list[str]) -> bool:
    """Whether calling the model in training mode on some first batches of validation, or of training, does this."""
    before, after, replay = case.seen.left(epoch), case.seen.ended[epoch], case.replay
    which = [i for i, name in enumerate(case.seen.names) if name in changed]
    training = [replay.batch(place) for place in replay.places[epoch]]
    for batches in (replay.validation, training):
        state = list(before[0])
        for batch in batches:
            state = replay.forward(state, replay.divided(batch)[0], Recipe(training=True)).state
            if all(np.allclose(state[i], after[0][i], rtol=1e-4, atol=1e-6) for i in which):
                return True
    return False


CAUSES = (
    Cause(
        id="not-reshuffled",
        symptom="The first epoch is equal, the later ones are not.",
        explanation="The loop iterates the same data set again, and sees the examples in the same order again.",
        wrong="dataset = strategy.experimental_distribute_dataset(run.train_dataset(1))\n"
        "for epoch in run.epochs:\n"
        "    for batch in dataset: ...",
        remedy="for epoch in run.epochs:\n"
        "    dataset = strategy.experimental_distribute_dataset(run.train_dataset(epoch))",
        recognised="Every step's gradient is matched with those of all batches the loop could have been given: "
        "those of the second epoch turn out to be the first epoch's, in its order.",
        met='"Datasets not reshuffling between epochs in eager mode", '
        "https://github.com/tensorflow/tensorflow/issues/26179\n"
        'Review of "Add benchmarks for custom training loops + tf.distribute": the same order in every epoch, '
        "https://github.com/tensorflow/models/pull/6980",
        gradient=lambda case, base: _feed(case, base, "not-reshuffled"),
    ),
    Cause(
        id="examples-dropped",
        symptom="Fewer steps per epoch than fit makes, or the same number from fewer batches.",
        explanation="Batches are left out: a short tail cut off (drop_remainder, or steps counted with //), "
        "or steps that are skipped.",
        wrong="for step in range(examples // batch_size): ...",
        remedy="for batch in dataset: ...  # all of them; steps = math.ceil(examples / batch_size)",
        recognised="Every step's gradient is matched with those of all batches: some batch, which is named, is "
        "behind no step, and the others are in order.",
        met='"Model performs differently for model.fit and custom training loop": n_batches = '
        "int(len(train_set) / opt.b_size), https://github.com/tensorflow/tensorflow/issues/41957",
        gradient=lambda case, base: _feed(case, base, "examples-dropped"),
    ),
    Cause(
        id="examples-repeated",
        symptom="More steps per epoch than fit makes.",
        explanation="Some batches are trained on more than once: repeat() without a count of steps, "
        "or an iterator that is begun anew.",
        wrong="for batch in dataset.repeat(2): ...",
        remedy="dataset = strategy.experimental_distribute_dataset(run.train_dataset(epoch))  # without repeat()\n"
        "for batch in dataset: ...",
        recognised="Every step's gradient is matched with those of all batches: some, which are named, are behind "
        "more than one step of an epoch, and the order is right.",
        met='"Question about the number of steps per epoch": with several GPUs, epochs larger than expected '
        "(tensorpack), https://github.com/tensorpack/tensorpack/issues/598",
        gradient=lambda case, base: _feed(case, base, "examples-repeated"),
    ),
    Cause(
        id="batch-size-differs",
        symptom="More steps, or fewer, than fit makes; with several replicas, by a factor of their number.",
        explanation="The loop batches by another size: that per replica in place of the global one, mostly.",
        wrong="dataset = dataset.unbatch().batch(GLOBAL_BATCH_SIZE * strategy.num_replicas_in_sync)  # it was "
        "global already",
        remedy="batch_size = per_replica_batch_size * strategy.num_replicas_in_sync  # run.train_dataset is batched so",
        recognised="The gradients match none of the batches as they are, and match the same examples in the same "
        "order, cut to another size.",
        met='"Fix batch size in multiple GPU training": the data set has to have global batches, '
        "https://github.com/OpenNMT/OpenNMT-tf/pull/540",
        gradient=lambda case, base: _feed(case, base, "batch-size-differs"),
    ),
    Cause(
        id="weights-not-shared",
        symptom="The two sides differ before the first step.",
        explanation="The loop trains a model of its own, or initializes the model again, so that the two sides do not "
        "start from the same weights.",
        wrong="model = tf.keras.models.clone_model(model)  # with new random weights",
        remedy="model, optimizer, loss_object, metrics = run.build()  # and train this model, as it is",
        recognised="The weights before the first step are not those that run.build() made, or the optimizer is "
        "applied to variables of another model. That is seen directly.",
        met='"[Chapter 17] Unsupervised pretraining: Exercise Solutions: Model cloning error", '
        "https://github.com/ageron/handson-ml2/issues/246\n"
        '"Feature Request": a user finds that clone_model leaves the weights behind, '
        "https://github.com/keras-team/keras/issues/16668",
        fact=_not_shared,
    ),
    Cause(
        id="validation-changes-state",
        symptom="Validating more or less often changes training.",
        explanation="The model is called with training=True in validation, so that batch normalization's moving "
        "statistics (or the dropout's random state) take in validation data; or validation updates weights.",
        wrong="predictions = model(x, training=True)  # in validation",
        remedy="predictions = model(x, training=False)  # in validation",
        recognised="All weights, moving statistics and random states are read before and after validation: some, "
        "which are named, have changed, and fit's have not. That is seen directly.",
        met='"Val loss behaves strange while using custom training loop": moving averages change in '
        "validation, https://github.com/tensorflow/tensorflow/issues/33771\n"
        '"WS07: Evaluation loop trains on the test set" (PyTorch), '
        "https://github.com/Graylab/DL4Proteins-notebooks/issues/11",
        fact=_validation_changes,
    ),
    Cause(
        id="empty-replica-batch",
        symptom="With several replicas the loss is NaN, or weights jump, after a last batch of very few examples.",
        explanation="A batch with fewer examples than replicas leaves some replica without any. The mean over nothing "
        "is 0/0; convolutions and batch normalization fail on it outright.",
        wrong="loss = tf.reduce_mean(per_example)  # 0/0 on a replica without examples",
        remedy="count = tf.cast(tf.size(per_example), tf.float32)\n"
        "loss = tf.math.divide_no_nan(tf.reduce_sum(per_example), count) / strategy.num_replicas_in_sync\n"
        "# or drop such a batch on both sides",
        recognised="Where all else is right, both sides train once more with a last batch that leaves one replica "
        "empty: the gradient of that step, or a reported number, is off or is NaN, and fit's is not.",
        met='"NaN loss and accuracy when using MirroredStrategy on multiple GPUs (ROCm)", '
        "https://github.com/tensorflow/tensorflow/issues/41657",
        # Recognised by a run of its own, in compare/check/probe.py: it may be too much for a model.
    ),
)
