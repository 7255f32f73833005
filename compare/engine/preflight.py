"""Preflight checks: reports, before any training, runs that cannot work and results that are easily misread.

The module maps plain facts to findings and does not import TensorFlow. The facts were measured with
TensorFlow 2.21, Keras 3.15 and tf-keras 2.21; ``scripts/matrix.py`` measures them again.

Two similar traps need no finding. ``Run.build`` builds the optimizer and its slots under the strategy's scope
(created lazily inside a replica, they crash or leave the replicas out of sync). ``strategies.make`` refuses more
replicas than there are devices, because without a strategy there are no facts to check.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from compare.strategy_specs import CALL_FIT, SPECS

WARNING = "warning"
CANNOT_RUN = "cannot-run"
REFUSED = "refused"

Text = tuple[str, str, str]
"""The id of a problem, the message and the remedy."""


@dataclass(frozen=True)
class Facts:
    """The facts about a run that the preflight checks use.

    Attributes:
        replicas: number of replicas that train in sync, over all processes.
        workers: number of processes that train (1 outside a cluster).
        convolution: whether a layer is a convolution; convolution kernels fail on an empty batch.
        without_onednn: whether TensorFlow leaves oneDNN off on this processor, and nobody asked it to.
    """

    strategy: str
    keras: int
    trainers: Sequence[str]
    replicas: int
    workers: int
    examples: tuple[int, int]
    global_batch_size: int
    batch_norm: bool = False
    convolution: bool = False
    without_onednn: bool = False
    dropout: bool = False
    steps_per_execution: int = 1
    jit_compile: bool = False
    text: bool = False


@dataclass(frozen=True)
class Problem:
    """A problem or warning found before training.

    Attributes:
        severity: ``WARNING``, ``CANNOT_RUN`` (a trainer would fail: not comparable) or ``REFUSED`` (an invalid
            request).
        side: name of the trainer that cannot run; empty if the finding concerns all trainers.
    """

    id: str
    severity: str
    message: str
    remedy: str
    side: str = ""

    def __str__(self) -> str:
        return f"{self.message}; {self.remedy}"


def split_sizes(examples: int, replicas: int) -> list[int]:
    """Returns the per-replica sizes into which ``tf.distribute`` splits a batch.

    All parts have the same size, rounded up; the last ones take what remains.

    >>> split_sizes(17, 4), split_sizes(5, 4)
    ([5, 5, 5, 2], [2, 2, 1, 0])
    """
    part = -(-examples // replicas)
    return [max(0, min(part, examples - i * part)) for i in range(replicas)]


def batch_sizes(examples: int, batch: int) -> list[int]:
    """Returns the distinct batch sizes of an epoch, in order of appearance."""
    first, last = min(examples, batch), examples % batch or batch
    return list(dict.fromkeys([first, last]))


def problems(facts: Facts) -> list[Problem]:
    """Returns all problems of a run, the most severe first."""
    calling_fit = [name for name in CALL_FIT if name in facts.trainers]
    found = [(REFUSED, "", text) for text in _refused(facts)]
    found += [(CANNOT_RUN, name, text) for name in calling_fit for text in _fit_cannot_run(facts)]
    found += [(CANNOT_RUN, "", text) for text in _nobody_can_run(facts)]
    found += [(CANNOT_RUN if facts.convolution else WARNING, "", text) for text in _empty_replicas(facts)]
    for limit in SPECS[facts.strategy].limits:
        text = limit.id, limit.message.format(workers=facts.workers), limit.remedy
        sides = calling_fit if limit.of_fit else [""]
        found += [(WARNING if limit.only_warns else CANNOT_RUN, side, text) for side in sides if limit.applies(facts)]
    found += [(WARNING, "", text) for text in _warnings(facts)]
    found.sort(key=lambda each: (REFUSED, CANNOT_RUN, WARNING).index(each[0]))
    return [Problem(id, severity, message, remedy, side) for severity, side, (id, message, remedy) in found]


def _refused(facts: Facts) -> Iterator[Text]:
    examples, batch, replicas = facts.examples[0], facts.global_batch_size, facts.replicas
    if batch > examples:
        yield (
            "batch-exceeds-examples",
            f"the global batch of {batch} examples ({batch // replicas} on each of {replicas} replica(s)) is "
            f"more than the {examples} training examples",
            f"use a --batch-size of at most {examples // replicas}"
            if examples >= replicas
            else f"use at most {examples} replicas",
        )
    steps = -(-examples // batch)
    if facts.steps_per_execution > max(1, steps):
        yield (
            "steps-per-execution-exceeds-epoch",
            f"--steps-per-execution {facts.steps_per_execution} is more than the {steps} step(s) of an epoch",
            f"use at most {steps}",
        )


def _nobody_can_run(facts: Facts) -> Iterator[Text]:
    if facts.jit_compile and facts.replicas > 1:
        yield (
            "jit-several-replicas",
            "XLA-compiled code cannot use the variables of several replicas on one CPU (InvalidArgumentError: "
            "Trying to access resource … located in device CPU:1 from device CPU:0)",
            "use one replica, or omit --jit",
        )


def _fit_cannot_run(facts: Facts) -> Iterator[Text]:
    """Yields what Keras's ``fit`` does not support on several replicas."""
    if facts.keras != 3 or facts.replicas == 1:
        return
    if SPECS[facts.strategy].even_first_batch:
        for what, examples in zip(("training", "validation"), facts.examples, strict=True):
            first = batch_sizes(examples, facts.global_batch_size)[0]
            if len(set(split_sizes(first, facts.replicas))) > 1:
                yield (
                    "fit-first-batch-uneven",
                    f"Keras 3's fit fails if the first {what} batch splits unevenly over the replicas, here {first} "
                    f"examples into {split_sizes(first, facts.replicas)} (InvalidArgumentError: AddN)",
                    f"use --keras 2, or a --batch-size of at most {examples // facts.replicas}",
                )
        if facts.text:
            yield (
                "fit-text-several-replicas",
                "Keras 3's fit cannot take strings on several replicas (InvalidArgumentError: AddN of strings)",
                "use --keras 2 or one replica, or turn the strings into numbers in load_data or prepare",
            )
    if facts.steps_per_execution > 1:
        yield (
            "fit-steps-per-execution-keras-3",
            "Keras 3's fit does not support steps_per_execution > 1 on several replicas "
            "(InvalidArgumentError: You must feed a value for placeholder tensor 'while/cond/Placeholder')",
            "use --keras 2 or one replica; the custom loop runs a whole epoch per call with --iteration function",
        )


