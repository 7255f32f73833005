"""Projections estimate how far two variables are apart, also where they are projected in several blocks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest


@pytest.mark.parametrize("blocks", [0.01, 1, 2.5])
def test_the_mean_square_of_projections_is_the_squared_norm(tensorflow: Any, blocks: float) -> None:
    from compare.engine.fingerprints import BLOCK, Projection

    generator = np.random.default_rng(0)
    project = Projection((round(blocks * BLOCK),))
    ratios = []
    for _ in range(600):
        difference = generator.normal(size=round(blocks * BLOCK)).astype(np.float32)
        (out,) = project([difference])
        ratios.append(np.mean(out**2) / np.sum(difference.astype(np.float64) ** 2))
    # Of 1,200 squares, with a standard deviation of about 1.4 each.
    assert np.mean(ratios) == pytest.approx(1, abs=5 * 1.5 / np.sqrt(1200))


def test_every_block_counts_by_signs_of_its_own(tensorflow: Any) -> None:
    from compare.engine.fingerprints import BLOCK, Projection
    from compare.records.model import PROJECTIONS

    blocks = 40
    project, signs = Projection((blocks, BLOCK)), set()
    for block in range(blocks):
        value = np.zeros((blocks, BLOCK), np.float32)
        value[block, 7] = 3.0
        (out,) = project([value])
        assert set(np.abs(out)) == {3.0}
        signs.add(tuple(np.sign(out)))
    assert len(signs) == 2**PROJECTIONS, "the same place in two blocks has signs that are independent"


@pytest.mark.parametrize("blocks", [0, 0.0002, 0.01, 0.6, 1, 2.5, 9])
def test_variables_of_one_shape_are_projected_together_as_alone(tensorflow: Any, blocks: float) -> None:
    from compare.engine.fingerprints import BLOCK, Projection

    project, size = Projection((round(blocks * BLOCK),)), round(blocks * BLOCK)
    values = list(np.random.default_rng(0).normal(size=(11, size)).astype(np.float32))
    alone = np.concatenate([project([value]) for value in values])
    np.testing.assert_allclose(project(values), alone, rtol=0, atol=1e-9)
    assert alone.any() == bool(size)


@pytest.mark.parametrize("fused", [True, False])
def test_all_variables_are_read_as_they_are(tensorflow: Any, fused: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    import tensorflow as tf
    import xxhash

    from compare.engine import fingerprints, strategies

    if not fused:  # as in a TensorFlow that has no such operation

        def unknown(*_: Any, **__: Any) -> None:
            raise tf.errors.NotFoundError(None, None, "Op type not registered '_ReadVariablesOp'")

        monkeypatch.setattr(fingerprints, "execute", unknown)
    strategy = strategies.make("mirrored", 2)
    kinds = [tf.float32, tf.float64, tf.float16, tf.bfloat16, tf.int64, tf.uint32, tf.bool]
    with strategy.scope():
        variables = [tf.Variable(tf.cast([[0, 1, 2], [3, 4, 5]], kind), name=kind.name) for kind in kinds]
        variables.append(tf.Variable(3.5))
    variables[0].values[1].assign_add([[1.0, 0, 0], [0, 0, 0]])  # the copies of one replica and of the other
    fingerprint = fingerprints.Fingerprinter(strategy, variables)
    hashes, projections = fingerprint()
    for variable, copies, row in zip(variables, fingerprint.read(), hashes, strict=True):
        for copy, component, digest in zip(copies, variable.values, row, strict=True):
            assert copy.dtype == component.numpy().dtype and np.array_equal(copy, component.numpy())
            assert digest == xxhash.xxh3_64_intdigest(component.numpy().tobytes())
    assert [row[0] == row[1] for row in hashes] == [False, *[True] * len(kinds)]
    assert np.isfinite(projections).all()
    assert np.array_equal(np.abs(projections[-1]), [3.5, 3.5])
    variables[-1].assign(4.5)
    assert np.array_equal(np.abs(fingerprint()[1][-1]), [4.5, 4.5])
