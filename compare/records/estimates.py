"""Norms of weights and of their gaps, estimated from the projections in a run's records.

The square of a vector's projection on random signs has the vector's squared Euclidean norm as its expected value
(Achlioptas, "Database-friendly random projections", 2003), so the root mean square over the projections estimates it.
"""

from __future__ import annotations

import numpy as np


def variable_norms(a: np.ndarray, b: np.ndarray | float = 0.0) -> np.ndarray:
    """The estimated Euclidean norm of ``a - b`` for each variable.

    Args:
        a: the projections of some weights, float64 ``[..., variables, PROJECTIONS]``.
        b: the projections of others; 0 for the norm of ``a``.

    Returns:
        float64 ``[..., variables]``; not finite where the projections are not.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        return np.asarray(np.sqrt(np.mean(np.square(a - b), axis=-1)))


def total_norm(a: np.ndarray, b: np.ndarray | float = 0.0) -> np.ndarray:
    """The estimated Euclidean norm of ``a - b`` over all variables, float64 ``[...]``; see ``variable_norms``."""
    with np.errstate(over="ignore", invalid="ignore"):
        return np.asarray(np.sqrt(np.sum(np.mean(np.square(a - b), axis=-1), axis=-1)))