def _empty_replicas(facts: Facts) -> Iterator[Text]:
    for what, examples in zip(("training", "validation"), facts.examples, strict=True):
        for size in batch_sizes(examples, facts.global_batch_size):
            split = split_sizes(size, facts.replicas)
            if facts.replicas > 1 and 0 in split:
                fatal = facts.convolution
                yield (
                    "empty-replica-batch",
                    f"the {what} batch of {size} examples splits into {split}: a replica without examples "
                    + (
                        "crashes TensorFlow in a convolution"
                        if fatal
                        else "reports a loss of NaN or 0, depending on the loss function"
                    ),
                    f"change --batch-size or the number of {what} examples"
                    + (" (--train-examples)" if what == "training" else "")
                    + (", or set TF_ENABLE_ONEDNN_OPTS=0, which doubles the training time" if fatal else ""),
                )


def _warnings(facts: Facts) -> Iterator[Text]:
    if facts.convolution and facts.without_onednn and not facts.jit_compile:
        yield (
            "onednn-off",
            "TensorFlow leaves oneDNN off on this processor, and convolutions may be much slower without it",
            "TF_ENABLE_ONEDNN_OPTS=1 switches it on (set it for your own fit, too: it rounds differently)",
        )
    if facts.replicas > 1:
        size = facts.examples[0] % facts.global_batch_size
        split = split_sizes(size, facts.replicas)
        if len(set(split)) > 1 and 0 not in split:
            yield (
                "uneven-replica-batches",
                f"the last training batch of {size} examples splits into {split}; fit and loop both average the "
                "replicas' means, so examples in the smaller parts count more than on one replica",
                "choose sizes that split evenly, or measure the effect with --float64-reference",
            )
    if facts.batch_norm and facts.replicas > 1:
        yield (
            "batch-norm-per-replica",
            "batch normalization computes its statistics on each replica separately, so the result differs from one "
            "replica with the same global batch"
            + ("; each replica keeps its own moving averages" if facts.keras == 3 else ""),
            "use BatchNormalization(synchronized=True) to get the same result as on one replica",
        )
