"""The catalogue of causes, one module per family. To add a cause, add one entry."""

from compare.check.causes import data, loss, reporting, step
from compare.check.causes.base import Cause

CATALOGUE: dict[str, Cause] = {
    cause.id: cause for cause in (*loss.CAUSES, *step.CAUSES, *data.CAUSES, *reporting.CAUSES)
}

__all__ = ["CATALOGUE", "Cause"]
