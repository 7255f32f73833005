"""Causes in a step other than its loss: the forward pass, clipping and reduction of gradients, the optimizer."""

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


def _no_flag(case: Case, recipe: Recipe) -> Iterable[Variant]:
    yield Variant({"training": False}, "the gradient is that of a model called with training=False")


# Clipping


def _clipped_gradient(case: Case, recipe: Recipe) -> Iterable[Variant]:
    """Clipping in the loop; the limit is the largest norm or value among the gradients that it changed."""
    feed = case.feed(recipe)
    if not feed or recipe.clip is not None:
        return
    steps = list(enumerate(feed))
    for reduced in (False, True):
        if reduced and case.replicas == 1:
            continue
        pairs: list[tuple[np.ndarray, np.ndarray]] = []
        for i, span in steps:
            if reduced:
                pairs.append((case.effective[i][0], case.replay.gradients(case.steps[i], span, recipe)[0]))
            else:
                pairs += zip(
                    case.replica_gradients(i), case.replay.replica_gradients(case.steps[i], span, recipe), strict=True
                )
        for kind, limit in _limits(case, pairs):
            where = "after" if reduced else "before"
            text = f"gradients are clipped by {kind} at {limit:.6g}"
            text += f", {where} they are summed over the replicas" if case.replicas > 1 else ""
            yield Variant({"clip": Clip(kind, limit, reduced)}, text, measured=True)


def _limits(case: Case, pairs: Iterable[tuple[np.ndarray, np.ndarray]]) -> Iterable[tuple[str, float]]:
    """The limit of each kind of clipping that the (observed, predicted) gradients suggest."""
    pairs = list(pairs)
    clipped: dict[str, list[float]] = {"global": [], "norm": [], "value": []}
    for observed, predicted in pairs:
        variables = zip(case.replay.unflatten(observed), case.replay.unflatten(predicted), strict=True)
        sizes = {
            "global": [(_norm(observed), _norm(predicted))],
            "norm": [(_norm(a), _norm(b)) for a, b in variables],
            "value": [(float(np.abs(observed).max()), float(np.abs(predicted).max()))],
        }
        for kind, size_pairs in sizes.items():
            clipped[kind] += [a for a, b in size_pairs if 0 < a < b * (1 - 1e-4)]
    for kind, limits in clipped.items():
        if limits:
            yield kind, max(limits)


def _norm(vector: np.ndarray) -> float:
    return float(np.linalg.norm(vector))


def _clipped_update(case: Case, update: Update) -> Iterable[Variant]:
    options = {name: _config(case).get(name) for name in CLIPPING}
    expected = {name: _config(case, reference=True).get(name) for name in CLIPPING}
    if any(expected.values()):
        if case.replicas > 1:
            other, when = ("reduced", "after") if update.clip == "per-replica" else ("per-replica", "before")
            yield Variant({"clip": other}, f"gradients are clipped {when} they are summed over the replicas")
        yield Variant({"clip": "off"}, f"gradients are not clipped; the experiment's optimizer has {_list(expected)}")
    if options != expected and case.observation.optimizers:
        text = (
            f"the loop's optimizer has {_list(options) or 'no clipping'}, the experiment's has "
            f"{_list(expected) or 'no clipping'}"
        )
        yield Variant({"overrides": options}, text)


# Reduction over replicas, and variables without gradient


def _not_reduced(case: Case, _: Recipe | Update) -> Iterable[Variant]:
    if case.replicas > 1:
        text = "every replica is updated with its own gradient only, so the replicas' weights diverge"
        yield Variant({"reduce": "own"}, text)
        yield Variant({"reduce": "first"}, "only the first replica's gradient is used")


def _without_gradient(case: Case, recipe: Recipe) -> Iterable[Variant]:
    feed = case.feed(recipe)
    if not feed:
        return
    unchanged = set(range(case.replay.trainable))
    expected: set[int] = set()
    for i, span in enumerate(feed):
        observed = case.replay.unflatten(case.effective[i][0])
        predicted = case.replay.unflatten(case.replay.gradients(case.steps[i], span, recipe)[0])
        unchanged -= {k for k, gradient in enumerate(observed) if np.any(gradient)}
        expected |= {k for k, gradient in enumerate(predicted) if np.any(gradient)}
    if unchanged & expected and expected - unchanged:
        untrained = unchanged & expected
        yield Variant({"untrained": frozenset(untrained)}, _no_gradient(case, untrained), measured=True)


def _without_update(case: Case, update: Update) -> Iterable[Variant]:
    unchanged = set(range(case.replay.trainable))
    for step in case.steps:
        if step.after is None:
            return
        for k in range(case.replay.trainable):
            has_gradient = any(gradients[k] is not None and np.any(gradients[k]) for gradients in step.gradients)
            if not has_gradient or np.any(step.after[0][k] != step.state[0][k]):
                unchanged.discard(k)
    if unchanged and len(unchanged) < case.replay.trainable:
        yield Variant({"untrained": frozenset(unchanged)}, _no_gradient(case, unchanged), measured=True)


