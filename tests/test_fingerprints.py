"""Projections estimate how far two variables are apart, also where they are projected in several blocks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest


@pytest.mark.parametrize("blocks", [0.01, 1, 2.5])
def test_the_mean_square_of_projections_is_the_squared_norm(tensorflow: Any, blocks: float) -> None:
    from compare.engine.fingerprints import BLOCK, Projection
    from compare.records import PROJECTIONS

    generator = np.random.default_rng(0)
    project, out = Projection((round(blocks * BLOCK),)), np.empty(PROJECTIONS)
    ratios = []
    for _ in range(600):
        difference = generator.normal(size=round(blocks * BLOCK)).astype(np.float32)
        project(difference, out)
        ratios.append(np.mean(out**2) / np.sum(difference.astype(np.float64) ** 2))
    # Of 1,200 squares, with a standard deviation of about 1.4 each.
    assert np.mean(ratios) == pytest.approx(1, abs=5 * 1.5 / np.sqrt(1200))


def test_every_block_counts_by_signs_of_its_own(tensorflow: Any) -> None:
    from compare.engine.fingerprints import BLOCK, Projection
    from compare.records import PROJECTIONS

    blocks, out = 40, np.empty(PROJECTIONS)
    project, signs = Projection((blocks, BLOCK)), set()
    for block in range(blocks):
        value = np.zeros((blocks, BLOCK), np.float32)
        value[block, 7] = 3.0
        project(value, out)
        assert set(np.abs(out)) == {3.0}
        signs.add(tuple(np.sign(out)))
    assert len(signs) == 2**PROJECTIONS, "the same place in two blocks has signs that are independent"
