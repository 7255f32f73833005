"""Causes in the examples of each step, the initial weights, and the state that validation leaves."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np

from compare.check.causes.base import NOT_TRAINING, Cause, Measurement, Variant, one_of
from compare.check.causes.data_recorded import counted, kind_of_rows, recorded_draws, recorded_statistics
from compare.check.recipe import Recipe, Span
from compare.check.step_values import EXAMPLES, PREDICTIONS, STATE
from compare.check.used import ALONE, RUN, SCRIPT

if TYPE_CHECKING:
    from compare.check.case import Case


ROUNDED_AWAY = 1e-3
"""Weights whose difference is smaller, relative to the largest weight, share one initialization."""


def _feed(case: Case, recipe: Recipe) -> tuple[str, Variant] | None:
    """The cause of other batches in the steps, with those that match."""
    feed = case.matched_feed(recipe) if recipe.feed is None else None
    if feed is None or feed == case.expected:
        return None
    kind, seen = kind_of_feed(case, feed)
    return (kind, Variant({"feed": feed}, seen, measured=feed != case.seen_feed)) if kind else None


def kind_of_feed(case: Case, feed: tuple[Span, ...]) -> tuple[str | None, Measurement]:
    """The id of the cause, or None, of the sequence of batches that the steps were made from, and what says it."""
    user_run, known = case.replay.user_run, case.replay.spans
    if not set(feed) <= {span for spans in known.values() for span in spans}:
        size, expected = feed[0].stop - feed[0].start, case.expected[0].stop - case.expected[0].start
        factor = Fraction(size, expected)
        if user_run is not None and (factor * user_run.global_batch_size).denominator == 1:
            size, expected = int(factor * user_run.global_batch_size), user_run.global_batch_size
        return "batch-size-differs", Measurement.of("batch-size", examples=size, expected=expected)
    by_epoch = {
        epoch: [span for step, span in zip(case.steps, feed, strict=True) if step.epoch == epoch]
        for epoch in case.epochs
    }
    if by_epoch.get(1) == by_epoch.get(2) == known[1]:
        return "not-reshuffled", Measurement.of("same-order")
    missing, once = set(case.expected) - set(feed), dict.fromkeys(feed)
    repeated, in_order = len(once) < len(feed), list(once) == [span for span in case.expected if span in once]
    cause = None
    if in_order and repeated != bool(missing):
        cause = "examples-repeated" if repeated else "examples-dropped"
    if cause and missing == {known[epoch][-1] for epoch in case.epochs}:
        sizes = {"last": user_run.last, "examples": user_run.examples} if user_run is not None else {}
        return cause, Measurement.of("last-batch-dropped", **sizes)
    for epoch, spans in by_epoch.items():
        found = counted(_examples(spans), Counter(_examples(known[epoch])))
        if found and cause in (None, found[0]):
            return cause, found[1].but(epoch=epoch)
    return cause, Measurement.of("other-order")


def _examples(spans: Sequence[Span]) -> list[tuple[int, int]]:
    """The examples of some batches, by epoch and position."""
    return [(span.epoch, i) for span in spans for i in range(span.start, span.stop)]


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
            state = replay.compute(state, replay.divided(batch)[0], Recipe(training=True)).state
            if all(np.allclose(state[i], after[0][i], rtol=1e-4, atol=1e-6) for i in indices):
                return True
    return False


OF_STEPS = r"next\(iter\(|drop_remainder ?= ?True|(?i:\w*(step|batch|update|iter)\w* = .+/)"
"""What may leave out examples: a number of steps, or an iterator that is made anew for each batch."""

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
        gradient=one_of(_feed, "not-reshuffled"),
    ),
    Cause(
        id="examples-dropped",
        made_in=OF_STEPS,
        stages=(EXAMPLES,),
        symptom="An epoch has fewer steps than fit's, or the same number of steps from fewer batches.",
        explanation="Batches are left out: the short last batch (because of drop_remainder, or a step count computed "
        "with //), or skipped steps.",
        wrong="for step in range(examples // batch_size): ...",
        remedy="for batch in dataset: ...  # all of them; steps = math.ceil(examples / batch_size)",
        gradient=one_of(_feed, "examples-dropped"),
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
        gradient=one_of(_feed, "examples-repeated"),
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
        gradient=one_of(_feed, "batch-size-differs"),
        recorded={EXAMPLES: one_of(kind_of_rows, "batch-size-differs")},
    ),
    Cause(
        id="labels-shuffled-apart",
        stages=(EXAMPLES,),
        symptom="The loss falls to that of guessing and no further; accuracy stays at chance.",
        explanation="Inputs and labels are shuffled one after the other, with different random numbers, so that labels "
        "no longer belong to their inputs.",
        wrong="np.random.shuffle(x)\nnp.random.shuffle(y)",
        unnamed=("x", "y"),  # all examples, not the batch that a model is given
        remedy="order = np.random.permutation(len(x))\nx, y = x[order], y[order]",
        remedies={
            SCRIPT: "dataset = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(len(x))  # joined, then shuffled\n"
            "# in NumPy: order = np.random.permutation(len(x)), then x[order] and y[order]",
        },
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
        fact=_not_shared,
    ),
    Cause(
        id="validation-changes-state",
        stages=(EXAMPLES, PREDICTIONS, STATE),  # an update on a batch of validation is a step with other examples
        called=None,
        symptom="Training depends on how often validation runs.",
        explanation="The model is called with training=True in validation, so that batch normalization's moving "
        "statistics, or the random state of dropout, are updated by validation data; or validation updates weights.",
        wrong="predictions = model(x, training=True)  # in validation",
        remedy="predictions = model(x, training=False)  # in validation",
        remedies={SCRIPT: "predictions = model(x, training=False)  # in every call that does not train it"},
        rewrites=NOT_TRAINING,
        fact=_validation_changes,
        recorded={PREDICTIONS: recorded_draws, STATE: recorded_statistics},
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
        # Recognised in a separate run, by compare/check/empty_replica.py, since some models fail on empty batches.
    ),
)
