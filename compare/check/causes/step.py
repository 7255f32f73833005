"""Causes in a step other than its loss: the forward pass, clipping and reduction of gradients, the optimizer."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from compare.check.causes.base import Cause, Variant
from compare.check.observation import EXCLUDED, configuration
from compare.check.recipe import Clip, Recipe, Update
from compare.check.stages import some

if TYPE_CHECKING:
    from compare.check.case import Case

MOST_LAYERS = 6
"""The number of layers of a kind that are tried one by one."""
CLIPPING = ("clipnorm", "clipvalue", "global_clipnorm")


def _no_flag(case: Case, recipe: Recipe) -> Iterable[Variant]:
    yield Variant({"training": False}, "the gradient is that of a model called with training=False")
    names = case.replay.layers
    modes = {i: kind for i, (_, kind) in enumerate(case.observation.layers) if "Batch" in kind or "Dropout" in kind}
    for kind in dict.fromkeys(modes.values()):
        group = [i for i in modes if modes[i] == kind]
        if len(modes) == 1 and "Dropout" in kind:
            continue  # then it is the whole model
        for chosen in [group, *([i] for i in group[:MOST_LAYERS] if len(group) > 1)]:
            shown = some([case.observation.layers[i][0] for i in chosen])
            verb = "run" if len(chosen) > 1 else "runs"
            changes = {"inference": tuple(names[i] for i in chosen)}
            yield Variant(changes, f"{shown} ({kind}) {verb} with training=False")


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


def _settings(case: Case, *, reference: bool = False) -> list[tuple[type[Any], dict[str, Any]]]:
    """The class and configuration of the optimizer in each step; the experiment's if none was observed."""
    observation = case.reference if reference else case.observation
    used = [step.calls[0].optimizer for step in observation.optimizer_steps if step.calls]
    if used:
        return [observation.optimizers[i] for i in used]
    if observation.optimizers:
        return observation.optimizers[:1]
    optimizer = case.replay.experiment.build_optimizer()
    return [(type(optimizer), configuration(optimizer))]


def _config(case: Case, *, reference: bool = False) -> dict[str, Any]:
    """The configuration of the optimizer in the first step."""
    return _settings(case, reference=reference)[0][1]


def _class(case: Case, *, reference: bool = False) -> type[Any]:
    """The class of the optimizer in the first step."""
    return _settings(case, reference=reference)[0][0]


def _rates(case: Case, *, reference: bool = False) -> tuple[float, ...]:
    """The learning rate of each step."""
    observation = case.reference if reference else case.observation
    return tuple(step.learning_rate for step in observation.optimizer_steps) or tuple(observation.rates)


def _other_optimizer(case: Case, update: Update) -> Iterable[Variant]:
    if case.by_hand:
        yield from _by_hand(case, update)
        return
    config, expected = _config(case), _config(case, reference=True)
    if _class(case) is not _class(case, reference=True):
        text = (
            f"the loop's optimizer is {_class(case).__name__}, the experiment's {_class(case, reference=True).__name__}"
        )
        yield Variant({"optimizer": (_class(case), config), "learning_rates": _rates(case)}, text)
        return
    changes: list[tuple[dict[str, Any], str]] = []
    if other := _hyperparameters(config, expected):
        changes.append(({"overrides": other}, _in_words(case, other, expected)))
    elif later := next((i for i, (_, new) in enumerate(_settings(case)) if _hyperparameters(new, config)), None):
        other = _hyperparameters(_settings(case)[later][1], config)
        text = f"from step {later + 1} (epoch {case.steps[later].epoch}) on, {_in_words(case, other, expected)}"
        changes.append(({"overrides": other, "since": later}, text))
    rates = _other_rates(case)
    if rates and not _schedule_missing(case):
        i = next(i for i, (a, b) in enumerate(zip(*rates, strict=False)) if a != b)
        text = f"learning_rate is {rates[0][i]:.6g} in the loop, {rates[1][i]:.6g} in the experiment, in step {i + 1}"
        changes.append(({"learning_rates": rates[0]}, text + _pattern(case, rates)))
    counts = tuple(step.calls[0].iterations for step in case.steps)
    alone = all(len(step.calls) == 1 for step in case.steps)  # each optimizer has its own count
    if restarts := frozenset(_restarts(case)):
        first = case.steps[min(restarts)]
        text = f"the optimizer begins anew in step {min(restarts) + 1} (epoch {first.epoch}): its slots are empty again"
        changes.append(({"restarts": restarts, "iterations": counts}, text))
    elif counts != tuple(range(len(counts))) and alone:
        text = f"the optimizer's iterations are {', '.join(map(str, counts))} before its steps, not 0, 1, 2 and so on"
        changes.append(({"iterations": counts}, text))
    elif begins := frozenset(i for i in range(1, len(case.steps)) if case.steps[i].epoch != case.steps[i - 1].epoch):
        text = "the optimizer's slots are empty again when an epoch begins"
        yield Variant({"restarts": begins, "iterations": counts}, text)
    for change, text in changes:
        yield Variant(change, text)
    if len(changes) > 1:
        merged: dict[str, Any] = {}
        for change, _ in changes:
            merged |= change
        yield Variant(merged, "; ".join(text for _, text in changes))