def _no_gradient(case: Case, indices: Iterable[int]) -> str:
    names = [case.observation.names[k] for k in sorted(indices)]
    return f"{', '.join(names)} {'gets' if len(names) == 1 else 'get'} no gradient or no update"


# The optimizer


def _used_optimizers(observation: Observation) -> list[int]:
    """The index of the optimizer of each call of ``apply``."""
    return [call.optimizer for step in observation.optimizer_steps for call in step.calls] or [0]


def _config(case: Case, *, reference: bool = False) -> dict[str, Any]:
    """The configuration of the optimizer that made most steps; the experiment's if none was observed."""
    observation = case.reference if reference else case.observation
    if not observation.optimizers:
        return configuration(case.replay.experiment.build_optimizer())
    used = _used_optimizers(observation)
    return dict(observation.optimizers[max(set(used), key=used.count)][1])


def _class(case: Case, *, reference: bool = False) -> type[Any]:
    """The class of the optimizer that made most steps; the experiment's if none was observed."""
    observation = case.reference if reference else case.observation
    if not observation.optimizers:
        return type(case.replay.experiment.build_optimizer())
    used = _used_optimizers(observation)
    return observation.optimizers[max(set(used), key=used.count)][0]


def _rates(case: Case, *, reference: bool = False) -> tuple[float, ...]:
    """The learning rate of each step."""
    observation = case.reference if reference else case.observation
    return tuple(step.learning_rate for step in observation.optimizer_steps) or tuple(observation.rates)


def _other_optimizer(case: Case, update: Update) -> Iterable[Variant]:
    if not case.observation.optimizers:  # if weights are changed by hand, a factor may equally be in the loss
        return
    config, expected = _config(case), _config(case, reference=True)
    if _class(case) is not _class(case, reference=True):
        text = (
            f"the loop's optimizer is {_class(case).__name__}, the experiment's {_class(case, reference=True).__name__}"
        )
        yield Variant({"optimizer": (_class(case), config), "learning_rates": _rates(case)}, text)
        return
    other = {
        name: value
        for name, value in config.items()
        if name not in (*CLIPPING, "name", "learning_rate") and value != expected.get(name)
    }
    changes: list[tuple[dict[str, Any], str]] = []
    if other:
        texts = [
            f"{name} is {value} in the loop, {expected.get(name)} in the experiment" for name, value in other.items()
        ]
        changes.append(({"overrides": other}, "; ".join(texts)))
    rates = _other_rates(case)
    if rates and not _schedule_missing(case):
        i = next(i for i, (a, b) in enumerate(zip(*rates, strict=False)) if a != b)
        text = f"learning_rate is {rates[0][i]:.6g} in the loop, {rates[1][i]:.6g} in the experiment, in step {i + 1}"
        changes.append(({"learning_rates": rates[0]}, text + _constant_factor(rates)))
    counts = tuple(step.calls[0].iterations for step in case.steps)
    alone = all(len(step.calls) == 1 for step in case.steps)  # each optimizer has its own count
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
    """The learning rates of the loop and of the reference, if they differ."""
    rates, expected = _rates(case), _rates(case, reference=True)
    shared = min(len(rates), len(expected))
    return (rates, expected) if rates[:shared] != expected[:shared] else None


def _constant_factor(rates: tuple[tuple[float, ...], tuple[float, ...]]) -> str:
    """Describes the ratio of the learning rates if it is constant; else empty."""
    factors = [a / b for a, b in zip(*rates, strict=False) if b]
    if factors and max(factors) - min(factors) <= 1e-6 * abs(factors[0]):
        return f" (a constant factor of {factors[0]:.6g})"
    return ""


def _schedule_missing(case: Case) -> bool:
    """Whether the loop's learning rate is constant and the reference's is not."""
    rates = _other_rates(case)
    return rates is not None and len(set(rates[0])) == 1 and len(set(rates[1])) > 1


def _no_schedule(case: Case, update: Update) -> Iterable[Variant]:
    if case.observation.optimizers and _schedule_missing(case):
        rates, expected = _rates(case), _rates(case, reference=True)
        text = f"the learning rate stays {rates[0]:.6g}; it should be {', '.join(f'{rate:.6g}' for rate in expected)}"
        yield Variant({"learning_rates": rates}, text)


def _list(config: Mapping[str, Any]) -> str:
    """Formats the options that are set as ``name=value``."""
    return ", ".join(f"{name}={value}" for name, value in config.items() if value)


