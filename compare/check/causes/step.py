"""Causes in a step beyond its loss: the forward pass, the gradients' way to the optimizer, the optimizer."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from compare.check.causes.base import Cause, Variant
from compare.check.observation import Observation, configuration
from compare.check.recipe import Clip, Recipe, Update

if TYPE_CHECKING:
    from compare.check.case import Case

CLIPPING = ("clipnorm", "clipvalue", "global_clipnorm")


def _no_flag(case: Case, base: Recipe) -> Iterable[Variant]:
    yield Variant({"training": False}, "the gradient is that of the model called with training=False")


# Clipping


def _clipped_gradient(case: Case, base: Recipe) -> Iterable[Variant]:
    """Clipping in the loop: the limit is the largest norm (or value) among those that it changed."""
    feed = case.feed(base)
    if not feed or base.clip is not None:
        return
    steps = list(enumerate(feed))
    for reduced in (False, True):
        if reduced and case.replicas == 1:
            continue
        pairs: list[tuple[np.ndarray, np.ndarray]] = []
        for i, place in steps:
            if reduced:
                pairs.append((case.effective[i][0], case.replay.gradients(case.steps[i], place, base)[0]))
            else:
                pairs += zip(case.handed(i), case.replay.handed(case.steps[i], place, base), strict=True)
        for kind, limit in _limits(case, pairs):
            where = "after" if reduced else "before"
            text = f"gradients are clipped by {kind} at {limit:.6g}"
            text += f", {where} they are summed over the replicas" if case.replicas > 1 else ""
            yield Variant({"clip": Clip(kind, limit, reduced)}, text, measured=True)


def _limits(case: Case, pairs: Iterable[tuple[np.ndarray, np.ndarray]]) -> Iterable[tuple[str, float]]:
    """Per kind of clipping the limit that the (seen, predicted) gradients tell of."""
    pairs = list(pairs)
    found: dict[str, list[float]] = {"global": [], "norm": [], "value": []}
    for seen, predicted in pairs:
        parts = zip(case.replay.split(seen), case.replay.split(predicted), strict=True)
        norms = {"global": [(_norm(seen), _norm(predicted))], "norm": [(_norm(a), _norm(b)) for a, b in parts]}
        norms["value"] = [(float(np.abs(seen).max()), float(np.abs(predicted).max()))]
        for kind, each in norms.items():
            found[kind] += [ours for ours, theirs in each if 0 < ours < theirs * (1 - 1e-4)]
    for kind, limits in found.items():
        if limits:
            yield kind, max(limits)


def _norm(vector: np.ndarray) -> float:
    return float(np.linalg.norm(vector))


def _clipped_update(case: Case, base: Update) -> Iterable[Variant]:
    ours = {name: _config(case).get(name) for name in CLIPPING}
    theirs = {name: _config(case, reference=True).get(name) for name in CLIPPING}
    if any(theirs.values()):
        if case.replicas > 1:
            other, when = ("reduced", "after") if base.clip == "handed" else ("handed", "before")
            yield Variant({"clip": other}, f"gradients are clipped {when} they are summed over the replicas")
        yield Variant(
            {"clip": "off"}, f"gradients are not clipped, where the experiment's optimizer has {_list(theirs)}"
        )
    if ours != theirs and case.seen.optimizers:
        text = (
            f"the optimizer clips with {_list(ours) or 'nothing'}, the experiment's with {_list(theirs) or 'nothing'}"
        )
        yield Variant({"overrides": ours}, text)


# The gradients' way


def _own_gradient(case: Case, base: Recipe) -> Iterable[Variant]:
    if case.replicas > 1:
        yield Variant({"reduce": "own"}, "every replica is updated with its own gradient alone, and goes its own way")
        yield Variant({"reduce": "first"}, "only the first replica's gradient is used")


def _own_update(case: Case, base: Update) -> Iterable[Variant]:
    if case.replicas > 1:
        yield Variant({"reduce": "own"}, "every replica is updated with its own gradient alone, and goes its own way")
        yield Variant({"reduce": "first"}, "only the first replica's gradient is used")


def _without_gradient(case: Case, base: Recipe) -> Iterable[Variant]:
    feed = case.feed(base)
    if not feed:
        return
    still = set(range(case.replay.trainable))
    moving: set[int] = set()
    for i, place in enumerate(feed):
        seen = case.replay.split(case.effective[i][0])
        predicted = case.replay.split(case.replay.gradients(case.steps[i], place, base)[0])
        still -= {k for k, each in enumerate(seen) if np.any(each)}
        moving |= {k for k, each in enumerate(predicted) if np.any(each)}
    if still & moving and moving - still:
        yield Variant({"untrained": frozenset(still & moving)}, _named(case, still & moving), measured=True)


def _without_update(case: Case, base: Update) -> Iterable[Variant]:
    still = set(range(case.replay.trainable))
    for step in case.steps:
        if step.after is None:
            return
        for k in range(case.replay.trainable):
            given = any(gradients[k] is not None and np.any(gradients[k]) for gradients in step.gradients)
            if not given or np.any(step.after[0][k] != step.state[0][k]):
                still.discard(k)
    if still and len(still) < case.replay.trainable:
        yield Variant({"untrained": frozenset(still)}, _named(case, still), measured=True)


def _named(case: Case, which: Iterable[int]) -> str:
    names = [case.seen.names[k] for k in sorted(which)]
    return f"{', '.join(names)} {'gets' if len(names) == 1 else 'get'} no gradient, or no update"


# The optimizer


def _used(seen: Observation) -> list[int]:
    return [call.optimizer for step in seen.applied for call in step.calls] or [0]


def _config(case: Case, *, reference: bool = False) -> dict[str, Any]:
    """The configuration of the optimizer that made most steps; the experiment's, if none was seen."""
    seen = case.reference if reference else case.seen
    if not seen.optimizers:
        return configuration(case.replay.experiment.build_optimizer())
    which = _used(seen)
    return dict(seen.optimizers[max(set(which), key=which.count)][1])


