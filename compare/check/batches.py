"""The batches that the short check trains on: those of the user's own run, in small, and nothing they never have."""

from __future__ import annotations

from dataclasses import dataclass

EVERY_SIZE = 24
"""Examples per replica where no batch size is known: it divides into 2, 3, 4, 6, 8 or 12 micro-batches."""
USUAL = 64
"""The batch size per replica that is taken where the command is given none."""
LARGEST = 32
"""A larger batch is halved, as long as it can be."""
HEAVY = 2**14
"""From so many numbers in an example on (an image of 74 × 74 × 3), the batches are smaller."""
LARGEST_OF_HEAVY, EVERY_SIZE_OF_HEAVY = 8, 12
FULL_BATCHES = 2
VALIDATION_BATCHES = 4


@dataclass(frozen=True)
class Own:
    """The user's own run: what a cause's evidence speaks of.

    Attributes:
        examples: in an epoch.
        global_batch_size: of a full batch.
    """

    examples: int
    global_batch_size: int

    @property
    def last(self) -> int:
        """Examples in the last batch of an epoch."""
        return self.examples % self.global_batch_size or self.global_batch_size

    def __str__(self) -> str:
        full, rest = divmod(self.examples, self.global_batch_size)
        return f"{self.examples:,} examples are {full:,} × {self.global_batch_size}" + (f" + {rest}" if rest else "")


@dataclass(frozen=True)
class Batches:
    """The sizes of the check's batches, over all replicas: the same in every epoch, so that all epochs are as long.

    Attributes:
        replicas: over how many a batch is split.
        full: size of a full batch.
        last: size of the last batch of an epoch; ``full`` where the user's data never has a short one.
        validation_last: likewise of validation.
        empty: size of a last batch that leaves some replica without examples; 0 where the user's never does.
        own: the user's own run; None where its batch size is not known.
    """

    replicas: int
    full: int
    last: int
    validation_last: int
    empty: int = 0
    own: Own | None = None

    def sizes(self, empty: bool = False) -> list[int]:
        """Of an epoch's batches. The first is split evenly, without which Keras 3's fit fails on several replicas."""
        return [self.full] * FULL_BATCHES + [self.empty if empty else self.last]

    @property
    def per_epoch(self) -> int:
        """Training examples in an epoch."""
        return sum(self.sizes())

    @property
    def validation(self) -> int:
        """Validation examples."""
        return VALIDATION_BATCHES * self.full + self.validation_last


def like_those_of(examples: int, validation: int, batch_size: int | None, replicas: int, numbers: int = 1) -> Batches:
    """The check's batches for a user's data.

    Args:
        examples: training examples in an epoch.
        validation: validation examples.
        batch_size: per replica; None where it is not known: then the last batch is short, and splits unevenly,
            and leaves a replica empty only if it would with the usual batch size.
        replicas: over how many replicas a batch is split.
        numbers: how many there are in an example's input.
    """
    heavy = numbers >= HEAVY
    own = Own(examples, (batch_size or USUAL) * replicas)
    rest = examples % own.global_batch_size
    leaves_one_empty = 0 < rest <= -(-rest // replicas) * (replicas - 1)
    empty = replicas - 1 if leaves_one_empty else 0
    if batch_size is None:
        each = EVERY_SIZE_OF_HEAVY if heavy else EVERY_SIZE
        last = _short(each, replicas, uneven=True)
        return Batches(replicas, each * replicas, last, last, empty)
    each, largest = batch_size, LARGEST_OF_HEAVY if heavy else LARGEST
    while each > largest and each % 2 == 0:
        each //= 2

    def last_of(count: int) -> int:
        rest = count % own.global_batch_size
        return _short(each, replicas, uneven=rest % replicas > 0) if rest and each > 1 else each * replicas

    return Batches(replicas, each * replicas, last_of(examples), last_of(validation), empty, own)


def _short(each: int, replicas: int, *, uneven: bool) -> int:
    """About two thirds of a full batch; every replica has some, and the last one less if it is to be ``uneven``."""
    part = max(1, 5 * each // 8)
    return (part + 1) * replicas - 1 if uneven and replicas > 1 else part * replicas
