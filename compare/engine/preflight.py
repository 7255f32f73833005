"""What is known before any training: what cannot run at all, and what will not mean what it seems to.

Plain facts in, findings out; no TensorFlow. The facts were measured with TensorFlow 2.21, Keras 3.15
and tf-keras 2.21; the matrix (``scripts/matrix.py``) measures them again.

Two traps of the same kind need no finding: ``Run.build`` builds the optimizer with its slots in scope
(made lazily inside a replica it crashes, or leaves replicas out of step), and ``strategies.make``
refuses more replicas than there are devices, since no strategy could be made to draw facts from.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

WARNING = "warning"
CANNOT_RUN = "cannot-run"
REFUSED = "refused"


@dataclass(frozen=True)
class Facts:
    """What the findings are drawn from.

    Attributes:
        strategy: the strategy's name, as in ``--strategy``.
        keras: the Keras generation.
        trainers: the built-in trainers' names, and those of the user's own.
        replicas: how many replicas train in sync, over all processes.
        workers: how many processes train (1 outside a cluster).
        examples: training and validation examples.
        global_batch_size: examples per step over all replicas.
        batch_norm: whether a layer normalizes by the batch's statistics.
        convolution: whether a layer convolves: such kernels fail on an empty batch.
        dropout: whether a layer draws random masks.
        steps_per_execution: optimizer steps per call of a ``tf.function``.
        jit_compile: whether XLA compiles them.
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
    dropout: bool = False
    steps_per_execution: int = 1
    jit_compile: bool = False


@dataclass(frozen=True)
class Finding:
    """One thing to know before training.

    Attributes:
        id: its name, for ``run.json``.
        severity: ``WARNING``; ``CANNOT_RUN`` (a side fails: not comparable); ``REFUSED`` (a wrong request).
        side: the trainer that cannot run; empty where it is all of them.
        message: what is the matter.
        remedy: what to do.
    """

    id: str
    severity: str
    side: str
    message: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.message}; {self.remedy}"


