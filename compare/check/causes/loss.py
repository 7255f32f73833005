"""Causes in how the examples' losses are combined into the loss that is differentiated."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from compare.check.causes.base import ARGUMENT, Cause, Measurement, Recorded, Variant
from compare.check.recipe import (
    BROADCAST,
    OTHER_LOGITS,
    SQUASHED,
    UNMASKED,
    UNRECOVERED,
    UNSMOOTHED,
    Recipe,
    Share,
    Span,
    Split,
    mean_of_means,
    multiple,
    norm_of,
)
from compare.check.recorded import (
    CLOSE,
    RecordedLoss,
    both_gradients,
    clip_alike,
    factor_of_gradients,
    have_factor,
    holds_elsewhere,
    parts_of_step,
    penalty_of,
    same,
    skipped_updates,
)
from compare.check.sides import Sides
from compare.check.stages import Located
from compare.check.step_values import (
    GRADIENTS,
    LOSS,
    PREDICTIONS,
    UPDATE,
    both_losses,
    calls_of,
    example_rows,
    loss_of,
    other_calls,
)
from compare.check.targets import Targets, targets_of, value_of
from compare.check.used import ALONE, FIT, SCRIPT
from compare.watch.trace import ON_BATCHES

if TYPE_CHECKING:
    from compare.check.case import Case


def scaled(share: Share, factor: float) -> Share:
    """Returns a share multiplied by a factor."""
    return lambda split: [factor * weight for weight in share(split)]


def divided_by(denominator: Callable[[Split], float]) -> Share:
    """Returns a share of 1/denominator for every example, on any replica."""
    return lambda split: [1 / denominator(split)] * split.replicas


def by_replicas(share: Share, power: int) -> Share:
    """Returns a share multiplied by the number of replicas, or divided by it: to the power of -1."""
    return lambda split: [weight * split.replicas**power for weight in share(split)]


LOSS_SCALE = 2.0**15
"""The scale with which Keras's LossScaleOptimizer begins, unless it is told otherwise."""
OTHER_SHARES: Mapping[str, Share] = {
    "loss-constant-denominator": divided_by(lambda split: float(split.global_batch_size)),
    "loss-summed": divided_by(lambda split: 1.0),
    "loss-not-divided-by-replicas": by_replicas(mean_of_means, 1),
    "loss-divided-twice": by_replicas(mean_of_means, -1),
}
"""The share that each example gets by mistake, by cause, the more usual one first."""
OF_SIZE = ("loss-constant-denominator", "loss-summed")
"""Those by which the loss is another multiple of the right one in a batch of another size."""


def _recorded_share(wanted: str) -> Recorded:
    """Recognises one of ``OTHER_SHARES``; of two that are the same in the step, the more usual."""

    def recognise(sides: Sides, located: Located) -> Iterator[Variant]:
        recorded = RecordedLoss.of(sides)
        if recorded is None or not any(recorded.split.sizes):  # where no examples were seen, none has a share
            return
        factors = {cause: recorded.factor(share) for cause, share in OTHER_SHARES.items()}
        factor = factors[wanted]
        if wanted in OF_SIZE and not sides.foreseen and not holds_elsewhere(sides, OTHER_SHARES[wanted]):
            return
        if wanted == next(cause for cause, each in factors.items() if same(each, factor)):
            numbers = {"examples": sum(recorded.split.sizes), "full": recorded.split.global_batch_size}
            seen = Measurement.of(f"script-{wanted}", **numbers, replicas=sides.replicas)
            alone = seen.but(alone=True) if recorded.penalty else seen
            yield Variant({"share": OTHER_SHARES[wanted]}, alone)
            yield Variant({"share": OTHER_SHARES[wanted], "regularization": factor}, seen)

    return recognise


def _by_replicas(power: int, case: Case, recipe: Recipe, kind: str) -> Iterable[Variant]:
    """Variants in which the data's loss, or the whole loss, is multiplied or divided by the number of replicas."""
    if case.replicas == 1:
        return
    share, seen = by_replicas(recipe.share, power), Measurement.of(kind, replicas=case.replicas)
    yield Variant({"share": share}, seen)
    whole = {"share": share, "regularization": float(case.replicas**power)}
    yield Variant(whole, seen.but(regularization_included=True))


def _summed(case: Case, recipe: Recipe) -> Iterable[Variant]:
    yield Variant({"share": OTHER_SHARES["loss-summed"]}, Measurement.of("example-weight", divisor=1))
    if case.replicas > 1:
        seen = Measurement.of("example-weight", divisor=case.replicas)
        yield Variant({"share": divided_by(lambda split: float(split.replicas))}, seen)


def _recorded_sum(sides: Sides, located: Located) -> Iterator[Variant]:
    """The sum over the examples, or the gradient of a vector of losses, which is that of their sum."""
    yield from _recorded_share("loss-summed")(sides, located)
    for by_right, name, close_up in (
        (True, sides.right_name, sides.right), (False, sides.other_name, sides.other)):  # fmt: skip
        losses = [event.arrays[: event.info["targets"]] for event in close_up.of(sides.step, "loss")]
        if len(losses) == 1 and len(losses[0]) == 1 and (count := np.size(losses[0][0])) > 1:
            factor = 1 / count if by_right else float(count)
            seen = sides.named(Measurement.of("script-losses-summed", losses=count, summing=name))
            for regularization in ({}, {"regularization": factor}):
                yield Variant({"share": scaled(mean_of_means, factor), **regularization}, seen, by_right=by_right)


