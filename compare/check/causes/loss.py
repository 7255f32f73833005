"""Causes in how the examples' losses are combined into the loss that is differentiated."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from compare.check.causes.base import ARGUMENT, Cause, Measurement, Variant
from compare.check.causes.loss_recorded import (
    recorded_factor,
    recorded_gradients,
    recorded_penalty_each,
    recorded_penalty_scaled,
    recorded_scale,
    recorded_share,
    recorded_sum,
    recorded_without_penalty,
)
from compare.check.recipe import (
    OTHER_SHARES,
    Recipe,
    Share,
    Span,
    by_replicas,
    divided_by,
    loss_scale,
    multiple,
    scaled,
)
from compare.check.step_values import GRADIENTS, LOSS, UPDATE
from compare.check.used import ALONE
from compare.watch.trace import ON_BATCHES

if TYPE_CHECKING:
    from compare.check.case import Case


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
    if alone is not None and case.replay.scales_losses and loss_scale(alone):
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
    if alone is None or not (factor := loss_scale(alone)):
        return
    seen = Measurement.of("loss-not-scaled", loss_scale=1 / factor)
    if factor > 1:
        seen = Measurement.of("gradients-not-unscaled", loss_scale=factor)
    for regularization in dict.fromkeys([factor * recipe.regularization, recipe.regularization]):
        changes = {"share": scaled(recipe.share, factor), "regularization": regularization}
        yield Variant(changes, seen, measured=True)


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


def _of_data_and_layers(case: Case, recipe: Recipe, span: Span) -> tuple[np.ndarray, np.ndarray]:
    """``[weights]`` and ``[losses, weights]``: the gradients in the first step of the data's and each layer's loss."""

    def gradient(**changes: Any) -> np.ndarray:
        return case.replay.gradients(case.steps[0], span, replace(recipe, **changes))[0]

    first = case.replay.parts(span)[0]
    losses = set(range(len(case.replay.replica_pass(case.steps[0], 0, first, recipe).penalties)))
    data = gradient(regularization=0.0)
    return data, np.array([gradient(omitted=frozenset(losses - {i})) - data for i in sorted(losses)])


def _regularization_scaled(case: Case, recipe: Recipe) -> Iterable[Variant]:
    """The layers' losses times a number that the first step tells."""
    if not recipe.regularization or not (feed := case.feed(recipe)):
        return
    data, each = _of_data_and_layers(case, recipe, feed[0])
    factor = multiple([case.effective[0][0] - data], [each.sum(axis=0)]) if len(each) else None
    if factor is not None and min(abs(factor), abs(factor - 1)) > 1e-3:
        yield Variant({"regularization": factor}, Measurement.of("layer-losses-times", factor=factor), measured=True)


def _regularization_not_divided(case: Case, recipe: Recipe) -> Iterable[Variant]:
    if case.replicas > 1:
        seen = Measurement.of("layer-losses-times-replicas", replicas=case.replicas)
        yield Variant({"regularization": float(case.replicas)}, seen)


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


OF_SUM = r"reduction=(?:[\"']sum[\"']|[\w.]*Reduction\.SUM)"
"""The option of a loss that adds the examples' losses up."""

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
        gradient=lambda case, recipe: _by_replicas(1, case, recipe, "gradients-times-replicas"),
        recorded={LOSS: recorded_share("loss-not-divided-by-replicas")},
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
        gradient=lambda case, recipe: _by_replicas(-1, case, recipe, "gradients-by-replicas"),
        recorded={LOSS: recorded_share("loss-divided-twice")},
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
        made_in=OF_SUM,
        by_hand={
            rf"(.+), *{OF_SUM}(.*)": r"\1\2  # without reduction, which is a mean by default",
            rf"(.+\(){OF_SUM},? *(.*)": r"\1\2  # without reduction, which is a mean by default",
        },
        gradient=_summed,
        recorded={LOSS: recorded_sum},
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
            rf"tf\.reduce_sum\({ARGUMENT}\) */ *[A-Za-z_]\w*": r"tf.nn.compute_average_loss(\2)",
        },
        by_hand={  # the loss function has added the examples' losses up
            r"(\w+ =|return) ((?:self\.)?\w+\((\w+), *\w+\)) */ *[\w.]+(?: *#.*)?": (
                r"\1 \2 / tf.cast(tf.shape(\3)[0], tf.float32)  # with several replicas, also by their number"
            ),
        },
        gradient=_constant,
        recorded={LOSS: recorded_share("loss-constant-denominator")},
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
        gradient=_scaled,
        recorded={LOSS: recorded_factor, GRADIENTS: recorded_gradients},
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
        gradient=_scale_missing,
        recorded={LOSS: recorded_scale, GRADIENTS: recorded_scale},
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
        gradient=_uneven,
    ),
    Cause(
        id="regularization-missing",
        stages=(LOSS,),
        of_whole_loss=True,
        of_penalty=True,
        symptom="Weights grow larger than with fit, and the model overfits sooner.",
        explanation="Regularizers add their losses to model.losses. fit adds them to the loss; a loop must do so too.",
        wrong="loss = mean_over_examples / strategy.num_replicas_in_sync  # and model.losses is never used",
        remedy="loss += tf.add_n(model.losses) / strategy.num_replicas_in_sync",
        remedies={
            ON_BATCHES: "layer = layers.Dense(units, kernel_regularizer=regularizer)  # as in fit's model",
            ALONE: "loss += tf.add_n(model.losses)",
        },
        made_in=r"\bl2_loss\(",
        gradient=_regularization_missing,
        recorded={LOSS: recorded_without_penalty},
    ),
    Cause(
        id="regularization-scaled",
        stages=(LOSS,),
        of_whole_loss=True,
        of_penalty=True,
        symptom="Weights shrink more than with fit, or less, as with another strength of the regularizers.",
        explanation="model.losses counts once in fit's loss. A loop adds it again to a loss that has it already, such "
        "as compute_loss gives, or multiplies it.",
        wrong="loss = model.compute_loss(x, y, predictions)\nloss += tf.add_n(model.losses)  # it has them already",
        remedy="loss += tf.add_n(model.losses) / strategy.num_replicas_in_sync  # once, and with no other factor",
        remedies={ALONE: "loss = loss_of_examples + tf.add_n(model.losses)  # once, and with no other factor"},
        made_in=r"(\.|model_)losses\b",
        gradient=_regularization_scaled,
        recorded={LOSS: recorded_penalty_scaled},
    ),
    Cause(
        id="regularization-not-divided-by-replicas",
        stages=(LOSS,),
        of_whole_loss=True,
        of_penalty=True,
        symptom="With several replicas, weights shrink more than with fit.",
        explanation="model.losses does not depend on the examples: every replica has the full value, and the gradients "
        "of all replicas are summed.",
        wrong="loss += tf.add_n(model.losses)  # on every replica",
        remedy="loss += tf.add_n(model.losses) / strategy.num_replicas_in_sync  # not the whole sum on every replica",
        made_in=r"(\.|model_)losses\b",
        gradient=_regularization_not_divided,
        recorded={LOSS: recorded_penalty_each},
    ),
)
