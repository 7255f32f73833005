"""Causes in a step between its loss and its optimizer: the forward pass, clipping and reduction of gradients."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from compare.check.causes.base import OWN_OPTIMIZER, Cause, Measurement, Variant, one_of
from compare.check.causes.loss import OF_OUTPUTS
from compare.check.causes.optimizer_recorded import kind_of_setting
from compare.check.observation import changed_variables
from compare.check.recipe import OF_OPTION, Clip, Recipe, Update, norm_of, scaled
from compare.check.recorded import clipping_of, is_round
from compare.check.stages import Located
from compare.check.step_values import GRADIENTS, PREDICTIONS, UPDATE, Sides, equal_gradients
from compare.check.used import SCRIPT
from compare.watch.seen import CloseUp
from compare.watch.trace import CLIPPING

if TYPE_CHECKING:
    from compare.check.case import Case

MOST_LAYERS = 6
"""The number of layers of a kind that are tried one by one."""
OF_MODEL = "def call(self, inputs, training=None): ...  # of the model, so that fit gives training=True"


def _no_flag(case: Case, recipe: Recipe) -> Iterable[Variant]:
    names, layers = case.replay.layers, case.observation.layers
    pairs = enumerate(zip(layers, case.observation.layers_at_end, strict=False))
    frozen = [i for i, both in pairs if "Batch" in both[0]["class"] and _trains(both[0]) and not _trains(both[1])]
    if frozen:
        seen = Measurement.of("frozen-layers", layers=[layers[i]["name"] for i in frozen])
        for changes in ({"training": False}, {"inference": tuple(names[i] for i in frozen)}):
            yield Variant(changes, seen, remedy="layer.trainable = True  # as the model is built")
        return
    yield Variant({"training": False}, Measurement.of("inference-gradient"))
    modes = {i: kind for i, each in enumerate(layers) if "Batch" in (kind := each["class"]) or "Dropout" in kind}
    for kind in dict.fromkeys(modes.values()):
        group = [i for i in modes if modes[i] == kind]
        if len(modes) == 1 and "Dropout" in kind:
            continue  # then it is the whole model
        for chosen in [group, *([i] for i in group[:MOST_LAYERS] if len(group) > 1)]:
            seen = Measurement.of("inference-layers", layers=[layers[i]["name"] for i in chosen], layer_class=kind)
            yield Variant({"inference": tuple(names[i] for i in chosen)}, seen)


def _trains(layer: Mapping[str, Any]) -> bool:
    return bool(layer["config"].get("trainable", True))


def _recorded_flag(sides: Sides, located: Located) -> Iterator[Variant]:
    layers = [event.info for event in sides.right.of(sides.step, "layer")]
    first = [info for info in layers if info["name"] == located.where] or layers
    model = str(first[0].get("model", "")) if first else ""
    right, other = flags = flags_of(sides, model)
    if not all(flags):
        model, (right, other) = "", flags_of(sides)
    if first and not any(info.get("flagged", True) for info in first):
        return  # the first layer that differs does not know the flag
    # An explicit training=False on the side that is held to be right is meant.
    for by_right, given, others in (
        (False, other, right),
        (True, [each for each in right if each is not False], other),
    ):
        without = [i for i, flag in enumerate(given) if flag is not True]
        alone = len(without) < len(given)  # of some calls, which is which is known if both sides make as many
        if not without or not others or not all(flag is True for flag in others):
            continue
        if alone and (len(given) != len(others) or by_right):
            continue
        by_fit = by_right and sides.right_trace.trained_by == "fit"
        seen = Measurement.of("script-flag", training=given[without[0]], by_fit=by_fit)
        if alone:
            calls = [each for each in sides.other.model_events(sides.step, "inputs", model) if not each.replica]
            line = calls[without[0]].info.get("line")
            yield Variant({}, seen.but(call=without[0] + 1), called=None, line=line)
        else:
            yield Variant({}, seen, remedy=OF_MODEL if by_fit else "", by_right=by_right)
    yield from _recorded_flag_of_layer(sides, located)


def _recorded_flag_of_layer(sides: Sides, located: Located) -> Iterator[Variant]:
    """Models that tell the first layer that differs another flag, of a name that only they know, such as is_training.

    An explicit training=False on the side that is held to be right is meant, unless fit could not say otherwise.
    """
    pairs = zip(*(each.of(sides.step, "layer") for each in sides.close_ups), strict=False)
    given = {(a.info.get("training"), b.info.get("training")) for a, b in pairs if a.info["name"] == located.where}
    takes = [event.info.get("takes_training", True) for event in sides.right.model_events(sides.step, "predictions")]
    by_fit = given == {(False, True)} and sides.right_trace.trained_by == "fit" and not any(takes)
    if by_fit or given == {(True, False)}:
        seen = Measurement.of("script-layer-flag", layer=located.where, by_fit=by_fit)
        yield Variant({}, seen, remedy=OF_MODEL if by_fit else "", by_right=by_fit)


def flags_of(sides: Sides, model: str = "") -> list[list[Any]]:
    """The training flags with which each side calls its model in the step, on its first replica."""
    both = sides.both(partial(CloseUp.model_events, kind="predictions", model=model))
    return [[event.info["training"] for event in events if not event.replica] for events in both]


# Clipping


def _clipped_gradient(case: Case, recipe: Recipe) -> Iterable[Variant]:
    """Clipping in the loop; the limit is the largest norm or value among the gradients that it changed."""
    feed = case.feed(recipe)
    if not feed or recipe.clip is not None:
        return
    _, (_, expected) = case.optimizers
    if own := Clip.by_options(expected):  # the loop may do it itself, with an optimizer that does not
        seen = Measurement.of("gradients-clipped", by=own.kind, limit=own.limit)
        yield Variant({"clip": own}, seen, harmless=True)
    replay = case.replay
    for reduced in (False, True) if case.replicas > 1 else (False,):
        pairs: list[tuple[np.ndarray, np.ndarray]] = []
        for i, (step, span) in enumerate(zip(case.steps, feed, strict=True)):
            if reduced:
                pairs.append((case.effective[i][0], replay.gradients(step, span, recipe)[0]))
            else:
                pairs += zip(case.replica_gradients(i), replay.replica_gradients(step, span, recipe), strict=True)
        for kind, limit in _limits([(replay.unflatten(a), replay.unflatten(b)) for a, b in pairs]):
            when = {"when": "after" if reduced else "before"} if case.replicas > 1 else {}
            seen = Measurement.of("gradients-clipped", by=kind, limit=limit, **when)
            yield Variant({"clip": Clip(kind, limit, reduced)}, seen, measured=True)


Gradients = Sequence[np.ndarray]


def _limits(pairs: Iterable[tuple[Gradients, Gradients]]) -> Iterable[tuple[str, float]]:
    """The limit of each kind of clipping that the (observed, predicted) gradients of all variables suggest."""
    found: dict[str, list[float]] = {"global": [], "norm": [], "value": []}
    for both in pairs:
        sizes: dict[str, list[tuple[float, float]]] = {
            "global": [(norm_of(both[0]), norm_of(both[1]))],
            "norm": [(norm_of([a]), norm_of([b])) for a, b in zip(*both, strict=True)],
            "value": [(_largest(both[0]), _largest(both[1]))],
        }
        for kind, size_pairs in sizes.items():
            found[kind] += [a for a, b in size_pairs if 0 < a < b * (1 - 1e-4)]
    for kind, limits in found.items():
        if limits:
            yield kind, max(limits)


def _largest(gradients: Gradients) -> float:
    return max(float(np.abs(each).max(initial=0)) for each in gradients)


LIMITED = {
    "value": ("every value of the gradients", "[tf.clip_by_value(each, -{0:g}, {0:g}) for each in gradients]"),
    "global": ("the norm of all gradients together", "tf.clip_by_global_norm(gradients, {0:g})[0]"),
    "norm": ("the norm of each variable's gradient", "[tf.clip_by_norm(each, {0:g}) for each in gradients]"),
}
"""What each kind of clipping limits and how, the simplest to tell from other mistakes first."""


def _recorded_clipping(sides: Sides, located: Located) -> Iterator[Variant]:
    """A limit that explains one side's gradients of all replicas; that of a norm is a round number, as limits are.

    An embedding's gradient has rows, and what comes twice counts twice in its norm: the limit that shows is no round
    number there, and a call of a function that limits gradients tells.
    """
    both = [sides.gradients(replica) for replica in (range(sides.replicas) if sides.replicas > 1 else (None,))]
    pairs = [(other, right) for right, other in both if right and other]
    if not pairs or any(a.keys() != b.keys() for a, b in pairs) or sides.clip_alike():
        return
    for at, each in ((sides, pairs), (sides.turned(), [pair[::-1] for pair in pairs])):
        limits = dict(_limits([([a[i] for i in a], [b[i] for i in a]) for a, b in each]))
        others, own = map(clipping_of, at.traces)
        for kind, (limited, code) in LIMITED.items():
            limit = limits.get(kind)
            if limit is None:
                continue
            usual = kind == "value" or is_round(limit, 2)
            in_rows = any(event.info.get("in_rows") for event in at.other.of(at.step, "gradients"))
            explains = usual or (kind == "global" and in_rows and at.other.of(at.step, "clip"))
            if explains and all(equal_gradients(a, Clip(kind, limit).of_variables(b)) for a, b in each):
                quantities = {"limited": limited, "limit": limit, "replicas": sides.replicas}
                remedy = f"gradients = {code.format(limit)}  # before they are applied"
                if at is sides:
                    option, value = next(iter(others.items()), ("", 0.0))
                    remedy = f"  # as the other side's optimizer does, by {option}={value:g}"
                    remedy = f"gradients = {LIMITED[OF_OPTION[option]][1].format(value)}{remedy}" if option else ""
                    if option and in_rows and kind == OF_OPTION[option]:  # which it may do already
                        remedy = f"optimizer = ...  # with {option}={value:g}: it counts the rows of an embedding's "
                        remedy += "gradient otherwise than a function of TensorFlow"
                seen = Measurement.of("script-limits", **quantities, clipping=own, other_clipping=others)
                yield Variant({}, at.named(seen), measured=True, remedy=remedy)
                return


def _clipped_update(case: Case, update: Update) -> Iterable[Variant]:
    options, expected = ({name: config.get(name) for name in CLIPPING} for _, config in case.optimizers)
    if any(expected.values()):
        if case.replicas > 1:
            other, when = ("reduced", "after") if update.clip == "per-replica" else ("per-replica", "before")
            yield Variant({"clip": other}, Measurement.of("clipped-when", when=when))
        yield Variant({"clip": "off"}, Measurement.of("not-clipped", expected=_set(expected)), remedy=OWN_OPTIMIZER)
    if options != expected and case.observation.optimizers:
        seen = Measurement.of("other-clipping", options=_set(options), expected=_set(expected))
        yield Variant({"overrides": options}, seen, remedy=OWN_OPTIMIZER)


# Reduction over replicas, and variables without gradient


def _not_reduced(case: Case, recipe: Recipe | Update) -> Iterable[Variant]:
    if case.replicas > 1:
        yield Variant({"reduce": "own"}, Measurement.of("own-gradients"))
        first = Measurement.of("first-gradient")
        yield Variant({"reduce": "first"}, first)
        if isinstance(recipe, Recipe):  # which then is that of its whole mean, as on one replica
            share, replicas = scaled(recipe.share, float(case.replicas)), float(case.replicas)
            yield Variant({"reduce": "first", "share": share, "regularization": replicas}, first)


def _recorded_first(sides: Sides, located: Located) -> Iterator[Variant]:
    _, other = sides.gradients()
    if sides.replicas > 1 and equal_gradients(other, sides.right.gradients(sides.step, replica=0)):
        yield Variant({}, Measurement.of("script-first-replica"))


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
        seen = _no_gradient(case, untrained)
        yield Variant({"untrained": frozenset(untrained)}, seen, measured=True)
        names, weights = case.replay.loss_weights or ((), ())
        for i, name in enumerate(names):
            remedy = f"{OF_OUTPUTS}  # all outputs"
            if case.replay.experiment.loss_weights is None:
                remedy = "loss = tf.add_n(list(of_output.values()))  # the losses of all outputs"
            changes = {"loss_weights": (*weights[:i], 0.0, *weights[i + 1 :])}
            yield Variant(changes, seen.but(output=name), measured=True, remedy=remedy)


def _recorded_frozen(sides: Sides, located: Located) -> Iterator[Variant]:
    """Layers that are not trainable, and so predict otherwise."""
    untrained = list(sides.without_gradient().values())
    flagged = all(flag is True for flags in flags_of(sides) for flag in flags)
    if flagged and any(located.where in name.split("/") for name in untrained):
        remedy = (
            "layer.trainable = True  # where the other script sets it\n"
            "variables = model.trainable_variables  # afterwards, and in a tf.function that is traced afterwards"
        )
        yield Variant({}, Measurement.of("script-frozen", variables=untrained), remedy=remedy)


def _recorded_without_gradient(sides: Sides, located: Located) -> Iterator[Variant]:
    untrained, (_, given) = sides.without_gradient(), sides.gradients()
    models = {event.info.get("model") for event in sides.other.of(sides.step, "inputs")}
    remedy = OF_VARIABLES if len(models) > 1 or not sides.other_trace.model else ""
    if untrained and sides.other_trace.never_changes:
        yield Variant({}, Measurement.of("weights-never-change", zero="gradients"), remedy=remedy)
    elif untrained:
        kinds = (
            ("script-no-gradient", [name for i, name in untrained.items() if i not in given]),
            ("script-zero-gradient", [name for i, name in untrained.items() if i in given]),
        )
        seen = [Measurement.of(kind, variables=own, side=sides.other_name) for kind, own in kinds if own]
        yield Variant({}, Measurement.all(seen), remedy=remedy)


def _recorded_without_update(sides: Sides, located: Located) -> Iterator[Variant]:
    """Variables that a loop without an optimizer takes gradients of, but does not change."""
    expected, own = sides.both(CloseUp.changes)
    _, given = sides.gradients()
    still = [i for i, each in given.items() if np.any(each) and i in own and not np.any(own[i]) and np.any(expected[i])]
    if sides.other_trace.by_hand and 0 < len(still) < len(given):
        names = [sides.variables[i] for i in still]
        yield Variant({}, Measurement.of("script-not-updated", variables=names), remedy=BY_HAND_TOO, called=None)


BY_HAND_TOO = (
    "for variable, gradient in zip(variables, gradients):  # all that are to be trained\n    variable.assign_sub(...)"
)
OF_VARIABLES = (
    "gradients = tape.gradient(loss, variables)  # of all variables that are to be trained\n"
    "optimizer.apply_gradients(zip(gradients, variables))  # in every step"
)


def _without_update(case: Case, update: Update) -> Iterable[Variant]:
    unchanged = set(range(case.replay.trainable))
    for step in case.passes:
        if step.after is None:
            return
        for k in range(case.replay.trainable):
            has_gradient = any(gradients[k] is not None and np.any(gradients[k]) for gradients in step.gradients)
            if (step.gradients and not has_gradient) or np.any(step.after[0][k] != step.state[0][k]):
                unchanged.discard(k)
    if unchanged and len(unchanged) < case.replay.trainable:
        yield Variant({"untrained": frozenset(unchanged)}, _no_gradient(case, unchanged), measured=True)


def _never_changes(case: Case) -> Measurement | None:
    """Evidence that no weight ever changes, while the reference's do."""
    observation, trainable = case.observation, case.observation.trainable
    states = [*observation.step_states, *observation.epoch_end_states.values()]
    expected = case.reference.epoch_end_states.values()
    if not states or any(changed_variables(observation.initial, state, trainable) for state in states):
        return None
    if not any(changed_variables(case.reference.initial, state, trainable) for state in expected):
        return None
    if not observation.optimizer_steps:
        return Measurement.of("weights-never-change", zero=None, batch=case.replay.global_batch_size)
    any_gradient = any(np.any(case.effective[i][0]) for i in range(len(case.steps)))
    seen = observation.inside
    losses = {seen.loss(step) for step in seen.steps} if seen else set()
    zero = "updates" if any_gradient else "losses" if losses == {0.0} else "gradients"
    return Measurement.of("weights-never-change", zero=zero)


