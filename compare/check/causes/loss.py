"""Causes in how the examples' losses become the one number that is differentiated."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from compare.check.causes.base import Cause, Variant
from compare.check.recipe import BROADCAST, OTHER_LOGITS, Parts, Recipe, Share

if TYPE_CHECKING:
    from compare.check.case import Case


def scaled(share: Share, factor: float) -> Share:
    """The same weights of examples, times a factor."""
    return lambda parts: [factor * each for each in share(parts)]


def divided_by(denominator: Callable[[Parts], float]) -> Share:
    """Every example counts 1/denominator, whatever replica it is on."""
    return lambda parts: [1 / denominator(parts)] * parts.replicas


def _times(factor: float, case: Case, base: Recipe, text: str) -> Iterable[Variant]:
    """The data's loss alone is off by a factor, or all of the loss is."""
    if case.replicas == 1 and factor == 1:
        return
    share = scaled(base.share, factor)
    yield Variant({"share": share}, text)
    yield Variant({"share": share, "regularization": factor}, f"{text}, regularization included")


def _not_divided(case: Case, base: Recipe) -> Iterable[Variant]:
    return _times(
        float(case.replicas),
        case,
        base,
        f"every gradient is {case.replicas} times what it should be, on as many replicas",
    )


def _divided_twice(case: Case, base: Recipe) -> Iterable[Variant]:
    text = f"every gradient is 1/{case.replicas} of what it should be, on {case.replicas} replicas"
    return _times(1 / case.replicas, case, base, text)


def _summed(case: Case, base: Recipe) -> Iterable[Variant]:
    yield Variant({"share": divided_by(lambda parts: 1.0)}, "every example weighs 1, however many there are in a batch")
    if case.replicas > 1:
        text = f"every example weighs 1/{case.replicas}, however many there are in a batch"
        yield Variant({"share": divided_by(lambda parts: float(parts.replicas))}, text)


def _constant(case: Case, base: Recipe) -> Iterable[Variant]:
    own = case.replay.own
    text = "an example of a short batch counts as if the batch were full"
    if own is not None:
        text = (
            f"each of the {own.last} examples of an epoch's last batch counts 1/{own.global_batch_size}, as if the "
            f"batch were full ({own})"
        )
    yield Variant({"share": divided_by(lambda parts: float(parts.global_batch_size))}, text)
    weight = _factor(case, base, divided_by(lambda parts: 1.0))
    if weight is not None and abs(weight - 1) > 1e-3 and weight > 0:
        text = f"every example weighs 1/{1 / weight:.6g}, however many there are in a batch"
        yield Variant({"share": divided_by(lambda parts: 1 / weight)}, text, measured=True)


def _scaled(case: Case, base: Recipe) -> Iterable[Variant]:
    alone = _factor(case, base, base.share)
    if alone is not None and case.replay.scales_losses and _loss_scale(alone):
        return  # not a factor in the loss, but loss scaling that is missing on the one way or on the other
    if alone is not None:
        yield Variant({"share": scaled(base.share, alone)}, f"the factor is {alone:.6g}", measured=True)
    feed = case.feed(base)
    if base.regularization and feed:
        predicted = case.replay.gradients(case.steps[0], feed[0], base)
        whole = _projection(case.effective[0], predicted)
        if whole is not None:
            changes = {"share": scaled(base.share, whole), "regularization": whole * base.regularization}
            yield Variant(changes, f"the factor is {whole:.6g}, regularization included", measured=True)


def _loss_scale(factor: float) -> bool:
    """Whether a factor is about a power of two, and so large or small that it scales losses for float16."""
    power = np.log2(abs(factor))
    return bool(abs(power) >= 6 and abs(power - round(power)) < 0.01)


def _factor(case: Case, base: Recipe, share: Share) -> float | None:
    """How often the loss of the data, weighed by ``share``, is in the first step's gradient."""
    feed = case.feed(base)
    if not feed or base.clip is not None:
        return None
    step, place = case.steps[0], feed[0]
    regularization = case.replay.gradients(step, place, replace(base, share=divided_by(lambda parts: np.inf)))
    data = case.replay.gradients(step, place, replace(base, share=share, regularization=0.0))
    rest = [seen - known for seen, known in zip(case.effective[0], regularization, strict=True)]
    return _projection(rest, data)