def _class(case: Case, *, reference: bool = False) -> type[Any]:
    seen = case.reference if reference else case.seen
    if not seen.optimizers:
        return type(case.replay.experiment.build_optimizer())
    which = _used(seen)
    return seen.optimizers[max(set(which), key=which.count)][0]


def _rates(case: Case, *, reference: bool = False) -> tuple[float, ...]:
    seen = case.reference if reference else case.seen
    return tuple(step.learning_rate for step in seen.applied) or tuple(seen.rates)


def _other_optimizer(case: Case, base: Update) -> Iterable[Variant]:
    if not case.seen.optimizers:  # weights changed by hand: a factor could be the loss's as well
        return
    ours, theirs = _config(case), _config(case, reference=True)
    if _class(case) is not _class(case, reference=True):
        text = (
            f"the loop's optimizer is {_class(case).__name__}, the experiment's {_class(case, reference=True).__name__}"
        )
        yield Variant({"optimizer": (_class(case), ours), "learning_rates": _rates(case)}, text)
        return
    other = {
        name: value
        for name, value in ours.items()
        if name not in (*CLIPPING, "name", "learning_rate") and value != theirs.get(name)
    }
    changes: list[tuple[dict[str, Any], str]] = []
    if other:
        texts = [
            f"{name} is {value} in the loop, {theirs.get(name)} in the experiment" for name, value in other.items()
        ]
        changes.append(({"overrides": other}, "; ".join(texts)))
    rates = _other_rates(case)
    if rates and not _schedule_missing(case):
        i = next(i for i, (a, b) in enumerate(zip(*rates, strict=False)) if a != b)
        text = f"learning_rate is {rates[0][i]:.6g} in the loop, {rates[1][i]:.6g} in the experiment, in step {i + 1}"
        changes.append(({"learning_rates": rates[0]}, text + _factor(rates)))
    counts = tuple(step.calls[0].iterations for step in case.steps)
    alone = all(len(step.calls) == 1 for step in case.steps)  # of several optimizers each has its own count
    if counts != tuple(range(len(counts))) and alone:
        text = f"the optimizer's iterations are {', '.join(map(str, counts))} before its steps, not 0, 1, 2 and so on"
        changes.append(({"iterations": counts}, text))
    for change, text in changes:
        yield Variant(change, text)
    if len(changes) > 1:
        merged: dict[str, Any] = {}
        for change, _ in changes:
            merged |= change
        yield Variant(merged, "; ".join(text for _, text in changes))


def _other_rates(case: Case) -> tuple[tuple[float, ...], tuple[float, ...]] | None:
    ours, theirs = _rates(case), _rates(case, reference=True)
    shared = min(len(ours), len(theirs))
    return (ours, theirs) if ours[:shared] != theirs[:shared] else None


def _factor(rates: tuple[tuple[float, ...], tuple[float, ...]]) -> str:
    factors = [a / b for a, b in zip(*rates, strict=False) if b]
    if factors and max(factors) - min(factors) <= 1e-6 * abs(factors[0]):
        return f" (always {factors[0]:.6g} times)"
    return ""


def _schedule_missing(case: Case) -> bool:
    rates = _other_rates(case)
    return rates is not None and len(set(rates[0])) == 1 and len(set(rates[1])) > 1


def _no_schedule(case: Case, base: Update) -> Iterable[Variant]:
    if case.seen.optimizers and _schedule_missing(case):
        ours, theirs = _rates(case), _rates(case, reference=True)
        text = f"the learning rate stays {ours[0]:.6g}, where it goes {', '.join(f'{rate:.6g}' for rate in theirs)}"
        yield Variant({"learning_rates": ours}, text)


