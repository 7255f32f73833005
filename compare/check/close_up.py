"""What is seen inside the steps of a run, whoever observes it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

from compare.engine.keras_generation import SHOWS_STEPS
from compare.patching import undone
from compare.watch.seen import CloseUp
from compare.watch.settings import MADE_ALIKE, Detail


@contextmanager
def seeing_inside(
    window: tuple[int, int] = (1, sys.maxsize), *, latest_only: bool = False
) -> Iterator[Callable[[], CloseUp | None]]:
    """Sees inside the steps of the run that is made and trained in this context.

    It gives a function that returns what was seen so far; None if nothing was, or where that cannot be done.

    Args:
        window: the first and the last step whose values are kept, counted over the whole training.
        latest_only: whether only the last two steps are kept, up to the first whose weights are not finite.
    """
    if not SHOWS_STEPS:
        yield lambda: None
        return
    from compare.watch.alike import InitialWeights  # noqa: PLC0415 (lazy: Keras 3)
    from compare.watch.stages import StageObserver  # noqa: PLC0415 (lazy: Keras 3)

    own = tuple(MADE_ALIKE)
    detail = Detail(own=own, close_up=(window,), latest_only=latest_only, max_steps=sys.maxsize, one=True)
    with undone():
        yield partial(StageObserver(detail, InitialWeights(detail), None).seen, 0)