def _constant(case: Case, recipe: Recipe) -> Iterable[Variant]:
    user_run = case.replay.user_run
    seen = Measurement.of("short-batch-as-full")
    if user_run is not None:
        seen = Measurement.of(
            "last-batch-as-full",
            last=user_run.last, global_batch_size=user_run.global_batch_size, examples=user_run.examples,
        )  # fmt: skip
    yield Variant({"share": OTHER_SHARES["loss-constant-denominator"]}, seen)
    weight = _factor(case, recipe, divided_by(lambda split: 1.0))
    sizes = {span.stop - span.start for span in case.feed(recipe) or ()}  # of equal ones, it is any factor of the loss
    if weight is not None and abs(weight - 1) > 1e-3 and weight > 0 and len(sizes) > 1:
        seen = Measurement.of("example-weight", divisor=1 / weight)
        yield Variant({"share": divided_by(lambda split: 1 / weight)}, seen, measured=True)
    yield from _constant_micro_batches(case, recipe)


def _scaled(case: Case, recipe: Recipe) -> Iterable[Variant]:
    alone = _factor(case, recipe, recipe.share)
    if alone is not None and case.replay.scales_losses and _loss_scale(alone):
        return  # that of loss-scale-missing
    yield from _weight_of_output(case, recipe)
    yield from _accumulated(case, recipe)
    if alone:
        seen = Measurement.of("loss-factor", factor=alone)
        yield Variant({"share": scaled(recipe.share, alone)}, seen, measured=True)
    feed = case.feed(recipe)
    if recipe.regularization and feed:
        predicted = case.replay.gradients(case.steps[0], feed[0], recipe)
        whole = multiple(case.effective[0], predicted)
        if whole:
            changes = {"share": scaled(recipe.share, whole), "regularization": whole * recipe.regularization}
            seen = Measurement.of("loss-factor", factor=whole, regularization_included=True)
            yield Variant(changes, seen, measured=True)


def _scale_missing(case: Case, recipe: Recipe) -> Iterable[Variant]:
    alone = _factor(case, recipe, recipe.share) if case.replay.scales_losses else None
    if alone is None or not (factor := _loss_scale(alone)):
        return
    seen = Measurement.of("loss-not-scaled", loss_scale=1 / factor)
    if factor > 1:
        seen = Measurement.of("gradients-not-unscaled", loss_scale=factor)
    for regularization in dict.fromkeys([factor * recipe.regularization, recipe.regularization]):
        changes = {"share": scaled(recipe.share, factor), "regularization": regularization}
        yield Variant(changes, seen, measured=True)


def _loss_scale(factor: float) -> float | None:
    """The power of two that a factor is close to, if it looks like loss scaling: very large or very small."""
    power = np.log2(factor) if factor > 0 else 0.0
    return float(2.0 ** np.round(power)) if abs(power) >= 6 and abs(power - round(power)) < 0.01 else None


def _recorded_scale(sides: Sides, located: Located) -> Iterator[Variant]:
    """In float16, the loss is multiplied by a large power of two, and the gradients are divided by it.

    It is what an optimizer begins with, and half of that after each update that it has left out.
    """
    half = any(array.dtype == np.float16 for array in sides.right.arrays(sides.step, "layer"))
    right, other = both_gradients(sides)
    if not half or not right or right.keys() != other.keys():
        return
    norms = [norm_of(list(side.values())) for side in (right, other)]
    factor = _loss_scale(norms[1] / norms[0]) if all(norms) else None
    called = sides.right.of(sides.step, "scaled-loss")  # Keras 2 tells neither
    begun = [each.config.get("initial_scale") for each in (sides.right_trace, sides.other_trace)]
    scale = next(filter(None, begun), LOSS_SCALE) / 2 ** skipped_updates(sides)[0]
    if factor == 1 / scale and located.stage == LOSS:
        yield Variant({}, Measurement.of("script-not-scaled", loss_scale=scale))
    elif factor == scale and located.stage == GRADIENTS and (called or not sides.right.of(sides.step, "scaled")):
        yield Variant({}, Measurement.of("script-not-unscaled", loss_scale=scale))


def _recorded_factor(sides: Sides, located: Located) -> Iterator[Variant]:
    """Any factor, if the loss has it in later steps too, where the predictions are already other ones.

    There it is compared with the loss computed again from the other side's own predictions. Where that is not known, a
    number of equal parts that are added up is believed, such as of the steps of a decoder. Batches of another size
    don't count: what divides by a constant has another factor there. The model's own losses may be added afterwards.
    """
    right, other = both_losses(sides.right, sides.other, sides.step) or (0.0, 0.0)
    if not right or same(right, other) or loss_of(sides.other, sides.step + 1) is None:
        return
    steps = [step for step in sides.other.steps if step > sides.step and _rows(sides, step) == _rows(sides, sides.step)]
    later = [(step, targets) for step in steps if (targets := _own_call(sides, step))]
    for penalty in dict.fromkeys((0.0, penalty_of(sides.right, sides.step))):
        factor = (other - penalty) / (right - penalty) if right != penalty else 0.0
        parts = max(factor, 1 / factor) if 0 < factor < np.inf else 1.0
        if later:
            has_factor = all(_is_times(factor, sides, step, targets, apart=bool(penalty)) for step, targets in later)
        else:
            has_factor = not penalty and round(parts) > 1 and same(parts, round(parts))
        if has_factor and (penalty or sides.foreseen or have_factor(sides, factor)):
            kind = "script-data-loss-factor" if penalty else "script-loss-factor"
            seen = Measurement.of(kind, factor=factor, loss=other, right_loss=right, penalty=penalty)
            what = f"the factor {factor:.6g}" if factor == parts else f"the division by {parts:.6g}"
            yield Variant({}, seen, measured=True, remedy=f"loss = loss_fn(y, predictions)  # without {what}")
            return