CAUSES = (
    Cause(
        id="training-flag-missing",
        symptom="Batch normalization's moving statistics stay at 0 and 1, dropout has no effect, and the model "
        "overfits.",
        explanation="Without training=True, the model uses the moving statistics, and dropout does nothing.",
        wrong="predictions = model(x)",
        remedy="predictions = model(x, training=True)",
        recognised="The gradients match those of the model called with training=False on the same batch.",
        met='"Transfer learning trained by custom TF 2.0 training loop performs worse than keras fit", '
        "https://github.com/tensorflow/tensorflow/issues/31184\n"
        '"Batch normalization moving mean and variance are not being updated", '
        "https://github.com/michalfaber/tensorflow_Realtime_Multi-Person_Pose_Estimation/issues/13",
        gradient=_no_flag,
    ),
    Cause(
        id="clipping-differs",
        symptom="Training differs while gradients are large, mostly in the first steps.",
        explanation="fit or the loop clips gradients and the other does not, or they clip at different limits or at "
        "different stages: Keras 3's optimizers clip each replica's gradient before the sum over replicas.",
        wrong="gradients, _ = tf.clip_by_global_norm(tape.gradient(loss, variables), 0.1)  # unlike fit",
        remedy="gradients = tape.gradient(loss, variables)  # the optimizer of run.build() clips if needed\n"
        "optimizer.apply_gradients(zip(gradients, variables))",
        recognised="The limit is taken as the largest norm or value among the gradients that are too small; clipping "
        "all steps at this limit must explain all of them. The optimizer's own clipping is compared by its "
        "configuration and by the updates.",
        met='"Optimizer clipvalue and clipnorm not working in Tensorflow 2.0": before or after aggregation, '
        "https://github.com/tensorflow/tensorflow/issues/33929\n"
        '"Correctly calculate gradient clipping on aggregate gradients in multi-gpu", '
        "https://github.com/LeelaChessZero/lczero-training/pull/162",
        gradient=_clipped_gradient,
        update=_clipped_update,
    ),
    Cause(
        id="gradients-not-reduced",
        symptom="The replicas' weights diverge; a saved model has learned from one replica's examples only.",
        explanation="apply_gradients sums the gradients over the replicas if it is called inside strategy.run. Updates "
        "that bypass it, or use one replica's gradients, are not summed.",
        wrong="for variable, gradient in zip(variables, gradients):\n"
        "    variable.assign_sub(learning_rate * gradient)  # on each replica, with its own gradient",
        remedy="optimizer.apply_gradients(zip(gradients, variables))  # in the function passed to strategy.run",
        recognised="The updates or the gradients match if each replica uses its own gradient only, or if all "
        "replicas use the first one's. The weights of every replica are compared.",
        met='"Fix gradient not averaged when parallel training" (Horovod), '
        "https://github.com/deepmodeling/deepmd-kit/pull/1104",
        gradient=_not_reduced,
        update=_not_reduced,
    ),
    Cause(
        id="variables-not-trained",
        symptom="The loss stays too high; some weights never change.",
        explanation="The gradient is computed for, or applied to, only some of the trainable variables.",
        wrong="variables = model.layers[-1].trainable_variables",
        remedy="variables = model.trainable_variables\ngradients = tape.gradient(loss, variables)",
        recognised="Some variables, which are named, should be trained but have a zero gradient or none in all "
        "steps, or never change; all others are right.",
        met='"Unpredictable behaviour of tracked variables in subclassing layers and models", '
        "https://github.com/keras-team/keras/issues/16797\n"
        '"Empty trainable variables in keras model (tf 2.0)", '
        "https://github.com/tensorflow/tensorflow/issues/29073",
        gradient=_without_gradient,
        update=_without_update,
    ),
    Cause(
        id="optimizer-differs",
        symptom="Training is faster, slower or less stable than with fit, from the same gradients.",
        explanation="The loop creates its own optimizer, or changes a hyperparameter of the experiment's.",
        wrong="optimizer = tf.keras.optimizers.Adam(0.003)  # the experiment's is Adam()",
        remedy="model, optimizer, loss_object, metrics = run.build()  # use this optimizer unchanged",
        recognised="The gradients are right but the updates are not; the updates match if they are simulated with the "
        "class, hyperparameters, learning rates or step counts of the loop's optimizer.",
        met='"Adam/Adagrad gives different derivatives when initializing globaly and localy": an optimizer '
        "created in every step, https://github.com/tensorflow/tensorflow/issues/29675",
        update=_other_optimizer,
    ),
    Cause(
        id="learning-rate-schedule-missing",
        symptom="The first step is equal; later the loop's steps are larger than fit's.",
        explanation="The loop keeps the learning rate of the first step; the experiment's learning rate changes.",
        wrong="optimizer = tf.keras.optimizers.Adam(float(optimizer.learning_rate))  # its current value, as a "
        "constant",
        remedy="model, optimizer, loss_object, metrics = run.build()  # the optimizer has the schedule\n"
        "optimizer.learning_rate = schedule(epoch)  # in every epoch, only if a callback sets it under fit",
        recognised="fit's learning rate changes from step to step, the loop's does not, and the updates match if "
        "they are simulated with the constant learning rate.",
        met='"Learning Rate scheduler with custom training using tf.GradientTape", '
        "https://github.com/tensorflow/tensorflow/issues/37862\n"
        '"How learning rate scheduler works with Custom training loop using tf.GradientTape()", '
        "https://github.com/tensorflow/models/issues/7687",
        update=_no_schedule,
    ),
)