def _projection(seen: list[np.ndarray], predicted: list[np.ndarray]) -> float | None:
    a, b = np.concatenate(seen), np.concatenate(predicted)
    factor = float(a @ b / (b @ b)) if np.any(b) else np.nan
    return factor if np.isfinite(factor) and factor != 0 else None


def _uneven(case: Case, base: Recipe) -> Iterable[Variant]:
    if case.replicas == 1:
        return
    share = divided_by(lambda parts: float(parts.total))
    if case.seen.distributed:
        text = "every example of a batch weighs the same, also where the replicas' parts are not equally large"
        yield Variant({"share": share}, text)
    else:
        text = (
            "strategy.run is never called: one replica computes the whole batch, where fit averages the replicas' means"
        )
        remedy = (
            "dataset = strategy.experimental_distribute_dataset(run.train_dataset(epoch))\n"
            "per_replica_loss = strategy.run(train_step, args=(batch,))  # or compare on one replica: --replicas 1\n"
            "loss = loss / strategy.num_replicas_in_sync  # in train_step"
        )
        yield Variant({"share": share}, text, remedy=remedy)


def _regularization_missing(case: Case, base: Recipe) -> Iterable[Variant]:
    yield Variant({"regularization": 0.0}, "the gradient of the layers' own losses is not in it")


def _regularization_not_divided(case: Case, base: Recipe) -> Iterable[Variant]:
    if case.replicas > 1:
        text = f"the layers' own losses weigh {case.replicas} times too much, on as many replicas"
        yield Variant({"regularization": float(case.replicas)}, text)


def _logits(case: Case, base: Recipe) -> Iterable[Variant]:
    other = case.replay.other_logits()
    if other is not None:
        yield Variant({"loss": OTHER_LOGITS}, f"the loss is taken with from_logits={other[1]}, the experiment's is not")


def _broadcast(case: Case, base: Recipe) -> Iterable[Variant]:
    if case.replay.broadcastable:
        text = "labels [n] minus predictions [n, 1] gives [n, n]: every label is held against every prediction"
        yield Variant({"loss": BROADCAST}, text)


def _unweighted(case: Case, base: Recipe) -> Iterable[Variant]:
    if case.replay.weighted:
        yield Variant({"sample_weights": False}, "every example counts the same, whatever its sample weight")
    if case.replay.class_weighted:
        text = "every example counts the same, whatever its class: the experiment's class weights are not used"
        remedy = (
            "sample_weight = tf.gather(class_weights, y)  # a list, by class; times the data's own, if it has any\n"
            "per_example = loss_object.call(y, predictions) * sample_weight"
        )
        yield Variant({"class_weights": False}, text, remedy=remedy)
        if case.replay.weighted:
            yield Variant({"sample_weights": False, "class_weights": False}, f"{text}, nor are sample weights")