def _is_times(factor: float, sides: Sides, step: int, targets: Targets, *, apart: bool) -> bool:
    """Whether the loss of the other side's step is a factor times that of its own labels and predictions.

    With ``apart``, the model's own losses do not have the factor.
    """
    own, loss = targets_of(sides.other, step), loss_of(sides.other, step)
    expected = value_of(targets if own is None else replace(targets, predicted=own.predicted))
    if loss is None or expected is None:
        return False
    penalty = penalty_of(sides.other, step)
    return same(loss, factor * expected + penalty if apart else factor * (expected + penalty))


def _rows(sides: Sides, step: int) -> int:
    """For how many examples the other side's model predicts in a step."""
    return sum(map(len, sides.other.arrays(step, "predictions")))


def _own_call(sides: Sides, step: int) -> Targets | None:
    """The right call of the loss function in a step of the same examples, with the other side's own predictions."""
    right, predictions = targets_of(sides.right, step), sides.other.arrays(step, "predictions")
    if right is None or len(predictions) != 1 or loss_of(sides.other, step) is None:
        return None
    if example_rows(sides.right, step) != example_rows(sides.other, step):
        return None
    return replace(right, predicted=np.asarray(predictions[0], np.float64))


def _recorded_gradients(sides: Sides, located: Located) -> Iterator[Variant]:
    """Gradients that are the right ones times a factor, where the loss is the same."""
    variants = list(_recorded_micro_batches(sides, located))
    factor, length = factor_of_gradients(sides), norm_of(list(both_gradients(sides)[1].values()))
    clips = clip_alike(sides) or abs(length - float(f"{length:.2g}")) <= 1e-4 * length  # or a norm may be limited
    if not variants and factor and sides.replicas == 1 and not clips and _is_written(factor):
        variants.append(Variant({}, Measurement.of("gradients-have-factor", factor=factor), measured=True))
    yield from variants


def _is_written(factor: float) -> bool:
    """Whether a factor, or what is divided by, has three digits, as people write it; that of a norm's limit has not."""
    return any(abs(each - float(f"{each:.3g}")) <= CLOSE * abs(each) for each in (factor, 1 / factor))


def _recorded_micro_batches(sides: Sides, located: Located) -> Iterator[Variant]:
    """One side adds up the gradients of micro-batches, or divides them twice, which the other averages."""
    parts = parts_of_step(sides)
    for i, count in enumerate(parts):
        kind, remedy = "", ""
        if count > 1 and have_factor(sides, count if i else 1 / count):
            kind = "script-micro-batches"
            remedy = "gradients = [total / micro_batches for total in accumulated]  # assign the result"
        elif count > parts[1 - i] == 1 and have_factor(sides, 1 / count if i else count):
            kind = "script-divided-twice"
            remedy = "gradients = accumulated  # if the loss of each micro-batch is divided already"
        if kind:
            yield Variant({}, Measurement.of(kind, factor=count), remedy=remedy, by_right=not i, called=GRADIENTS)
            return


def _recorded_unweighted(sides: Sides, located: Located) -> list[Variant]:
    """A loss without weights. A step in more parts may weigh the gradient of each."""
    right, other = parts_of_step(sides)
    known = right == other and not (sides.foreseen and other > 1)
    remedy = OF_CLASSES if sides.right_trace.fit.get("class_weight") else ""
    return [Variant({"sample_weights": False}, Measurement.of("script-unweighted"), remedy=remedy)] if known else []


def _factor(case: Case, recipe: Recipe, share: Share) -> float | None:
    """The multiple of the data's loss, weighted by ``share``, in the first step's gradient; None if unknown."""
    feed = case.feed(recipe)
    if not feed or recipe.clip is not None:
        return None
    step, span = case.steps[0], feed[0]
    regularization = case.replay.gradients(step, span, replace(recipe, share=divided_by(lambda split: np.inf)))
    data = case.replay.gradients(step, span, replace(recipe, share=share, regularization=0.0))
    rest = [observed - known for observed, known in zip(case.effective[0], regularization, strict=True)]
    return multiple(rest, data)


def _uneven(case: Case, recipe: Recipe) -> Iterable[Variant]:
    if case.replicas == 1:
        return
    share = divided_by(lambda split: float(sum(split.sizes)))
    if case.observation.distributed:
        yield Variant({"share": share}, Measurement.of("even-weights"))
    else:
        remedy = (
            "dataset = strategy.experimental_distribute_dataset(run.train_dataset(epoch))\n"
            "per_replica_loss = strategy.run(train_step, args=(batch,))  # or compare on one replica: --replicas 1\n"
            "loss = loss / strategy.num_replicas_in_sync  # in train_step"
        )
        yield Variant({"share": share}, Measurement.of("strategy-unused"), remedy=remedy)


