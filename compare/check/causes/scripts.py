"""Causes that only whole scripts show: what they do with their own data, and what ``fit`` does besides its steps."""

from __future__ import annotations

from compare.check.causes.base import Cause

CAUSES = (
    Cause(
        id="callbacks-missing",
        symptom="Both train alike for some epochs, then the learning rates differ, or one side stops.",
        explanation="fit runs callbacks that change training: they set the learning rate, stop early or average "
        "weights. A loop has to do the same by itself.",
        wrong="for epoch in range(epochs):\n    train_one_epoch()",
        remedy="callbacks = keras.callbacks.CallbackList([keras.callbacks.ReduceLROnPlateau()], model=model)\n"
        "callbacks.on_train_begin()\n"
        "for epoch in range(epochs):\n"
        "    callbacks.on_epoch_begin(epoch)\n"
        "    train_one_epoch()\n"
        "    callbacks.on_epoch_end(epoch, logs)\n"
        "    if model.stop_training:\n"
        "        break\n"
        "callbacks.on_train_end()",
        recognised="Until then all weights agree, fit has such callbacks, and from this step on its learning rate has "
        "changed while the loop's has not, or fit has stopped before its last epoch.",
    ),
    Cause(
        id="labels-shuffled-apart",
        symptom="The loss falls to that of guessing and no further; accuracy stays at chance.",
        explanation="Inputs and labels are shuffled one after the other, with different random numbers, so that labels "
        "no longer belong to their inputs.",
        wrong="np.random.shuffle(x)\nnp.random.shuffle(y)",
        remedy="order = np.random.permutation(len(x))\nx, y = x[order], y[order]",
        recognised="The examples of a step are recognised by their values: an example has another label than fit's.",
    ),
)
