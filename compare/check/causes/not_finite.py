"""The cause that leads all others: values that are NaN or infinite on one side only; no recipe explains it."""

from __future__ import annotations

from compare.check.causes.base import REPORTING, Cause
from compare.check.report import NOT_FINITE
from compare.check.step_values import GRADIENTS, INPUTS, PREDICTIONS, STATE, UPDATE

WHICH = (
    "tf.debugging.enable_check_numerics()  # before training, in a run of its own: stops at the first such operation"
)

REMEDIES = {
    INPUTS: f"{WHICH}\n# look at the examples, labels and sample weights of that batch: np.isfinite(batch).all()",
    PREDICTIONS: f"{WHICH}\n"
    "# that layer takes a logarithm, root or quotient of zero, or its weights or float16 numbers are too large",
    GRADIENTS: f"{WHICH}\n"
    "# at zero the gradients of tf.sqrt and tf.norm are not finite, in a branch that tf.where does not take either;\n"
    "# write tf.sqrt(tf.maximum(x, 1e-12)); with float16, a LossScaleOptimizer leaves out a step that overflows",
    UPDATE: f"{WHICH}\n# the learning rate, and what the optimizer divides by: use the experiment's optimizer as it is",
    STATE: f"{WHICH}\n# something else than the optimizer assigns these weights",
    REPORTING: "value = tf.math.divide_no_nan(total, count)  # 0 for an empty batch, or a class without examples",
}
"""What to write or look for, by the stage in which the first value appears, or where only a reported number does."""

CAUSES = [
    Cause(
        id=NOT_FINITE,
        symptom="A weight, or a reported number, is NaN or infinite with one trainer and not with the other.",
        explanation=(
            "One operation gave NaN or infinity: the logarithm or the root of zero, a division by a count of zero, an "
            "overflow, a learning rate that is too high. From then on every weight that its gradient reaches is lost, "
            "so it leads all other causes. Rounding does not explain it, so no perturbed runs are trained."
        ),
        wrong="per_example = -tf.reduce_sum(tf.one_hot(y, 10) * tf.math.log(predictions), axis=-1)  # of logits",
        remedy=(
            f"{WHICH}\nper_example = loss_object.call(y, predictions)  # Keras's losses take no logarithm of zero, "
            "and know what logits are"
        ),
    )
]
