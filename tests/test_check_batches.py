"""The check's batches are those of the user's own run, in small; no TensorFlow."""

from __future__ import annotations

import pytest

from compare.check.batches import FULL_BATCHES, UserRun, craft_batches


def split(size, replicas):
    """A batch over replicas, as tf.distribute splits it."""
    part = -(-size // replicas)
    return [max(0, min(part, size - i * part)) for i in range(replicas)]


@pytest.mark.parametrize("replicas", [1, 2, 3, 4])
@pytest.mark.parametrize("batch_size", [None, 1, 2, 3, 16, 25, 64, 100])
@pytest.mark.parametrize("examples", [100, 128, 129, 1000, 1024, 60_000])
@pytest.mark.parametrize("numbers", [28 * 28, 96 * 96 * 3])
def test_they_are_short_uneven_or_empty_only_where_the_users_are(examples, batch_size, replicas, numbers):
    found = craft_batches(examples, examples, batch_size, replicas, numbers)
    *full, last = found.sizes()
    assert full == [found.full] * FULL_BATCHES
    assert len(set(split(found.full, replicas))) == 1
    assert min(split(last, replicas)) > 0
    assert last <= found.full
    if batch_size is None:
        assert last < found.full
        assert (len(set(split(last, replicas))) > 1) == (replicas > 1)
        return
    assert found.full <= batch_size * replicas
    own = split(UserRun(examples, batch_size * replicas).last, replicas)
    assert bool(found.empty) == (min(own) == 0)
    if found.empty:
        assert min(split(found.per_epoch(empty=True) - sum(full), replicas)) == 0
    elif batch_size > 1:
        assert (last < found.full) == (sum(own) < batch_size * replicas)
        assert (len(set(split(last, replicas))) > 1) == (len(set(own)) > 1)


def test_large_examples_come_in_smaller_batches():
    assert craft_batches(1024, 1024, 64, 2, numbers=28 * 28).full == 64
    assert craft_batches(1024, 1024, 64, 2, numbers=96 * 96 * 3).full == 16