CAUSES = (
    Cause(
        id="loss-not-divided-by-replicas",
        symptom="With several replicas training is jumpy or diverges; with one it is right. Adam hides it almost.",
        explanation="Each replica takes the mean over its own examples, and apply_gradients sums the replicas' "
        "gradients: the sum of R means is R times the mean.",
        wrong="loss = tf.reduce_mean(per_example)  # of this replica's examples",
        remedy="loss = tf.reduce_mean(per_example) / strategy.num_replicas_in_sync",
        recognised="Each step's gradient, as the optimizer is handed it, is the right one times the number of "
        "replicas, in every step of the check; or that holds for the data's loss alone, the regularization being "
        "right.",
        met='TensorFlow\'s tutorial "Custom training with tf.distribute.Strategy", "Define the loss '
        'function", https://www.tensorflow.org/tutorials/distribute/custom_training\n'
        'A user asks why the loss is divided by num_replicas_in_sync ("Scaled loss in Mimo"), '
        "https://github.com/google/edward2/issues/428",
        gradient=_not_divided,
    ),
    Cause(
        id="loss-divided-twice",
        symptom="Training is slower the more replicas there are.",
        explanation="The loss is divided by the number of replicas by hand, and again by a helper that does so too "
        "(Keras 3's Loss.__call__ inside strategy.run, or tf.nn.compute_average_loss).",
        wrong="loss = loss_object(y, predictions)  # Keras 3 divides by the replicas inside strategy.run\n"
        "loss = loss / strategy.num_replicas_in_sync",
        remedy="loss = tf.nn.compute_average_loss(loss_object.call(y, predictions))  # and no further division",
        recognised="Each step's gradient is the right one divided by the number of replicas, with or without the "
        "regularization's part.",
        met="\"distributed training with tensorflow on 'x' gpu makes loss 1/x\": a loss for fit that divides by hand, "
        "https://github.com/keras-team/keras/issues/16285",
        gradient=_divided_twice,
    ),
    Cause(
        id="loss-summed",
        symptom="Training diverges with SGD, and depends on the batch size; under Adam it may pass unnoticed.",
        explanation="The examples' losses are summed, not averaged, so that each gradient is larger by the batch size.",
        wrong="loss = tf.reduce_sum(per_example)",
        remedy="loss = tf.reduce_mean(per_example) / strategy.num_replicas_in_sync  # not tf.reduce_sum",
        recognised="The gradients fit if every example weighs 1, or one over the number of replicas, in full "
        "batches and in short ones alike; a mere factor would not fit both.",
        met='"Cannot optimize with tf.reduce_sum(), but with tf.reduce_mean()" (question and answer, in Chinese), '
        "https://qa.1r1g.com/sf/ask/3361946101",
        gradient=_summed,
    ),
    Cause(
        id="loss-constant-denominator",
        symptom="All is equal until the last batch of the first epoch, and then it is not.",
        explanation="The loss is divided by a constant GLOBAL_BATCH_SIZE, as the tutorials do. The last batch of an "
        "epoch is usually shorter; its examples then count too little.",
        wrong="loss = tf.nn.compute_average_loss(per_example, global_batch_size=GLOBAL_BATCH_SIZE)",
        remedy="loss = tf.nn.compute_average_loss(per_example)  # without global_batch_size; fit does the same",
        recognised="The gradients of full batches are right. Those of the short ones fit if each example weighs "
        "one over the size of a full batch, or over another constant that is read off the first step and has to "
        "fit all.",
        met='TensorFlow\'s tutorial "Custom training with tf.distribute.Strategy": 60,000 = 937 x 64 + 32, '
        "https://www.tensorflow.org/tutorials/distribute/custom_training\n"
        '"Incorrect loss calculation for the last batch in TFTrainer if dataloader_drop_last is False", '
        "https://github.com/huggingface/transformers/issues/6969",
        gradient=_constant,
    ),
    Cause(
        id="loss-scaled",
        symptom="Training is faster or slower than fit's by a constant factor; under Adam hardly at all.",
        explanation="The loss, and with it every gradient, has a constant factor in front: a loss weight, gradient "
        "accumulation or loss scaling that is not undone.",
        wrong="scaled_loss = factor * loss\n"
        "gradients = tape.gradient(scaled_loss, variables)  # and they are applied as they are",
        remedy="gradients = [gradient / factor for gradient in gradients]  # or do without the factor",
        recognised="A factor is read off the first step's gradient; it has to explain every other step too, and no "
        "simpler cause may. A factor that is the number of replicas has a name of its own.",
        met='"[BERT/TF] gradients scale up with the number of gradient accumulation", '
        "https://github.com/NVIDIA/DeepLearningExamples/issues/713",
        gradient=_scaled,
    ),
    Cause(
        id="uneven-replica-batches",
        symptom="With several replicas, all is equal until a batch that does not split evenly over them.",
        explanation="fit averages the replicas' own means, so that an example on a replica with fewer counts more. "
        "The other side divides by the true number of examples in the global batch, which is exact.",
        wrong="count = replica_context.all_reduce(tf.distribute.ReduceOp.SUM, tf.cast(tf.size(per_example), "
        "tf.float32))\n"
        "loss = tf.reduce_sum(per_example) / count  # exact, and not what fit does",
        remedy="loss = tf.reduce_mean(per_example) / strategy.num_replicas_in_sync  # as fit does\n"
        "# to be exact on both sides instead: drop the uneven batch, or override fit's compute_loss",
        recognised="The gradients fit if every example of a global batch weighs the same; they differ from fit's "
        "only where a batch does not split evenly, and one of the check's batches is made so.",
        met="TensorFlow's tutorial advises against tf.reduce_mean, since replicas' batch sizes may vary, "
        "https://www.tensorflow.org/tutorials/distribute/custom_training\n"
        '"Correctly calculate distributed loss average" (PyTorch), '
        "https://github.com/facebookresearch/fairchem/pull/269",
        gradient=_uneven,
    ),
    Cause(
        id="regularization-missing",
        symptom="Weights grow larger than under fit, and it overfits sooner.",
        explanation="Regularizers add their losses to model.losses. fit adds them to the loss; a loop must do so too.",
        wrong="loss = mean_over_examples / strategy.num_replicas_in_sync  # and model.losses is never read",
        remedy="loss += tf.add_n(model.losses) / strategy.num_replicas_in_sync",
        recognised="The gradients fit if the layers' own losses are left out, and all of the data's loss is in.",
        met='"Unused kernel regularizers during training", '
        "https://github.com/hunglc007/tensorflow-yolov4-tflite/issues/369",
        gradient=_regularization_missing,
    ),
    Cause(
        id="regularization-not-divided-by-replicas",
        symptom="With several replicas weights shrink more than under fit.",
        explanation="model.losses does not depend on the examples: every replica has all of it, and the gradients of "
        "all replicas are summed.",
        wrong="loss += tf.add_n(model.losses)  # on every replica",
        remedy="loss += tf.add_n(model.losses) / strategy.num_replicas_in_sync",
        recognised="The gradients fit if the layers' own losses weigh as many times too much as there are "
        "replicas, the data's loss being right.",
        met='"Fix loss scaling with tf.distribute.MirroredStrategy and keras.regularizers" (Keras had it '
        "itself), https://github.com/keras-team/keras/pull/20609\n"
        '"Manually scale the loss in Resnet DS model", https://github.com/tensorflow/models/pull/6195',
        gradient=_regularization_not_divided,
    ),
    Cause(
        id="logits-mismatch",
        symptom="Training is slow, or stops at a loss that looks like chance.",
        explanation="The loss takes logits for probabilities, or probabilities for logits (softmax twice).",
        wrong="loss_object = tf.keras.losses.SparseCategoricalCrossentropy()  # the model ends without a softmax",
        remedy="model, optimizer, loss_object, metrics = run.build()  # and no loss of one's own",
        recognised="The gradients fit the experiment's loss with from_logits the other way round.",
        met='"Is there a problem in the loss function": logits, and no from_logits=True, '
        "https://github.com/xiph/LPCNet/issues/97\n"
        '"Double softmax in cross entropy with logits", https://github.com/nfmcclure/tensorflow_cookbook/issues/86',
        gradient=_logits,
    ),
    Cause(
        id="label-shape-broadcast",
        symptom="A regression learns the mean of the labels and nothing else; the loss stops at their variance.",
        explanation="Labels of shape [n] minus predictions of shape [n, 1] broadcast to [n, n] without an error. "
        "Keras's own losses squeeze one of them; tf.square(y - predictions) does not.",
        wrong="per_example = tf.square(y - predictions)  # [n] minus [n, 1] is [n, n]",
        remedy="per_example = loss_object.call(tf.reshape(y, tf.shape(predictions)), predictions)",
        recognised="Tried where labels have one dimension less than predictions: the gradients fit the mean over "
        "all pairs of a label and a prediction.",
        met='"MSE loss computes different values depending on shape", '
        "https://github.com/tensorflow/tensorflow/issues/37770\n"
        '"Why the loss function (mse) calculated by keras not the same as mine", '
        "https://github.com/keras-team/keras/issues/14627",
        gradient=_broadcast,
    ),
    Cause(
        id="sample-weights-dropped",
        symptom="The training loss is another than fit's from the first step on.",
        explanation="The data set gives (x, y, sample_weight), and the loop makes no use of the third.",
        wrong="x, y, *_ = batch\nper_example = loss_object.call(y, predictions)",
        remedy="x, y, sample_weight = batch\nper_example = loss_object.call(y, predictions) * sample_weight",
        recognised="Tried where the data has sample or class weights: the gradients fit if every example counts "
        "the same.",
        met='"Too many values to unpack when including sample_weights", '
        "https://github.com/Jannoshh/simple-sam/issues/6",
        gradient=_unweighted,
    ),
)