def _hyperparameters(config: Mapping[str, Any], expected: Mapping[str, Any]) -> dict[str, Any]:
    """The hyperparameters that differ from the expected ones, without clipping and the learning rate."""
    return {
        name: value
        for name, value in config.items()
        if name not in (*CLIPPING, "name", "learning_rate") and value != expected.get(name)
    }


def _in_words(case: Case, other: Mapping[str, Any], expected: Mapping[str, Any]) -> str:
    texts = []
    for name, value in other.items():
        if name == EXCLUDED:
            wrong = sorted(set(value) ^ set(expected.get(name, ())))
            names = ", ".join(case.observation.names[i] for i in wrong)
            texts.append(f"weight decay {'leaves out' if set(value) & set(wrong) else 'also applies to'} {names}")
        else:
            texts.append(f"{name} is {value} in the loop, {expected.get(name)} in the experiment")
    return "; ".join(texts)


def _restarts(case: Case) -> Iterable[int]:
    """The steps before which the optimizer lost its count: it was made anew, or reset."""
    for i, (step, following) in enumerate(itertools.pairwise(case.steps), 1):
        if len(step.calls) == len(following.calls) == 1 and following.calls[0].iterations < step.calls[0].iterations:
            yield i


USUAL: Mapping[str, Sequence[float]] = {
    "momentum": (0.0, 0.5, 0.8, 0.9, 0.95, 0.99),
    "rho": (0.9, 0.95, 0.99, 0.999),
    "beta_1": (0.0, 0.5, 0.8, 0.9, 0.95, 0.99),
    "beta_2": (0.9, 0.95, 0.98, 0.99, 0.995, 0.999, 0.9999),
    "epsilon": (1e-3, 1e-4, 1e-5, 1e-6, 1e-7, 1e-8, 1e-10),
    "weight_decay": (0.0,),
}
"""The values that people write into an optimizer of their own."""


