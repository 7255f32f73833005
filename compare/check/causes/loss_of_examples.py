"""Causes in the loss of each example: what a loss function is given, and what it makes of that."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from compare.check.causes.base import Cause, Measurement, Variant
from compare.check.causes.loss_recorded import own_call
from compare.check.recipe import LossKind, Recipe
from compare.check.recorded import RecordedLoss, same
from compare.check.stages import Located
from compare.check.step_values import GRADIENTS, LOSS, PREDICTIONS, Sides
from compare.check.targets import losses_of, targets_of, value_of
from compare.check.used import FIT, SCRIPT

if TYPE_CHECKING:
    from compare.check.case import Case


def _recorded_unweighted(sides: Sides, located: Located) -> Iterator[Variant]:
    """A loss without weights. A step in more parts may weigh the gradient of each."""
    right, other = sides.parts
    if right != other or (sides.foreseen and other > 1):
        return
    remedy = OF_CLASSES if sides.right_trace.fit.get("class_weight") else ""
    yield Variant({"sample_weights": False}, Measurement.of("script-unweighted"), remedy=remedy)
    recorded, loss = RecordedLoss.of(sides), sides.other.loss(sides.step)
    if recorded is None or loss is None or recorded.targets is None or recorded.targets.weight is None:
        return
    weighted, plain = map(losses_of, (recorded.targets, replace(recorded.targets, weight=None)))
    if weighted is None or plain is None or not same(float(weighted.sum()), recorded.data):
        return
    if same(float(plain.mean()), loss - recorded.penalty):  # fit adds up losses whose weights have the sum of 1, say
        seen = Measurement.of("script-mean-unweighted", loss=loss, right_loss=recorded.data + recorded.penalty)
        yield Variant({}, seen, measured=True, remedy=OF_SUM)


def _logits(case: Case, recipe: Recipe) -> Iterable[Variant]:
    if case.replay.recovers:
        seen = Measurement.of("probabilities-as-logits", reference=case.reference.name)
        yield Variant({"loss": LossKind.UNRECOVERED}, seen, remedy=WITH_PROBABILITIES)
        return
    if other := case.replay.other_losses(LossKind.OTHER_LOGITS):
        seen = Measurement.of("other-from-logits", from_logits=not other[1], expected=other[1])
        yield Variant({"loss": LossKind.OTHER_LOGITS}, seen)
    squash = case.replay.squash()
    if squash is not None:
        name = squash.__name__.removesuffix("_v2")
        remedy = f"loss = loss_object(y, logits)  # what the model gives, without {name}"
        yield Variant({"loss": LossKind.SQUASHED}, Measurement.of("applied-twice", function=name), remedy=remedy)


def _recorded_logits(sides: Sides, located: Located) -> Iterator[Variant]:
    recorded = RecordedLoss.of(sides)
    if recorded is None or recorded.targets is None:
        return
    kind, flag = recorded.targets.kind, recorded.targets.from_logits
    loss = f"tf.keras.losses.{''.join(map(str.capitalize, kind.split('_')))}"
    in_both = (
        f"loss_object = {loss}(from_logits=False)\n# in both; or leave out the activation of the model's last layer"
    )
    remedy = WITHOUT_SOFTMAX if sides.foreseen else in_both  # only this side's model ends otherwise
    yield Variant({"loss": LossKind.UNRECOVERED}, Measurement.of("script-probabilities"), remedy=remedy)
    if function := recorded.targets.squash:
        remedy = f"loss = loss_object(y, logits)  # what the model gives, without {function}"
        yield Variant({"loss": LossKind.SQUASHED}, Measurement.of("script-squashed", function=function), remedy=remedy)
    by_right = not flag and not recorded.targets.are_probabilities
    if by_right and sides.foreseen:  # the other side's model ends otherwise, and its loss is right for that
        return
    remedy = f"loss_object = {loss}(from_logits={flag or by_right})\n# with the options of the other script's loss"
    if by_right and sides.right_trace.trained_by == "fit":
        remedy = f"model.compile(optimizer, loss={loss}(from_logits=True))  # as the model gives logits"
    seen = sides.named(Measurement.of("script-from-logits", from_logits=not flag))
    seen = seen.but(logits=True) if by_right else seen
    yield Variant({"loss": LossKind.OTHER_LOGITS}, seen, remedy=remedy, by_right=by_right)


MEAN_OF_ALL = "tf.reduce_mean(per_position * mask)"
MEAN_OF_KEPT = "tf.reduce_sum(per_position * mask) / tf.reduce_sum(mask)"
WITHOUT_SOFTMAX = "return logits  # where the model ends, without softmax: its loss has from_logits=True"
WITH_PROBABILITIES = (
    "loss_object = tf.keras.losses.SparseCategoricalCrossentropy()  # from_logits=False, in the experiment as well;\n"
    "# or keep from_logits=True, and let the model's last layer have no activation"
)


def _no_smoothing(case: Case, recipe: Recipe) -> Iterable[Variant]:
    if found := case.replay.other_losses(LossKind.UNSMOOTHED):
        yield Variant({"loss": LossKind.UNSMOOTHED}, Measurement.of("no-label-smoothing", expected=found[1]))


def _no_mask(case: Case, recipe: Recipe) -> Iterable[Variant]:
    if case.replay.masked:
        yield Variant({"loss": LossKind.UNMASKED}, Measurement.of("mask-unused"))
    if case.replay.masking:
        names = [case.observation.layers[i]["name"] for i in case.replay.masking]
        remedy = (
            "predictions = model(x, training=True)  # the model passes the masks on\n"
            "# where layers are called one by one:\n"
            "x = layer(x, mask=mask)  # mask = embedding.compute_mask(tokens)"
        )
        yield Variant({"masks": False}, Measurement.of("mask-lost", layers=names), remedy=remedy)


def _broadcast(case: Case, recipe: Recipe) -> Iterable[Variant]:
    names, _ = case.replay.loss_weights or ((), ())
    for output in case.replay.broadcastable:
        seen = Measurement.of("labels-broadcast", **({"output": names[output]} if names else {}))
        yield Variant({"loss": LossKind.BROADCAST, "output": output}, seen)


def _recorded_broadcast(sides: Sides, located: Located) -> Iterator[Variant]:
    own = targets_of(sides.other, sides.step)
    shapes = {} if own is None else {"labels": own.true.shape, "predictions": own.predicted.shape}
    yield Variant({"loss": LossKind.BROADCAST}, Measurement.of("script-pairs", **shapes))
    yield from _broadcast_shapes(sides, located)


def _broadcast_shapes(sides: Sides, located: Located) -> Iterator[Variant]:
    """The shapes of what one side's loss is made from say it, whatever function and however many outputs it has."""
    for at in (sides, sides.turned()):
        others, own = ([event.info.get("pairs") for event in side.of(at.step, "loss")] for side in at.close_ups)
        if any(own) and others and all(each is False for each in others):
            yield Variant({}, Measurement.of("script-shapes"), measured=True, by_right=at is not sides)


