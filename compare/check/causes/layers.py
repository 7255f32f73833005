"""Causes and evidence in layers: those with other settings, and those that only one side has."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from compare.check.causes.base import Cause, Measurement, Variant
from compare.check.layer_outputs import function_follows
from compare.check.recorded import RecordedLoss, same, things_apart
from compare.check.stages import Located
from compare.check.step_values import GRADIENTS, LOSS, PREDICTIONS, STATE, UPDATE, Sides
from compare.naming import some

if TYPE_CHECKING:
    from compare.check.case import Case

WHERE_SEEN = "dtype", "trainable"
"""Settings that explain a difference only in a layer that is known to be the first that differs."""
NO_FUNCTIONS = "Dropout|Noise|^Random|^Masking$"
"""Classes of layers in whose place hardly anybody calls a function."""
FROZEN = "layer.trainable = {}  # where the other script sets it, before the step is traced"


def _other_layers(case: Case) -> Measurement | None:
    """Evidence that the trainer has given layers of the model that it was given other settings."""
    pairs = things_apart(case.observation.layers_at_end, case.observation.layers)
    found = ((own, {name: both for name, both in apart.items() if name != "trainable"}) for own, _, apart in pairs)
    seen = [each for each, _ in _together(case.observation.name, found)]
    return Measurement.all(seen) if seen else None


def layers_apart(
    sides: Sides, located: Located, *, certain: bool = False
) -> list[tuple[Measurement, Mapping[str, Any]]]:
    """Layers with other settings that may make a difference in a stage, those alike together, each with the first.

    The line that made it counts only where the other side has another one, so that it can give another setting. Where
    the difference is known to be in some layers, only those. A regularizer that one side lacks makes its loss
    smaller; where that is larger, the penalty is added by hand. ``certain`` leaves out settings in whose place a model
    calls a function, as tf.nn.relu, or may, and those whose effect is not known to be seen there.
    """
    parts = {part for name in located.where.split(", ") for part in name.split("/")}
    losses = sides.losses if located.stage == LOSS else None

    def may_explain(layers: Sequence[str], name: str, own: Any, right: Any) -> bool:
        if certain and name in WHERE_SEEN and not located.where:
            return False
        if name == "activation" and "linear" in (own, right):
            follows = function_follows(sides.close_ups, sides.step, layers)
            if follows or (certain and (follows is None or not located.where)):
                return False
        if located.stage == UPDATE or "constraint" in name:
            return located.stage == UPDATE and "constraint" in name
        if located.stage not in (LOSS, GRADIENTS):
            return "regularizer" not in name
        if losses is None or "regularizer" not in name or (own is None) == (right is None):
            return True
        return losses[1] < losses[0] if own is None else losses[0] < losses[1]

    return _together(
        sides.other_name,
        (
            (
                {**own, "made": None} if own.get("made") == right.get("made") else own,
                {name: both for name, both in apart.items() if may_explain((right["name"], own["name"]), name, *both)},
            )
            for own, right, apart in things_apart(sides.other_trace.layers, sides.right_trace.layers)
            if not located.where or not parts.isdisjoint((own["name"], right["name"]))
        ),
    )


def _together(
    side: str, found: Iterable[tuple[Mapping[str, Any], Mapping[str, Sequence[Any]]]]
) -> list[tuple[Measurement, Mapping[str, Any]]]:
    """What says that layers of a side have other settings, one for those that have the same, with the first of them."""
    alike: dict[str, tuple[Mapping[str, Any], Mapping[str, Sequence[Any]], list[str]]] = {}
    for layer, settings in found:
        if settings:
            alike.setdefault(f"{layer['class']} {settings}", (layer, settings, []))[-1].append(layer["name"])
    told = []
    for first, settings, names in alike.values():
        called = f"{first['class']} {names[0] if len(names) == 1 else f'({some(names)})'}"
        told.append((Measurement.of("layer-settings", side=side, layer=called, settings=settings), first))
    return told


def _recorded_layers(sides: Sides, located: Located) -> Iterator[Variant]:
    """Layers with other settings that compute, or change, what differs first; or whose penalty is all of it.

    Or else layers that are trained on one side alone, and so may predict otherwise.
    """
    seen = layers_apart(sides, located, certain=True)
    if not seen and located.stage == PREDICTIONS and layers_apart(sides, located):  # only by a function in its place
        seen = layers_apart(sides, replace(located, where=""), certain=True)
    if located.stage == LOSS:
        losses = [RecordedLoss.of(at) for at in (sides, sides.turned()) if not sides.foreseen]
        known = [each.data for each in losses if each is not None]
        seen = seen if len(known) == 2 and same(*known) else []
    elif located.stage == STATE and not located.where:  # that of all layers which have any
        seen = [each for each in seen if "Normalization" in each[1]["class"]]
    yield from of_layers(seen)
    right, other = sides.gradients() if located.stage == PREDICTIONS else ({}, {})
    more = [sides.variables[i] for i in sorted(other.keys() - right.keys())] if right else []
    if any(located.where in name.split("/") for name in more):
        alone = Measurement.of("more-gradients", variables=more)
        yield Variant({}, alone, measured=True, remedy=FROZEN.format(False), called=None)


def layers_alone(sides: Sides, located: Located) -> Iterator[Measurement]:
    """Layers that only one side calls, such as one that makes a mask, if the other calls no function in their place."""
    if any(each.of(sides.step, "drawn") for each in sides.close_ups):
        return
    for at in (sides, sides.turned()):
        others, own = ({event.info["class"] for event in each.of(at.step, "layer")} for each in at.close_ups)
        alone = sorted(each for each in own - others if re.search(NO_FUNCTIONS, each))
        if own and others and alone:
            yield Measurement.of("layers-alone", side=at.other_name, classes=alone)


def of_layers(seen: Sequence[tuple[Measurement, Mapping[str, Any]]]) -> Iterator[Variant]:
    """What ``layers_apart`` gives, if it is anything, with the line that makes the first such layer."""
    if seen:
        (first, layer), made = seen[0], seen[0][1].get("made")
        settings = first.quantities["settings"].items()
        options = ", ".join(f"{name}={right!r}" for name, (_, right) in settings if name.isidentifier())
        remedy = f"tf.keras.layers.{layer['class']}(..., {options})" if options else ""
        if "trainable" in first.quantities["settings"]:
            made, remedy = None, FROZEN.format(first.quantities["settings"]["trainable"][1])
        told = Measurement.all([each for each, _ in seen])
        yield Variant({}, told, measured=True, remedy=remedy, called=None, line=made)


CAUSES = (
    Cause(
        id="layer-differs",
        stages=(PREDICTIONS, LOSS, UPDATE, STATE),
        symptom="The models seem to be the same, but a layer of one has another setting: training differs from the "
        "first step in which that layer has a part.",
        explanation="Settings, such as the rate of Dropout or the momentum of BatchNormalization, are part of the "
        "model: with others, equal weights predict otherwise, or their statistics move otherwise.",
        wrong="model.layers[1].momentum = 0.5",
        remedy="model = build_model()  # one function that makes the model for both, and nobody changes its layers",
        fact=_other_layers,
        recorded=dict.fromkeys((PREDICTIONS, LOSS, UPDATE, STATE), _recorded_layers),
    ),
)