def parts(examples: int, replicas: int) -> list[int]:
    """How ``tf.distribute`` splits a batch: equal parts rounded up, the last ones get what is left.

    >>> parts(17, 4), parts(5, 4)
    ([5, 5, 5, 2], [2, 2, 1, 0])
    """
    part = -(-examples // replicas)
    return [max(0, min(part, examples - i * part)) for i in range(replicas)]


def batch_sizes(examples: int, batch: int) -> list[int]:
    """The distinct sizes of the batches of an epoch, the first one first."""
    first, last = min(examples, batch), examples % batch or batch
    return list(dict.fromkeys([first, last]))


def findings(facts: Facts) -> list[Finding]:
    """All that is known of a run before it begins, the gravest first."""
    return [*_refused(facts), *_cannot_run(facts), *_empty_replicas(facts), *_warnings(facts)]


def _refused(facts: Facts) -> Iterator[Finding]:
    examples, batch, replicas = facts.examples[0], facts.global_batch_size, facts.replicas
    if batch > examples:
        yield Finding(
            "batch-exceeds-examples",
            REFUSED,
            "",
            f"a global batch of {batch} ({batch // replicas} on each of {replicas} replica(s)) is more than the "
            f"{examples} training examples",
            f"use a --batch-size of at most {examples // replicas}",
        )


def _cannot_run(facts: Facts) -> Iterator[Finding]:
    fit = "fit" in facts.trainers
    if fit and facts.keras == 3 and facts.strategy == "multi-worker" and facts.workers > 1:
        yield Finding(
            "fit-multi-worker-keras-3",
            CANNOT_RUN,
            "fit",
            "Keras 3's fit does not run under MultiWorkerMirroredStrategy with several workers "
            "(ValueError: Attempt to convert a value (PerReplica…) with an unsupported type)",
            "use --keras 2, or train with the custom loop, which runs",
        )
    if fit and facts.keras == 3 and facts.strategy == "parameter-server":
        yield Finding(
            "fit-parameter-server-keras-3",
            CANNOT_RUN,
            "fit",
            "Keras 3's fit does not run under ParameterServerStrategy "
            "(ValueError: … pass this dataset to ClusterCoordinator.create_per_worker_dataset)",
            "use --keras 2, or train with the custom loop, which runs",
        )
    if fit and facts.keras == 3 and facts.replicas > 1 and facts.strategy in ("mirrored", "central-storage"):
        for what, examples in zip(("training", "validation"), facts.examples, strict=True):
            first = batch_sizes(examples, facts.global_batch_size)[0]
            if len(set(parts(first, facts.replicas))) > 1:
                yield Finding(
                    "fit-first-batch-uneven",
                    CANNOT_RUN,
                    "fit",
                    f"Keras 3's fit cannot begin with a {what} batch that splits unevenly, "
                    f"{first} examples into {parts(first, facts.replicas)} (InvalidArgumentError: AddN)",
                    f"use --keras 2, or a --batch-size of at most {examples // facts.replicas}",
                )
    if fit and facts.keras == 3 and facts.replicas > 1 and facts.steps_per_execution > 1:
        yield Finding(
            "fit-steps-per-execution-keras-3",
            CANNOT_RUN,
            "fit",
            "Keras 3's fit does not make several steps per execution on several replicas "
            "(InvalidArgumentError: You must feed a value for placeholder tensor 'while/cond/Placeholder')",
            "use --keras 2, or one replica; loop --iteration function makes them",
        )
    if facts.jit_compile and facts.replicas > 1:
        yield Finding(
            "jit-several-replicas",
            CANNOT_RUN,
            "",
            "what XLA compiles cannot use the variables of several replicas on the processor (InvalidArgumentError: "
            "Trying to access resource … located in device CPU:1 from device CPU:0)",
            "use one replica, or leave out --jit",
        )
    state = facts.batch_norm or (facts.dropout and facts.keras == 3)
    if facts.keras == 3 and facts.strategy == "central-storage" and facts.replicas > 1 and state:
        yield Finding(
            "central-storage-state-keras-3",
            CANNOT_RUN,
            "",
            "under Keras 3 a model with batch normalization or dropout does not run under CentralStorageStrategy on "
            "several replicas (You must specify an aggregation method to update a AggregatingVariable)",
            "use --strategy mirrored, or --keras 2",
        )


def _empty_replicas(facts: Facts) -> Iterator[Finding]:
    for what, examples in zip(("training", "validation"), facts.examples, strict=True):
        for size in batch_sizes(examples, facts.global_batch_size):
            split = parts(size, facts.replicas)
            if facts.replicas > 1 and 0 in split:
                fatal = facts.convolution
                yield Finding(
                    "empty-replica-batch",
                    CANNOT_RUN if fatal else WARNING,
                    "",
                    f"the {what} batch of {size} examples splits into {split}: a replica that gets none "
                    + ("crashes TensorFlow in a convolution" if fatal else "reports a loss of NaN or 0, by the loss"),
                    f"change --batch-size or the number of {what} examples"
                    + (" (--train-examples)" if what == "training" else "")
                    + (", or set TF_ENABLE_ONEDNN_OPTS=0, which doubles the time" if fatal else ""),
                )


def _warnings(facts: Facts) -> Iterator[Finding]:
    if facts.replicas > 1:
        size = facts.examples[0] % facts.global_batch_size
        split = parts(size, facts.replicas)
        if len(set(split)) > 1 and 0 not in split:
            yield Finding(
                "uneven-replica-batches",
                WARNING,
                "",
                f"the last training batch, {size} examples, splits into {split}, and fit and loop average the "
                "replicas' means: examples in small parts count more than on one replica",
                "choose sizes that split evenly, or see --truth for how much it is",
            )
    if facts.batch_norm and facts.replicas > 1:
        yield Finding(
            "batch-norm-per-replica",
            WARNING,
            "",
            "batch normalization takes its statistics on each replica by itself, which is not what one replica with "
            "the same global batch computes" + ("; each keeps its own moving averages" if facts.keras == 3 else ""),
            "use BatchNormalization(synchronized=True) if one replica's result is wanted",
        )
    if facts.keras == 3 and facts.strategy == "central-storage" and facts.replicas > 1:
        yield Finding(
            "central-storage-metrics-keras-3",
            WARNING,
            "",
            "under Keras 3 and CentralStorageStrategy on several replicas metrics are wrong, whoever trains: their "
            "accumulators are doubled at every update",
            "use --strategy mirrored or --keras 2; the weights are right",
        )
    if facts.strategy == "parameter-server" and facts.workers > 1:
        yield Finding(
            "parameter-server-asynchronous",
            WARNING,
            "",
            f"{facts.workers} workers update the parameters without waiting for each other: no two runs are equal, so "
            "that weights cannot be compared one to one",
            "use --workers 1 for an exact comparison, or --strategy multi-worker, which is synchronous",
        )