def _regularization_missing(case: Case, recipe: Recipe) -> Iterable[Variant]:
    yield Variant({"regularization": 0.0}, Measurement.of("no-layer-losses"))
    feed = case.feed(recipe)
    if not feed or not recipe.regularization:
        return
    data, each = _of_data_and_layers(case, recipe, feed[0])
    if len(each) < 2:
        return
    observed = case.effective[0][0] - data
    weights = np.linalg.lstsq(each @ each.T, each @ observed, rcond=None)[0]
    omitted = [i for i, weight in enumerate(weights) if abs(weight) < 0.1 and np.any(each[i])]
    if omitted and len(omitted) < len(each):
        seen = Measurement.of("layer-losses-left-out", numbers=[i + 1 for i in omitted], of=len(each))
        touched = [[k for k, part in enumerate(case.replay.unflatten(each[i])) if np.any(part)] for i in omitted]
        if all(len(variables) == 1 for variables in touched):
            names = [case.observation.names[k] for (k,) in touched]
            seen = Measurement.of("layer-loss-left-out", variables=names)
        yield Variant({"omitted": frozenset(omitted)}, seen, measured=True)


def _recorded_without_penalty(sides: Sides, located: Located) -> Iterator[Variant]:
    recorded = RecordedLoss.of(sides)
    again = other_calls(*(calls_of(each, sides.step) for each in (sides.right, sides.other)))
    if recorded is None or not recorded.penalty or again:  # which may be by the gradients of a penalty
        return
    yield Variant({"regularization": 0.0}, Measurement.of("script-no-penalty", penalty=recorded.penalty))
    own = recorded.penalties
    numbers = range(len(own))
    parts = [{i} for i in numbers]  # the first ones come from add_loss, the others from regularizers
    share = " / strategy.num_replicas_in_sync" if sides.other_trace.replicas > 1 else ""
    all_of_them = f"loss += tf.add_n(model.losses){share}  # all of them, in place of the line that adds some"
    remedy = all_of_them if sides.other_trace.trained_by == "loop" else ""
    parts += [set(part) for count in numbers[2:] for part in (numbers[:count], numbers[-count:])]
    for omitted in dict.fromkeys(map(frozenset, parts if len(own) > 1 else [])):
        lacking = {"losses": len(omitted), "of": len(own), "penalty": sum(own[i] for i in omitted)}
        yield Variant({"omitted": omitted}, Measurement.of("script-some-penalties", **lacking), remedy=remedy)


def _of_data_and_layers(case: Case, recipe: Recipe, span: Span) -> tuple[np.ndarray, np.ndarray]:
    """``[weights]`` and ``[losses, weights]``: the gradients in the first step of the data's and each layer's loss."""

    def gradient(**changes: Any) -> np.ndarray:
        return case.replay.gradients(case.steps[0], span, replace(recipe, **changes))[0]

    first = case.replay.parts(span)[0]
    losses = set(range(len(case.replay.replica_pass(case.steps[0], 0, first, recipe).penalties)))
    data = gradient(regularization=0.0)
    return data, np.array([gradient(omitted=frozenset(losses - {i})) - data for i in sorted(losses)])


def _regularization_not_divided(case: Case, recipe: Recipe) -> Iterable[Variant]:
    if case.replicas > 1:
        seen = Measurement.of("layer-losses-times-replicas", replicas=case.replicas)
        yield Variant({"regularization": float(case.replicas)}, seen)


def _recorded_penalty_each(sides: Sides, located: Located) -> Iterator[Variant]:
    recorded = RecordedLoss.of(sides)
    if recorded is not None and sides.replicas > 1:
        seen = Measurement.of("script-penalty-each", penalty=recorded.penalty)
        yield Variant({"regularization": float(sides.replicas)}, seen)


def _logits(case: Case, recipe: Recipe) -> Iterable[Variant]:
    if case.replay.recovers:
        seen = Measurement.of("probabilities-as-logits", reference=case.reference.name)
        yield Variant({"loss": UNRECOVERED}, seen, remedy=WITH_PROBABILITIES)
        return
    if other := case.replay.other_losses(OTHER_LOGITS):
        seen = Measurement.of("other-from-logits", from_logits=not other[1], expected=other[1])
        yield Variant({"loss": OTHER_LOGITS}, seen)
    squash = case.replay.squash()
    if squash is not None:
        name = squash.__name__.removesuffix("_v2")
        yield Variant({"loss": SQUASHED}, Measurement.of("applied-twice", function=name))


def _recorded_logits(sides: Sides, located: Located) -> Iterator[Variant]:
    recorded = RecordedLoss.of(sides)
    if recorded is None or recorded.targets is None:
        return
    kind, flag = recorded.targets.kind, recorded.targets.from_logits
    loss = f"tf.keras.losses.{''.join(map(str.capitalize, kind.split('_')))}"
    in_both = (
        f"loss_object = {loss}(from_logits=False)\n# in both; or leave out the activation of the model's last layer"
    )
    yield Variant({"loss": UNRECOVERED}, Measurement.of("script-probabilities"), remedy=in_both)
    by_right = not flag and not _are_probabilities(recorded.targets)
    if by_right and sides.foreseen:  # the other side's model ends otherwise, and its loss is right for that
        return
    remedy = f"loss_object = {loss}(from_logits={flag or by_right})\n# with the options of the other script's loss"
    if by_right and sides.right_trace.trained_by == "fit":
        remedy = f"model.compile(optimizer, loss={loss}(from_logits=True))  # as the model gives logits"
    seen = sides.named(Measurement.of("script-from-logits", from_logits=not flag))
    seen = seen.but(logits=True) if by_right else seen
    yield Variant({"loss": OTHER_LOGITS}, seen, remedy=remedy, by_right=by_right)


