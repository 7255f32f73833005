"""Two recorded trainings side by side, and which of them is held to be right; no TensorFlow."""

from __future__ import annotations

from dataclasses import dataclass

from compare.check.measurement import Measurement
from compare.watch.seen import CloseUp
from compare.watch.trace import Trace


@dataclass(frozen=True)
class Sides:
    """Two trainings, and what was seen of them around the step where they diverge.

    Attributes:
        names: the reference and the candidate.
        traces: of their whole trainings.
        close_ups: of the steps around ``step``.
        step: the step, counted over the whole training.
        swapped: whether the candidate is plain ``fit``, which the reference is not, so that the reference is at fault.
        foreseen: whether ``right`` is what should have followed from the other side's own predictions.
    """

    names: tuple[str, str]
    traces: tuple[Trace, Trace]
    close_ups: tuple[CloseUp, CloseUp]
    step: int
    swapped: bool = False
    foreseen: bool = False

    @property
    def right(self) -> CloseUp:
        """The side that is held to be right: plain fit, or else the reference."""
        return self.close_ups[int(self.swapped)]

    @property
    def other(self) -> CloseUp:
        return self.close_ups[1 - int(self.swapped)]

    @property
    def right_trace(self) -> Trace:
        return self.traces[int(self.swapped)]

    @property
    def other_trace(self) -> Trace:
        return self.traces[1 - int(self.swapped)]

    @property
    def right_name(self) -> str:
        return self.names[int(self.swapped)]

    @property
    def other_name(self) -> str:
        return self.names[1 - int(self.swapped)]

    def named(self, seen: Measurement, *, by_right: bool = False) -> Measurement:
        """A measurement that names both sides: its own, which is the one at fault or the right one, and the other.

        What it says of them itself counts.
        """
        own, other = (self.right_name, self.other_name) if by_right else (self.other_name, self.right_name)
        return Measurement(seen.kind, {"side": own, "other": other, **seen.quantities})

    @property
    def replicas(self) -> int:
        """The number of replicas; of two sizes, the larger one, where mistakes of scaling show."""
        return max(trace.replicas for trace in self.traces)