def _list(config: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={value}" for name, value in config.items() if value)


CAUSES = (
    Cause(
        id="training-flag-missing",
        symptom="Batch normalization's moving statistics stay at 0 and 1, dropout does nothing, and it overfits.",
        explanation="A model that is called without training=True takes the moving statistics and drops nothing out.",
        wrong="predictions = model(x)",
        remedy="predictions = model(x, training=True)",
        recognised="The gradients fit those of the model called with training=False on the same batch.",
        met='"Transfer learning trained by custom TF 2.0 training loop performs worse than keras fit", '
        "https://github.com/tensorflow/tensorflow/issues/31184\n"
        '"Batch normalization moving mean and variance are not being updated", '
        "https://github.com/michalfaber/tensorflow_Realtime_Multi-Person_Pose_Estimation/issues/13",
        gradient=_no_flag,
    ),
    Cause(
        id="clipping-differs",
        symptom="Training differs while gradients are large: in the first steps, mostly.",
        explanation="One side clips gradients that the other does not, at another limit, or at another place: "
        "Keras 3's optimizers clip each replica's gradient, before they are summed.",
        wrong="gradients, _ = tf.clip_by_global_norm(tape.gradient(loss, variables), 0.1)  # fit does not, or not so",
        remedy="gradients = tape.gradient(loss, variables)  # not clipped here: run.build()'s optimizer clips, if any\n"
        "optimizer.apply_gradients(zip(gradients, variables))",
        recognised="The limit is read off as the largest norm, or value, among the gradients that are smaller than "
        "they should be; clipping all steps at it has to give all of them. An optimizer's own clipping is compared "
        "by its configuration, and by what it makes of the gradients.",
        met='"Optimizer clipvalue and clipnorm not working in Tensorflow 2.0": before or after aggregation, '
        "https://github.com/tensorflow/tensorflow/issues/33929\n"
        '"Correctly calculate gradient clipping on aggregate gradients in multi-gpu", '
        "https://github.com/LeelaChessZero/lczero-training/pull/162",
        gradient=_clipped_gradient,
        update=_clipped_update,
    ),
    Cause(
        id="gradients-not-reduced",
        symptom="Replicas drift apart; a saved model has learned from one replica's examples only.",
        explanation="apply_gradients sums the gradients over the replicas if it is called inside strategy.run. Updates "
        "made past it, or with one replica's gradients, are not summed.",
        wrong="for variable, gradient in zip(variables, gradients):\n"
        "    variable.assign_sub(learning_rate * gradient)  # on each replica, with its own gradient",
        remedy="optimizer.apply_gradients(zip(gradients, variables))  # in the function that strategy.run is given",
        recognised="The updates, or the gradients, fit if each replica is given its own gradient alone, or all are "
        "given the first replica's; each replica's copy of the weights is looked at.",
        met='"Fix gradient not averaged when parallel training" (Horovod), '
        "https://github.com/deepmodeling/deepmd-kit/pull/1104",
        gradient=_own_gradient,
        update=_own_update,
    ),
    Cause(
        id="variables-not-trained",
        symptom="The loss stops too high; some weights stay what they were.",
        explanation="The gradient is taken for, or applied to, some of the trainable variables only.",
        wrong="variables = model.layers[-1].trainable_variables",
        remedy="variables = model.trainable_variables\ngradients = tape.gradient(loss, variables)",
        recognised="Some variables, which are named, get a zero gradient or none in all steps, or never move, "
        "where they should; all the others are right.",
        met='"Unpredictable behaviour of tracked variables in subclassing layers and models", '
        "https://github.com/keras-team/keras/issues/16797\n"
        '"Empty trainable variables in keras model (tf 2.0)", '
        "https://github.com/tensorflow/tensorflow/issues/29073",
        gradient=_without_gradient,
        update=_without_update,
    ),
    Cause(
        id="optimizer-differs",
        symptom="Training is faster, slower or less stable than fit's, on the same gradients.",
        explanation="The loop makes an optimizer of its own, or changes a hyper-parameter of the experiment's.",
        wrong="optimizer = tf.keras.optimizers.Adam(0.003)  # the experiment's is Adam()",
        remedy="model, optimizer, loss_object, metrics = run.build()  # and no other optimizer, nor a change to it",
        recognised="The gradients are right; the updates are not, and fit if they are simulated with the class, "
        "hyper-parameters, learning rates or step counts that the loop's optimizer was seen to have.",
        met='"Adam/Adagrad gives different derivatives when initializing globaly and localy": an optimizer '
        "made anew in every step, https://github.com/tensorflow/tensorflow/issues/29675",
        update=_other_optimizer,
    ),
    Cause(
        id="learning-rate-schedule-missing",
        symptom="All is equal in the first step; later on the loop takes larger steps than fit.",
        explanation="The loop's learning rate stays what it was in the first step, where the experiment's changes.",
        wrong="optimizer = tf.keras.optimizers.Adam(float(optimizer.learning_rate))  # its value now, for ever",
        remedy="model, optimizer, loss_object, metrics = run.build()  # the optimizer has the schedule\n"
        "optimizer.learning_rate = schedule(epoch)  # in every epoch, only if fit has it set by a callback",
        recognised="fit's learning rate changes from step to step, the loop's does not, and with its constant one "
        "the simulated updates fit.",
        met='"Learning Rate scheduler with custom training using tf.GradientTape", '
        "https://github.com/tensorflow/tensorflow/issues/37862\n"
        '"How learning rate scheduler works with Custom training loop using tf.GradientTape()", '
        "https://github.com/tensorflow/models/issues/7687",
        update=_no_schedule,
    ),
)
