"""Chooses the batch sizes of the short check: small batches with the same irregularities as the user's own run."""

from __future__ import annotations

from dataclasses import dataclass

from compare.engine.preflight import split_sizes

EVERY_SIZE = 24
"""Examples per replica if the batch size is unknown; divisible into 2, 3, 4, 6, 8 or 12 micro-batches."""
USUAL = 64
"""The command line's default batch size per replica."""
LARGEST = 32
"""A larger batch per replica is halved while it is even."""
HEAVY = 2**14
"""Examples with at least this many numbers (an image of 74 × 74 × 3) get smaller batches."""
LARGEST_OF_HEAVY, EVERY_SIZE_OF_HEAVY = 8, 12
FULL_BATCHES, MORE_BATCHES = 2, 16
"""The number of full batches in an epoch: at first, and for a trainer that makes no step in so few."""
VALIDATION_BATCHES = 4


@dataclass(frozen=True)
class UserRun:
    """The size of the user's own run, which evidence is worded for."""

    examples: int
    global_batch_size: int

    @property
    def last(self) -> int:
        """The number of examples in the last batch of an epoch."""
        return self.examples % self.global_batch_size or self.global_batch_size


@dataclass(frozen=True)
class Batches:
    """The check's batch sizes over all replicas, the same in every epoch.

    Attributes:
        full: the size of a full batch.
        last: the size of the last batch of an epoch; ``full`` if the user's data has no short batch.
        empty: the size of a last batch that leaves some replica without examples; 0 if this cannot occur in the
            user's run.
        user_run: the user's own run; None if its batch size is unknown.
        fulls: the number of full batches in an epoch.
    """

    replicas: int
    full: int
    last: int
    validation_last: int
    empty: int = 0
    user_run: UserRun | None = None
    fulls: int = FULL_BATCHES

    def sizes(self) -> list[int]:
        """The sizes of an epoch's batches. The first one splits evenly, as Keras 3's fit needs on several replicas."""
        return [self.full] * self.fulls + [self.last]

    def per_epoch(self, *, empty: bool = False) -> int:
        """The number of training examples in an epoch; of one whose last batch leaves a replica empty, if asked for."""
        return sum(self.sizes()) + (self.empty - self.last) * empty

    @property
    def validation(self) -> int:
        return VALIDATION_BATCHES * self.full + self.validation_last


def craft_batches(examples: int, validation: int, batch_size: int | None, replicas: int, numbers: int = 1) -> Batches:
    """Chooses the check's batches for a user's data.

    Args:
        batch_size: examples per replica; None if unknown: the last batch is then short and splits unevenly, and a
            replica is left empty only if the default batch size would do so.
        numbers: the number of scalars in one example's input.
    """
    heavy = numbers >= HEAVY
    user_run = UserRun(examples, (batch_size or USUAL) * replicas)
    rest = examples % user_run.global_batch_size
    leaves_one_empty = rest > 0 and 0 in split_sizes(rest, replicas)
    empty = replicas - 1 if leaves_one_empty else 0
    if batch_size is None:
        each = EVERY_SIZE_OF_HEAVY if heavy else EVERY_SIZE
        last = _short(each, replicas, uneven=True)
        return Batches(replicas, each * replicas, last, last, empty)
    each, largest = batch_size, LARGEST_OF_HEAVY if heavy else LARGEST
    while each > largest and each % 2 == 0:
        each //= 2

    def last_of(count: int) -> int:
        rest = count % user_run.global_batch_size
        return _short(each, replicas, uneven=rest % replicas > 0) if rest and each > 1 else each * replicas

    return Batches(replicas, each * replicas, last_of(examples), last_of(validation), empty, user_run)


def _short(each: int, replicas: int, *, uneven: bool) -> int:
    """About two thirds of a full batch: every replica has examples, and the last one has one less if ``uneven``."""
    part = max(1, 5 * each // 8)
    return (part + 1) * replicas - 1 if uneven and replicas > 1 else part * replicas
