"""What is seen inside the steps of a run, whoever observes it."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from compare.check.observation import Seen
from compare.engine.keras_generation import SHOWS_STEPS
from compare.patching import undone
from compare.records import AnyRecord, EpochRecord
from compare.watch.settings import MADE_ALIKE, Settings


class Inside:
    """Sees inside the steps of the run whose records it is told; nothing where that cannot be done."""

    def __init__(self, observer: Any) -> None:
        self._observer, self._ends = observer, list[int]()

    def on_record(self, record: AnyRecord) -> None:
        """Notes where an epoch ends."""
        if isinstance(record, EpochRecord) and (seen := self.seen) is not None:
            self._ends.append(max(seen.steps.steps, default=0))

    @property
    def seen(self) -> Seen | None:
        """What was seen so far; None if nothing was."""
        steps = self._observer and self._observer.seen(0)
        return None if steps is None else Seen(steps, tuple(self._ends))


@contextmanager
def seeing_inside(window: tuple[int, int] = (1, sys.maxsize), *, latest_only: bool = False) -> Iterator[Inside]:
    """Sees inside the steps of the run that is made and trained in this context.

    Args:
        window: the first and the last step whose values are kept, counted over the whole training.
        latest_only: whether only the last two steps are kept, up to the first whose weights are not finite.
    """
    if not SHOWS_STEPS:
        yield Inside(None)
        return
    from compare.watch.alike import InitialWeights  # noqa: PLC0415 (lazy: Keras 3)
    from compare.watch.stages import StageObserver  # noqa: PLC0415 (lazy: Keras 3)
    from compare.watch.trace import TraceWriter  # noqa: PLC0415 (lazy: Keras 3)

    with tempfile.TemporaryDirectory() as folder, undone():
        settings = Settings(
            script="",
            source="",
            folder=folder,
            initial=str(Path(folder) / "initial"),
            own=tuple(MADE_ALIKE),
            begins=False,
            close_up=(window,),
            latest_only=latest_only,
            max_steps=sys.maxsize,
            one=True,
        )
        yield Inside(StageObserver(settings, InitialWeights(settings), TraceWriter(Path(folder))))