def _broadcast_next(sides: Sides, located: Located) -> Iterator[Variant]:
    """Of predictions that are all equal, as at first, only the gradients tell; in the next step the loss does."""
    yield from _broadcast_shapes(sides, located)
    following = sides.step + 1
    targets, loss = own_call(sides, following), sides.other.loss(following)
    if targets is None or loss is None:
        return
    pairs, mean = value_of(replace(targets, paired=False)), value_of(targets)
    penalty = sides.other.penalty(following)
    if pairs is not None and mean is not None and same(pairs + penalty, loss) and not same(mean + penalty, loss):
        yield Variant({}, Measurement.of("script-pairs-next", next_loss=loss, next_right=mean + penalty))


OF_SUM = "loss = tf.reduce_sum(loss_object.call(y, predictions) * sample_weight)  # as in the other script"
OF_CLASSES = (
    "per_example = loss_object.call(y, predictions)\n"
    "weight = tf.gather(class_weights, tf.cast(y, tf.int32))  # a list, one per class; y: its number, not one-hot\n"
    "per_example *= tf.reshape(weight, tf.shape(per_example))  # divided by their number, not by the weights' sum"
)


def _unweighted(case: Case, recipe: Recipe) -> Iterable[Variant]:
    if case.replay.weighted:
        yield Variant({"sample_weights": False}, Measurement.of("sample-weights-unused"))
    if case.replay.experiment.class_weight is not None:
        yield Variant({"class_weights": False}, Measurement.of("class-weights-unused"), remedy=OF_CLASSES)
        if case.replay.weighted:
            changes = {"sample_weights": False, "class_weights": False}
            yield Variant(changes, Measurement.of("no-weights-used"))