def _by_hand(case: Case, update: Update) -> Iterable[Variant]:
    """Variants of an optimizer whose settings cannot be read: the weights are changed without one."""
    cls, config = _class(case, reference=True), _config(case, reference=True)
    gaps = case.weight_gaps(Recipe(), update)
    first = gaps.failing[0] if gaps is not None and gaps.failing and len(gaps.gaps) == len(case.expected) else 0
    for name, values in USUAL.items():
        own = config.get(name)
        if own is None:
            continue
        for value in values:
            if value != own:
                text = f"the weights change as with {name} {value:g}; the experiment's {cls.__name__} has {own:g}"
                yield Variant({"overrides": {name: value}}, text)
                if first:
                    since = f"from step {first + 1} (epoch {case.expected[first].epoch}) on, {text}"
                    yield Variant({"overrides": {name: value}, "since": first}, since)
    if config.get(EXCLUDED):
        names = ", ".join(case.observation.names[i] for i in config[EXCLUDED])
        yield Variant({"overrides": {EXCLUDED: ()}}, f"weight decay also applies to {names}")
    if "nesterov" in config and config.get("momentum"):
        text = f"the weights change as with nesterov={not config['nesterov']}"
        yield Variant({"overrides": {"nesterov": not config["nesterov"]}}, text)
    for formula, text in FORMULAS.get(cls.__name__, {}).items():
        if formula != "damped" or config.get("momentum"):
            yield Variant({"formula": formula}, text)
    spans = case.expected
    for steps, text in _other_steps([span.epoch for span in spans]):
        rates = tuple(case.replay.scheduled(step) for step in steps)
        if all(rate is not None for rate in rates):
            yield Variant({"learning_rates": rates}, text)
    begins = frozenset(i for i in range(1, len(spans)) if spans[i].epoch != spans[i - 1].epoch)
    counts = tuple(range(len(spans)))
    anew = tuple(i - max((begin for begin in begins if begin <= i), default=0) for i in counts)
    yield Variant({"restarts": begins}, "the optimizer begins anew with each epoch: its slots are empty again")
    yield Variant({"restarts": begins, "iterations": counts}, "the optimizer's slots are empty again in each epoch")
    yield Variant({"iterations": anew}, "the optimizer's steps are counted from 1 again in each epoch")


def _other_steps(epochs: Sequence[int]) -> Iterable[tuple[list[int], str]]:
    """Wrong steps at which a schedule may be evaluated, for each of the steps made."""
    counts = range(len(epochs))
    yield [epoch - 1 for epoch in epochs], "the learning rate is that of the schedule at the epoch's number, from 0"
    yield list(epochs), "the learning rate is that of the schedule at the epoch's number, not at the step's"
    yield [epochs.index(epoch) for epoch in epochs], "the learning rate changes once per epoch, not with every step"
    yield [i + 1 for i in counts], "the learning rate is that of the step after: the schedule counts steps from 0"
    yield [max(i - 1, 0) for i in counts], "the learning rate is that of the step before"


FORMULAS: Mapping[str, Mapping[str, str]] = {
    "SGD": {"damped": "the velocity is momentum · v + (1 - momentum) · g, not momentum · v + g"},
    "Adam": {
        "uncorrected": "Adam's bias correction is missing",
        "mean-uncorrected": "Adam's mean of gradients is not divided by 1 - beta_1^t",
        "square-uncorrected": "Adam's mean of squares is not divided by 1 - beta_2^t",
        "epsilon-inside": "epsilon is added under the root; Keras adds it to the root",
        "epsilon-last": "epsilon is added to the root of the corrected mean of squares; Keras adds it before that is "
        "corrected",
    },
}
"""Formulas that no setting of the optimizer describes, in words, by its class."""


def _other_rates(case: Case) -> tuple[tuple[float, ...], tuple[float, ...]] | None:
    """The learning rates of the loop and of the reference, if they differ."""
    rates, expected = _rates(case), _rates(case, reference=True)
    shared = min(len(rates), len(expected))
    return (rates, expected) if rates[:shared] != expected[:shared] else None


def _pattern(case: Case, rates: tuple[tuple[float, ...], tuple[float, ...]]) -> str:
    """Describes how the loop's learning rates differ from the reference's; empty if no pattern is seen."""
    factors = [a / b for a, b in zip(*rates, strict=False) if b]
    if factors and max(factors) - min(factors) <= 1e-6 * abs(factors[0]):
        return f" (a constant factor of {factors[0]:.6g})"
    epochs = [step.epoch for step in case.steps]
    own, expected = ([set(of_epoch(side, epochs, epoch)) for epoch in case.epochs] for side in rates)
    if all(len(each) == 1 for each in own) and any(len(each) > 1 for each in expected):
        return ": it changes once per epoch, the experiment's with every step"
    late = len(own) > 1 and own[1:] == expected[:-1]
    return ": each epoch has the rate of the epoch before" if late else ""


