"""Two recorded trainings side by side, and which of them is held to be right; no TensorFlow."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeVar

from compare.check.measurement import Measurement
from compare.watch.epoch_ends import EpochEnds
from compare.watch.seen import CloseUp
from compare.watch.trace import Trace

Kind = TypeVar("Kind")


@dataclass(frozen=True)
class Sides:
    """Two trainings, and what was seen of them around the step where they diverge.

    The first is held to be right: plain ``fit``, or else the reference.

    Attributes:
        traces: of their whole trainings.
        close_ups: of the steps around ``step``.
        step: the step, counted over the whole training.
        foreseen: whether ``right`` is what should have followed from the other side's own predictions.
    """

    names: tuple[str, str]
    traces: tuple[Trace, Trace]
    close_ups: tuple[CloseUp, CloseUp]
    step: int
    foreseen: bool = False

    @property
    def right(self) -> CloseUp:
        return self.close_ups[0]

    @property
    def other(self) -> CloseUp:
        return self.close_ups[1]

    @property
    def right_trace(self) -> Trace:
        return self.traces[0]

    @property
    def other_trace(self) -> Trace:
        return self.traces[1]

    @property
    def right_name(self) -> str:
        return self.names[0]

    @property
    def other_name(self) -> str:
        return self.names[1]

    def turned(self) -> Sides:
        """The same with the other side held to be right."""
        names, traces, close_ups = self.names[::-1], self.traces[::-1], self.close_ups[::-1]
        return replace(self, names=names, traces=traces, close_ups=close_ups)

    def both(self, seen: Callable[[CloseUp, int], Kind]) -> tuple[Kind, Kind]:
        """What was seen in the step: of the side that is held to be right, and of the other."""
        return seen(self.right, self.step), seen(self.other, self.step)

    def named(self, seen: Measurement) -> Measurement:
        """A measurement that names both sides, first the one at fault; what it says of them itself counts."""
        return Measurement(seen.kind, {"side": self.other_name, "other": self.right_name, **seen.quantities})

    @property
    def epochs(self) -> EpochEnds:
        return EpochEnds.of(*self.traces)

    @property
    def replicas(self) -> int:
        """The number of replicas; of two sizes, the larger one, where mistakes of scaling show."""
        return max(trace.replicas for trace in self.traces)
