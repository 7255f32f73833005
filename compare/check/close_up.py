"""The observer of what is trained in this process, as the short check needs it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from compare.patching import undone
from compare.watch.alike import InitialWeights
from compare.watch.settings import MADE_ALIKE, Detail
from compare.watch.stages import StageObserver


@contextmanager
def observing(window: tuple[int, int] = (1, sys.maxsize), *, latest_only: bool = False) -> Iterator[StageObserver]:
    """Observes the run that is made and trained in this context, as the observer's first training.

    Args:
        window: the first and the last step whose values are kept, counted over the whole training.
        latest_only: whether only the last two steps are kept, up to the first whose weights are not finite.
    """
    own = tuple(MADE_ALIKE)
    detail = Detail(own=own, close_up=(window,), latest_only=latest_only, max_steps=sys.maxsize, one=True)
    with undone():
        yield StageObserver(detail, InitialWeights(detail), None)