def _recorded_smoothing(sides: Sides, located: Located) -> Iterator[Variant]:
    right, own = targets_of(sides.right, sides.step), sides.other.of(sides.step, "targets")
    if right is not None:
        made = own and sides.other_trace.trained_by != "fit" and re.fullmatch(r"[A-Z]\w+", str(own[0].info["loss"]))
        option = f"label_smoothing={right.label_smoothing:g}"
        remedy = f"loss_object = tf.keras.losses.{made[0]}(..., {option})" if made else ""
        seen = Measurement.of("script-unsmoothed", label_smoothing=right.label_smoothing)
        yield Variant({"loss": LossKind.UNSMOOTHED}, seen, remedy=remedy)


def _masked_by_hand(sides: Sides) -> Iterator[Variant]:
    """The right loss leaves out the positions of one label, as of padding; the other is the mean over all of them."""
    recorded, loss = RecordedLoss.of(sides), sides.other.loss(sides.step)
    known = filter(None, (targets_of(side, sides.step) for side in sides.close_ups))  # one may have its own function
    if recorded is None or loss is None or (targets := next(known, None)) is None:
        return
    losses, labels = losses_of(targets), targets.true
    if losses is None or labels.size != losses.size or not same(float(losses.mean()), loss - recorded.penalty):
        return
    if same(float(losses.mean()), recorded.data):  # whatever is left out, as of the first predictions, which are alike
        return
    labels = labels.reshape(losses.shape)
    for label in np.unique(labels[labels == np.round(labels)]):
        kept = labels != label
        of_all, of_kept = float(np.mean(losses * kept)), float(np.sum(losses * kept) / max(kept.sum(), 1))
        if not any(same(each, recorded.data) for each in (of_all, of_kept)):
            continue
        seen = Measurement.of(
            "script-mask-by-hand",
            label=int(label),
            left_out=int(np.sum(~kept)),
            positions=labels.size,
            loss=loss,
            right_loss=recorded.data + recorded.penalty,
        )
        mean = MEAN_OF_ALL if same(of_all, recorded.data) else MEAN_OF_KEPT
        mask = f"mask = tf.cast(tf.not_equal(y, {label:g}), per_position.dtype)"
        remedy = f"per_position = loss_object.call(y, predictions)\n{mask}\nloss = {mean}"
        yield Variant({}, seen, measured=True, remedy=remedy if sides.other_trace.trained_by == "loop" else "")


def _recorded_mask(sides: Sides, located: Located) -> Iterator[Variant]:
    yield from _masked_by_hand(sides)
    right = targets_of(sides.right, sides.step)
    if right is not None:
        made = right.kind.title().replace("_", "")
        options = "from_logits=True" * (right.from_logits and "crossentropy" in right.kind)
        remedy = f"loss = tf.keras.losses.{made}({options})(y, predictions)  # uses the mask"
        yield Variant({"loss": LossKind.UNMASKED}, Measurement.of("script-unmasked"), remedy=remedy)
        value, loss = value_of(right), sides.other.loss(sides.step)
        if right.mask is not None and value is not None and loss is not None:
            counted = float(np.mean(right.mask))
            if same(loss, value * counted + sides.right.penalty(sides.step)):
                yield Variant(
                    {},
                    Measurement.of("script-mask-zeros", counted=counted, loss=loss, right_loss=value),
                    measured=True,
                    remedy=remedy,
                )