def _are_probabilities(targets: Targets) -> bool:
    """Whether predictions can be what a loss without ``from_logits`` takes them for."""
    predicted = targets.predicted
    sums = np.ones(1) if targets.kind == "binary_crossentropy" else predicted.sum(-1)
    return bool((predicted >= 0).all() and (predicted <= 1).all() and np.allclose(sums, 1, atol=0.01))


WITH_PROBABILITIES = (
    "loss_object = tf.keras.losses.SparseCategoricalCrossentropy()  # from_logits=False, in the experiment as well;\n"
    "# or keep from_logits=True, and let the model's last layer have no activation"
)


def _no_smoothing(case: Case, recipe: Recipe) -> Iterable[Variant]:
    if found := case.replay.other_losses(UNSMOOTHED):
        yield Variant({"loss": UNSMOOTHED}, Measurement.of("no-label-smoothing", expected=found[1]))


def _no_mask(case: Case, recipe: Recipe) -> Iterable[Variant]:
    if case.replay.masked:
        yield Variant({"loss": UNMASKED}, Measurement.of("mask-unused"))
    if case.replay.masking:
        names = [case.observation.layers[i][0] for i in case.replay.masking]
        remedy = (
            "predictions = model(x, training=True)  # the model passes the masks on\n"
            "# where layers are called one by one:\n"
            "x = layer(x, mask=mask)  # mask = embedding.compute_mask(tokens)"
        )
        yield Variant({"masks": False}, Measurement.of("mask-lost", layers=names), remedy=remedy)


def _weight_of_output(case: Case, recipe: Recipe) -> Iterable[Variant]:
    """Other weights of the outputs' losses: all 1, or one of them."""
    if case.replay.loss_weights is None:
        return
    names, weights = case.replay.loss_weights
    ones = tuple(1.0 for _ in weights)
    for i, (name, weight) in enumerate(zip(names, weights, strict=True)):
        changed = (*weights[:i], 1.0, *weights[i + 1 :])
        if weight not in (0, 1):
            seen = Measurement.of("output-weight", output=name, expected=weight, factor=1 / weight)
            yield Variant({"loss_weights": changed}, seen, remedy=OF_OUTPUTS)
    if sum(weight != 1 for weight in weights) > 1:
        seen = Measurement.of("output-weights", expected=dict(zip(names, weights, strict=True)))
        yield Variant({"loss_weights": ones}, seen, remedy=OF_OUTPUTS)


OF_OUTPUTS = "loss = tf.add_n([run.loss_weights[name] * of_output[name] for name in of_output])"


OF_MICRO_BATCH = (
    "share = tf.shape(y_part)[0] / tf.shape(y)[0]  # of this micro-batch in its batch\n"
    "summed = [total + tf.cast(share, total.dtype) * gradient for total, gradient in zip(summed, gradients)]"
)