def of_epoch(values: Sequence[float], epochs: Sequence[int], epoch: int) -> list[float]:
    """The values of one epoch's steps."""
    return [value for value, own in zip(values, epochs, strict=False) if own == epoch]


def _schedule_missing(case: Case) -> bool:
    """Whether the loop's learning rate is constant and the reference's is not."""
    rates = _other_rates(case)
    return rates is not None and len(set(rates[0])) == 1 and len(set(rates[1])) > 1


def _callbacks_set_rate(case: Case) -> bool:
    """Whether the reference's learning rate changes without a schedule: then one of its callbacks changes it."""
    rates = _rates(case, reference=True)
    has_schedule = isinstance(_config(case, reference=True).get("learning_rate"), dict)
    return bool(case.callbacks) and not has_schedule and len(set(rates)) > 1


def _no_callbacks(case: Case, update: Update) -> Iterable[Variant]:
    if case.observation.optimizers and _schedule_missing(case) and _callbacks_set_rate(case):
        rates, expected = _rates(case), _rates(case, reference=True)
        i = next(i for i, (a, b) in enumerate(zip(rates, expected, strict=False)) if a != b)
        text = (
            f"{some(case.callbacks)} of {case.reference.name} set the learning rate to {expected[i]:.6g} from step "
            f"{i + 1} (epoch {case.steps[i].epoch}) on; here it stays {rates[i]:.6g}"
        )
        yield Variant({"learning_rates": rates}, text)


def _callbacks_missing(case: Case) -> str | None:
    """Evidence that callbacks stop the reference, or change its weights outside of steps, and not the loop's."""
    observation, reference = case.observation, case.reference
    if not case.callbacks:
        return None
    listed = some(case.callbacks)
    epochs, expected = len(observation.epoch_end_states), len(reference.epoch_end_states)
    if epochs != expected:
        return f"{reference.name} ends after epoch {expected} ({listed}), {observation.name} after epoch {epochs}"
    if reference.changed_after_training and not observation.changed_after_training:
        names = some(reference.changed_after_training)
        return f"after the last epoch {listed} of {reference.name} change {names} once more"
    for epoch, changes in reference.changed_after_steps.items():
        if changes and not observation.changed_after_steps.get(epoch):
            return f"{listed} of {reference.name} change {some(list(changes))} at the end of epoch {epoch}"
    return None


def _no_schedule(case: Case, update: Update) -> Iterable[Variant]:
    if case.by_hand and (first := case.replay.scheduled(0)) is not None:
        yield Variant({"learning_rates": (first,)}, f"the learning rate stays {first:.6g}, that of the first step")
    if case.observation.optimizers and _schedule_missing(case) and not _callbacks_set_rate(case):
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
    Cause(
        id="callbacks-missing",
        symptom="Both train alike for some epochs, then the learning rates differ, or one side stops.",
        explanation="fit runs callbacks that change training: they set the learning rate, stop early or average "
        "weights. A loop has to do the same by itself.",
        wrong="for epoch in range(epochs):\n    train_one_epoch()",
        remedy="model.optimizer = optimizer  # where callbacks look for it\n"
        "callbacks = tf.keras.callbacks.CallbackList(run.build_callbacks(), model=model)  # the list that fit gets\n"
        "callbacks.on_train_begin()\n"
        "for epoch in run.epochs:\n"
        "    callbacks.on_epoch_begin(epoch - 1)\n"
        "    ...\n"
        "    callbacks.on_epoch_end(epoch - 1, logs)  # logs of training and validation\n"
        "    if model.stop_training:\n"
        "        break\n"
        "callbacks.on_train_end()",
        recognised="Until then all weights agree, fit has callbacks, and from this step on its learning rate has "
        "changed without a schedule while the loop's has not; or fit has ended in another epoch, or has changed "
        "weights outside of its steps.",
        update=_no_callbacks,
        fact=_callbacks_missing,
    ),
)