CAUSES = (
    Cause(
        id="logits-mismatch",
        stages=(LOSS,),
        symptom="The model learns slowly, or its loss stays at the level of guessing.",
        explanation="The loss treats logits as probabilities, or probabilities as logits (which applies softmax "
        "twice).",
        wrong="loss_object = tf.keras.losses.SparseCategoricalCrossentropy()  # the model ends without a softmax",
        remedy="model, optimizer, loss_object, metrics = run.build()  # use this loss_object",
        remedies={SCRIPT: "loss_object = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)  # as in fit"},
        made_in=r"(?<!metrics\.)\b\w+Crossentropy\(",
        gradient=_logits,
        recorded={LOSS: _recorded_logits},
    ),
    Cause(
        id="label-shape-broadcast",
        stages=(LOSS, GRADIENTS),
        symptom="A regression model learns only the mean of the labels; the loss stays at their variance.",
        explanation="Labels of shape [n] minus predictions of shape [n, 1] broadcast to [n, n] without an error. "
        "Keras's own losses squeeze one of them; tf.square(y - predictions) does not.",
        wrong="per_example = tf.square(y - predictions)  # [n] minus [n, 1] is [n, n]",
        remedy="per_example = loss_object.call(tf.reshape(y, tf.shape(predictions)), predictions)",
        remedies={SCRIPT: "y = tf.reshape(y, tf.shape(predictions))  # before the loss"},
        gradient=_broadcast,
        recorded={LOSS: _recorded_broadcast, GRADIENTS: _broadcast_next},
    ),
    Cause(
        id="sample-weights-dropped",
        stages=(LOSS,),
        symptom="The training loss differs from fit's from the first step on.",
        explanation="fit weights the examples, by sample_weight of the data or by class_weight, and the loop does not.",
        wrong="x, y, *_ = batch\nper_example = loss_object.call(y, predictions)",
        remedy="x, y, sample_weight = batch\nper_example = loss_object.call(y, predictions) * sample_weight",
        remedies={FIT: "model.fit(..., sample_weight=sample_weight)  # or class_weight=..., as in the other script"},
        gradient=_unweighted,
        recorded={LOSS: _recorded_unweighted},
    ),
    Cause(
        id="label-smoothing-missing",
        stages=(LOSS,),
        symptom="The loop's loss is lower than fit's from the first step on, and its predictions become more certain.",
        explanation="fit's loss smooths its labels; the loop computes the loss by itself, without that.",
        wrong="loss = tf.nn.softmax_cross_entropy_with_logits(y, predictions)",
        remedy="per_example = loss_object.call(y, predictions)  # the loss of run.build() smooths the labels",
        remedies={
            FIT: "model.compile(optimizer, loss_object)  # with the other script's label_smoothing",
            SCRIPT: "per_example = loss_object.call(y, predictions)  # with fit's label_smoothing",
        },
        gradient=_no_smoothing,
        recorded={LOSS: _recorded_smoothing},
    ),
    Cause(
        id="mask-missing",
        stages=(PREDICTIONS, LOSS),
        symptom="With padded sequences, the loss is another one than fit's, the more so the more padding there is.",
        explanation="A layer such as Embedding(mask_zero=True) gives its outputs a mask, and Keras's layers and "
        "losses leave out the masked positions. A loss computed by hand counts them; functions of TensorFlow between "
        "layers lose the mask.",
        wrong="per_position = loss_object.call(y, predictions)\nloss = tf.reduce_mean(per_position)",
        remedy="loss = loss_object(y, predictions)  # so Keras uses the mask, and divides by the replicas",
        remedies={
            FIT: "model.compile(optimizer, masked_loss)  # a function of labels and predictions, as the other script's",
            SCRIPT: "loss = loss_object(y, predictions)  # an object of keras.losses, which uses the mask",
        },
        gradient=_no_mask,
        recorded={LOSS: _recorded_mask},
    ),
)