def _accumulated(case: Case, recipe: Recipe) -> Iterable[Variant]:
    """Gradients of micro-batches that are added up, not averaged."""
    size, feed = case.expected[0].stop // case.replicas if case.expected else 0, case.feed(recipe)
    if not feed or recipe.micro or not size:
        return
    factor = multiple(case.effective[0], case.replay.gradients(case.steps[0], feed[0], recipe))
    count = round(factor or 0)
    if count >= 2 and abs((factor or 0) - count) < 0.1 and size % count == 0:  # batch normalization may blur it
        seen = Measurement.of("micro-batches-summed", examples=size // count, factor=count)
        yield Variant({"micro": size // count}, seen, measured=True, remedy=OF_MICRO_BATCH)


def _constant_micro_batches(case: Case, recipe: Recipe) -> Iterable[Variant]:
    """Sums over micro-batches that are divided by the same number even where a short batch has fewer."""
    size = case.expected[0].stop // case.replicas if case.expected else 0
    factor = _factor(case, recipe, recipe.share)
    if factor is None or recipe.micro or abs(factor - 1) > 1e-3:
        return
    for count in (2, 3, 4, 6, 8, 12):
        if size % count == 0 and size > count:
            seen = Measurement.of("micro-batches-by-constant", examples=size // count, divisor=count)
            changes = {"micro": size // count, "micro_factor": 1 / count}
            yield Variant(changes, seen, measured=True, remedy=OF_MICRO_BATCH)


def _broadcast(case: Case, recipe: Recipe) -> Iterable[Variant]:
    names, _ = case.replay.loss_weights or ((), ())
    for output in case.replay.broadcastable:
        seen = Measurement.of("labels-broadcast", **({"output": names[output]} if names else {}))
        yield Variant({"loss": BROADCAST, "output": output}, seen)


def _recorded_broadcast(sides: Sides, located: Located) -> Iterator[Variant]:
    own = targets_of(sides.other, sides.step)
    shapes = {} if own is None else {"labels": own.true.shape, "predictions": own.predicted.shape}
    yield Variant({"loss": BROADCAST}, Measurement.of("script-pairs", **shapes))
    yield from _broadcast_shapes(sides, located)


def _broadcast_shapes(sides: Sides, located: Located) -> Iterator[Variant]:
    """The shapes of what one side's loss is made from say it, whatever function and however many outputs it has."""
    right, other = (
        [event.info.get("pairs") for event in close_up.of(sides.step, "loss")]
        for close_up in (sides.right, sides.other)
    )
    for by_right, own, others in ((False, other, right), (True, right, other)):
        if any(own) and others and all(each is False for each in others):
            yield Variant({}, Measurement.of("script-shapes"), measured=True, by_right=by_right)


def _broadcast_next(sides: Sides, located: Located) -> Iterator[Variant]:
    """Of predictions that are all equal, as at first, only the gradients tell; in the next step the loss does."""
    yield from _broadcast_shapes(sides, located)
    following = sides.step + 1
    targets, loss = _own_call(sides, following), loss_of(sides.other, following)
    if targets is None or loss is None:
        return
    pairs, mean = value_of(replace(targets, paired=False)), value_of(targets)
    penalty = penalty_of(sides.other, following)
    if pairs is not None and mean is not None and same(pairs + penalty, loss) and not same(mean + penalty, loss):
        yield Variant({}, Measurement.of("script-pairs-next", next_loss=loss, next_right=mean + penalty))


OF_CLASSES = (
    "sample_weight = tf.gather(class_weights, y)  # one per class; times the data's own weights, if any\n"
    "per_example = loss_object.call(y, predictions) * sample_weight"
)


def _unweighted(case: Case, recipe: Recipe) -> Iterable[Variant]:
    if case.replay.weighted:
        yield Variant({"sample_weights": False}, Measurement.of("sample-weights-unused"))
    if case.replay.experiment.class_weight is not None:
        yield Variant({"class_weights": False}, Measurement.of("class-weights-unused"), remedy=OF_CLASSES)
        if case.replay.weighted:
            changes = {"sample_weights": False, "class_weights": False}
            yield Variant(changes, Measurement.of("no-weights-used"))


CAUSES = (
    Cause(
        id="loss-not-divided-by-replicas",
        stages=(LOSS,),
        of_whole_loss=True,
        symptom="With several replicas, training is unstable or diverges; with one it is right. Adam almost hides it.",
        explanation="Each replica takes the mean over its own examples, and apply_gradients sums the replicas' "
        "gradients: the sum of R means is R times the mean.",
        wrong="loss = tf.reduce_mean(per_example)  # over this replica's examples",
        remedy="loss = tf.reduce_mean(per_example) / strategy.num_replicas_in_sync",
        rewrites={
            rf"(tf\.reduce_mean\({ARGUMENT}\))": r"\2 / tf.distribute.get_strategy().num_replicas_in_sync",
        },
        recognised="The gradient passed to the optimizer is the right one times the number of replicas, in every step "
        "of the check; or this holds for the data's loss alone, and the regularization is right.",
        met='TensorFlow\'s tutorial "Custom training with tf.distribute.Strategy", "Define the loss '
        'function", https://www.tensorflow.org/tutorials/distribute/custom_training\n'
        'A user asks why the loss is divided by num_replicas_in_sync ("Scaled loss in Mimo"), '
        "https://github.com/google/edward2/issues/428",
        gradient=lambda case, recipe: _by_replicas(1, case, recipe, "gradients-times-replicas"),
        recorded={LOSS: _recorded_share("loss-not-divided-by-replicas")},
    ),
    Cause(
        id="loss-divided-twice",
        stages=(LOSS,),
        of_whole_loss=True,
        symptom="The more replicas there are, the more slowly the model learns.",
        explanation="The loop divides the loss by the number of replicas, and so does a function that it calls: "
        "Keras 3's Loss.__call__ inside strategy.run, or tf.nn.compute_average_loss.",
        wrong="loss = loss_object(y, predictions)  # Keras 3 divides by the replicas inside strategy.run\n"
        "loss = loss / strategy.num_replicas_in_sync",
        remedy="loss = tf.nn.compute_average_loss(loss_object.call(y, predictions))  # and no further division",
        recognised="Each step's gradient is the right one divided by the number of replicas; the regularization may or "
        "may not be divided as well.",
        met="\"distributed training with tensorflow on 'x' gpu makes loss 1/x\": a loss for fit that divides by hand, "
        "https://github.com/keras-team/keras/issues/16285",
        gradient=lambda case, recipe: _by_replicas(-1, case, recipe, "gradients-by-replicas"),
        recorded={LOSS: _recorded_share("loss-divided-twice")},
    ),
    Cause(
        id="loss-summed",
        stages=(LOSS,),
        of_whole_loss=True,
        symptom="With SGD, training diverges, and depends on the batch size; with Adam, it may go unnoticed.",
        explanation="The examples' losses are summed, not averaged, so each gradient is multiplied by the batch size.",
        wrong="loss = tf.reduce_sum(per_example)",
        remedy="loss = tf.reduce_mean(per_example) / strategy.num_replicas_in_sync  # not tf.reduce_sum",
        remedies={ALONE: "loss = tf.reduce_mean(per_example)  # not tf.reduce_sum"},
        rewrites={rf"tf\.reduce_sum\({ARGUMENT}\)": r"tf.nn.compute_average_loss(\2)"},
        recognised="The gradients match if every example has weight 1, or one over the number of replicas, in full and "
        "in short batches alike; a constant factor would not match both.",
        met='"Cannot optimize with tf.reduce_sum(), but with tf.reduce_mean()" (question and answer, in Chinese), '
        "https://qa.1r1g.com/sf/ask/3361946101",
        gradient=_summed,
        recorded={LOSS: _recorded_sum},
    ),
    Cause(
        id="loss-constant-denominator",
        stages=(LOSS,),
        of_whole_loss=True,
        symptom="fit and the loop are equal up to the last batch of the first epoch, and differ from then on.",
        explanation="The loss is divided by a constant GLOBAL_BATCH_SIZE, as the tutorials do. The last batch of an "
        "epoch is usually shorter; its examples then count too little.",
        wrong="loss = tf.nn.compute_average_loss(per_example, global_batch_size=GLOBAL_BATCH_SIZE)",
        remedy="loss = tf.nn.compute_average_loss(per_example)  # without global_batch_size; fit does the same",
        rewrites={
            rf"tf\.nn\.compute_average_loss\({ARGUMENT}, *global_batch_size *= *{ARGUMENT}\)": (
                r"tf.nn.compute_average_loss(\2)"
            ),
        },
        recognised="The gradients of full batches are right. Those of short batches match if each example has a "
        "weight of one over the size of a full batch, or over another constant, which is measured in the first step "
        "and must match all steps.",
        met='TensorFlow\'s tutorial "Custom training with tf.distribute.Strategy": 60,000 = 937 x 64 + 32, '
        "https://www.tensorflow.org/tutorials/distribute/custom_training\n"
        '"Incorrect loss calculation for the last batch in TFTrainer if dataloader_drop_last is False", '
        "https://github.com/huggingface/transformers/issues/6969",
        gradient=_constant,
        recorded={LOSS: _recorded_share("loss-constant-denominator")},
    ),
    Cause(
        id="loss-scaled",
        stages=(LOSS, GRADIENTS, UPDATE),
        of_whole_loss=True,
        symptom="The model learns faster or more slowly than with fit, by a constant factor; with Adam, there is "
        "hardly any difference.",
        explanation="The loss, and with it every gradient, is multiplied by a constant: a loss weight, gradient "
        "accumulation without averaging, or loss scaling that is not undone.",
        wrong="scaled_loss = factor * loss\n"
        "gradients = tape.gradient(scaled_loss, variables)  # applied without dividing by factor",
        remedy="gradients = tape.gradient(loss, variables)  # of the loss itself, without the factor\n"
        "# or, where the factor is needed:\ngradients = [gradient / factor for gradient in gradients]",
        recognised="A factor is measured in the first step's gradient. It must explain every other step, too, and no "
        "simpler cause may explain them. A factor equal to the number of replicas is a cause of its own.",
        met='"[BERT/TF] gradients scale up with the number of gradient accumulation", '
        "https://github.com/NVIDIA/DeepLearningExamples/issues/713",
        gradient=_scaled,
        recorded={LOSS: _recorded_factor, GRADIENTS: _recorded_gradients},
    ),
    Cause(
        id="loss-scale-missing",
        stages=(LOSS, GRADIENTS),
        symptom="With the policy mixed_float16, the loop learns next to nothing, or its weights soon become NaN.",
        explanation="Small gradients underflow to zero in float16. Therefore fit multiplies the loss by a large power "
        "of two, the loss scale, and its LossScaleOptimizer divides the gradients by it. Without one of the two, every "
        "update is thousands of times too small or too large. (Keras 2 had get_scaled_loss and "
        "get_unscaled_gradients; in Keras 3, scale_loss is all there is to call.)",
        wrong="gradients = tape.gradient(loss, variables)\noptimizer.apply_gradients(zip(gradients, variables))",
        remedy="scaled_loss = optimizer.scale_loss(loss)  # inside the tape; apply_gradients divides by the scale\n"
        "gradients = tape.gradient(scaled_loss, variables)",
        recognised="The model computes in float16, and the first step's gradient is a large power of two times the "
        "right one, or the same part of it. It must explain every other step, too.",
        met='"Mixed precision, guide: training the model with a custom training loop", '
        "https://www.tensorflow.org/guide/mixed_precision",
        gradient=_scale_missing,
        recorded={LOSS: _recorded_scale, GRADIENTS: _recorded_scale},
    ),
    Cause(
        id="uneven-replica-batches",
        stages=(LOSS, GRADIENTS),
        of_whole_loss=True,
        symptom="With several replicas, fit and the loop are equal up to the first batch that does not split evenly.",
        explanation="fit averages the replicas' means, so an example counts more on a replica with fewer examples. "
        "The loop divides by the number of examples in the global batch, which is exact.",
        wrong="count = replica_context.all_reduce(tf.distribute.ReduceOp.SUM, tf.cast(tf.size(per_example), "
        "tf.float32))\n"
        "loss = tf.reduce_sum(per_example) / count  # exact, but not what fit does",
        remedy="loss = tf.reduce_mean(per_example) / strategy.num_replicas_in_sync  # as fit does\n"
        "# to make both exact instead: drop the uneven batch, or override fit's compute_loss",
        recognised="The gradients match if every example of a global batch has the same weight. They differ from fit's "
        "only where a batch does not split evenly, and the check includes such a batch.",
        met="TensorFlow's tutorial advises against tf.reduce_mean, since replicas' batch sizes may vary, "
        "https://www.tensorflow.org/tutorials/distribute/custom_training\n"
        '"Correctly calculate distributed loss average" (PyTorch), '
        "https://github.com/facebookresearch/fairchem/pull/269",
        gradient=_uneven,
    ),
    Cause(
        id="regularization-missing",
        stages=(LOSS,),
        of_whole_loss=True,
        symptom="Weights grow larger than with fit, and the model overfits sooner.",
        explanation="Regularizers add their losses to model.losses. fit adds them to the loss; a loop must do so too.",
        wrong="loss = mean_over_examples / strategy.num_replicas_in_sync  # and model.losses is never used",
        remedy="loss += tf.add_n(model.losses) / strategy.num_replicas_in_sync",
        remedies={
            ON_BATCHES: "layer = layers.Dense(units, kernel_regularizer=regularizer)  # as in fit's model",
            ALONE: "loss += tf.add_n(model.losses)",
        },
        recognised="The gradients match if the layers' losses, or some of them, are left out and the data's loss is "
        "complete.",
        met='"Unused kernel regularizers during training", '
        "https://github.com/hunglc007/tensorflow-yolov4-tflite/issues/369",
        gradient=_regularization_missing,
        recorded={LOSS: _recorded_without_penalty},
    ),
    Cause(
        id="regularization-not-divided-by-replicas",
        stages=(LOSS,),
        of_whole_loss=True,
        symptom="With several replicas, weights shrink more than with fit.",
        explanation="model.losses does not depend on the examples: every replica has the full value, and the gradients "
        "of all replicas are summed.",
        wrong="loss += tf.add_n(model.losses)  # on every replica",
        remedy="loss += tf.add_n(model.losses) / strategy.num_replicas_in_sync",
        recognised="The gradients match if the layers' losses are multiplied by the number of replicas and the data's "
        "loss is right.",
        met='"Fix loss scaling with tf.distribute.MirroredStrategy and keras.regularizers" (Keras had it '
        "itself), https://github.com/keras-team/keras/pull/20609\n"
        '"Manually scale the loss in Resnet DS model", https://github.com/tensorflow/models/pull/6195',
        gradient=_regularization_not_divided,
        recorded={LOSS: _recorded_penalty_each},
    ),
    Cause(
        id="logits-mismatch",
        stages=(LOSS,),
        symptom="The model learns slowly, or its loss stays at the level of guessing.",
        explanation="The loss treats logits as probabilities, or probabilities as logits (which applies softmax "
        "twice).",
        wrong="loss_object = tf.keras.losses.SparseCategoricalCrossentropy()  # the model ends without a softmax",
        remedy="model, optimizer, loss_object, metrics = run.build()  # use this loss_object",
        remedies={SCRIPT: "loss_object = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)  # as in fit"},
        recognised="The gradients match those of the experiment's loss with the opposite from_logits, or of its loss "
        "of softmax(predictions).",
        met='"Is there a problem in the loss function": logits, and no from_logits=True, '
        "https://github.com/xiph/LPCNet/issues/97\n"
        '"Double softmax in cross entropy with logits", https://github.com/nfmcclure/tensorflow_cookbook/issues/86',
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
        recognised="If labels have one dimension less than predictions: the gradients match those of the mean over all "
        "pairs of a label and a prediction.",
        met='"MSE loss computes different values depending on shape", '
        "https://github.com/tensorflow/tensorflow/issues/37770\n"
        '"Why the loss function (mse) calculated by keras not the same as mine", '
        "https://github.com/keras-team/keras/issues/14627",
        gradient=_broadcast,
        recorded={LOSS: _recorded_broadcast, GRADIENTS: _broadcast_next},
    ),
    Cause(
        id="sample-weights-dropped",
        stages=(LOSS,),
        symptom="The training loss differs from fit's from the first step on.",
        explanation="The data set yields (x, y, sample_weight), and the loop ignores sample_weight.",
        wrong="x, y, *_ = batch\nper_example = loss_object.call(y, predictions)",
        remedy="x, y, sample_weight = batch\nper_example = loss_object.call(y, predictions) * sample_weight",
        remedies={FIT: "model.fit(..., sample_weight=sample_weight)  # or class_weight=..., as in the other script"},
        recognised="If the experiment has sample or class weights: the gradients match if every example counts the "
        "same.",
        met='"Too many values to unpack when including sample_weights", '
        "https://github.com/Jannoshh/simple-sam/issues/6",
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
        recognised="Every step's gradient matches that of the experiment's loss with label_smoothing=0.",
        remedies={
            FIT: "model.compile(optimizer, loss_object)  # with the other script's label_smoothing",
            SCRIPT: "per_example = loss_object.call(y, predictions)  # with fit's label_smoothing",
        },
        gradient=_no_smoothing,
        recorded={LOSS: lambda sides, _: [Variant({"loss": UNSMOOTHED}, Measurement.of("script-unsmoothed"))]},
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
        remedies={SCRIPT: "loss = loss_object(y, predictions)  # an object of keras.losses, which uses the mask"},
        recognised="The model's outputs have a mask, and every step's gradient matches that of the loss without it.",
        gradient=_no_mask,
        recorded={LOSS: lambda sides, _: [Variant({"loss": UNMASKED}, Measurement.of("script-unmasked"))]},
    ),
)