def _no_gradient(case: Case, indices: Iterable[int]) -> Measurement:
    return Measurement.of("no-gradient", variables=[case.observation.names[k] for k in sorted(indices)])


def _set(config: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in config.items() if value}


CAUSES = (
    Cause(
        id="training-flag-missing",
        stages=(PREDICTIONS,),
        symptom="Dropout has no effect, and the model overfits. If it has batch normalization, the moving statistics "
        "stay at 0 and 1.",
        explanation="Without training=True, the model predicts as it does after training: dropout does nothing, and "
        "any batch normalization uses its moving statistics.",
        wrong="predictions = model(x)",
        remedy="predictions = model(x, training=True)",
        rewrites={
            r"((?:self\.)?\w+)\(([\w.]+)(?:, training=False)?\)": r"\2(\3, training=True)",
        },
        gradient=_no_flag,
        recorded={PREDICTIONS: _recorded_flag},
    ),
    Cause(
        id="clipping-differs",
        stages=(GRADIENTS, UPDATE),
        called="clip",
        symptom="Training differs while gradients are large, mostly in the first steps.",
        explanation="fit or the loop clips gradients and the other does not, or they clip at different limits or at "
        "different stages: Keras 3's optimizers clip each replica's gradient before the sum over replicas.",
        wrong="gradients, _ = tf.clip_by_global_norm(tape.gradient(loss, variables), 0.1)  # unlike fit",
        remedy="gradients = tape.gradient(loss, variables)  # the optimizer of run.build() clips if needed\n"
        "optimizer.apply_gradients(zip(gradients, variables))",
        remedies={
            SCRIPT: "gradients = tape.gradient(loss, variables)\n"
            "optimizer.apply_gradients(zip(gradients, variables))\n"
            "# the optimizer clips, with the same clipnorm, clipvalue or global_clipnorm as fit's",
        },
        gradient=_clipped_gradient,
        update=_clipped_update,
        recorded={GRADIENTS: _recorded_clipping, UPDATE: one_of(kind_of_setting, "clipping-differs")},
    ),
    Cause(
        id="gradients-not-reduced",
        stages=(GRADIENTS, UPDATE),
        called="gradients",
        symptom="The replicas' weights diverge; a saved model has learned from one replica's examples only.",
        explanation="apply_gradients sums the gradients over the replicas if it is called inside strategy.run. Updates "
        "that bypass it, or use one replica's gradients, are not summed.",
        wrong="for variable, gradient in zip(variables, gradients):\n"
        "    variable.assign_sub(learning_rate * gradient)  # on each replica, with its own gradient",
        remedy="optimizer.apply_gradients(zip(gradients, variables))  # in the function passed to strategy.run",
        gradient=_not_reduced,
        update=_not_reduced,
        recorded={GRADIENTS: _recorded_first},
    ),
    Cause(
        id="variables-not-trained",
        stages=(GRADIENTS, UPDATE),
        symptom="The loss stays too high; some weights never change.",
        explanation="The gradient is computed for, or applied to, only some of the trainable variables.",
        wrong="variables = model.layers[-1].trainable_variables",
        remedy="variables = model.trainable_variables\ngradients = tape.gradient(loss, variables)\n"
        "optimizer.apply_gradients(zip(gradients, variables))  # in every step",
        unnamed=("model", "variables"),  # what is trained alone, say
        gradient=_without_gradient,
        update=_without_update,
        recorded={
            PREDICTIONS: _recorded_frozen,
            GRADIENTS: _recorded_without_gradient,
            UPDATE: _recorded_without_update,
        },
        fact=_never_changes,
    ),
)
