"""Where the epochs of trainings end: as ``fit`` says, or as two loops are seen to report; imports no TensorFlow."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from compare.records.model import EPOCH_END, Place
from compare.watch.reported_logs import measures_validation
from compare.watch.trace import Reported, Trace


@dataclass(frozen=True)
class EpochEnds:
    """The numbers of steps at which the epochs of a training end.

    Attributes:
        ends: the steps made up to the end of each epoch; empty if everything is one epoch.
    """

    ends: tuple[int, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.ends)

    def or_whole(self, trace: Trace) -> EpochEnds:
        """These, or the end of a training without epochs."""
        return self if self or not trace.last else EpochEnds((trace.last,))

    def place(self, step: int) -> Place:
        """The epoch and the step in it, from the step over the whole training."""
        epoch = bisect_left(self.ends, step)
        return epoch + 1, step - (0, *self.ends)[epoch]

    def step(self, place: Place) -> int:
        """The step over the whole training, from the epoch and the step in it."""
        epoch, step = place
        if step == EPOCH_END:
            return self.ends[epoch - 1] if epoch <= len(self.ends) else 0
        return step + (0, *self.ends)[min(epoch - 1, len(self.ends))]

    def own_of(self, trace: Trace) -> tuple[int, ...]:
        """The ends of a loop's own epochs where it makes fewer steps in each of as many; else these."""
        fewer = trace.whole and not trace.epochs and trace.last < max(self.ends, default=0)
        own = EpochEnds.of(trace).ends if fewer else ()
        return own if len(own) == len(self.ends) else self.ends

    @classmethod
    def of(cls, *traces: Trace) -> EpochEnds:
        """The ends of the epochs of trainings that are compared: of the first by ``fit``, else of all loops.

        Loops have epochs where all that is seen of them agrees: after equal numbers of steps, up to the last one, a
        metric of training has counted the same again, or ``compare.report`` is given the next epoch; and both sides
        report there. Empty if that is not known.
        """
        of_fit = [[epoch.steps for epoch in trace.epochs] for trace in traces if trace.epochs]
        if of_fit:
            return cls(next((tuple(ends) for ends in of_fit if all(ends) and ends == sorted(set(ends))), ()))
        known = [each for trace in traces for each in _as_reported(trace)]
        if len({ends for ends, _ in known}) != 1 or not any(of_training for _, of_training in known):
            return cls()
        ends = known[0][0]
        regular = len(ends) > 1 and ends == tuple(range(ends[0], ends[-1] + 1, ends[0]))
        return cls(ends) if regular and all(_ends_there(trace, ends) for trace in traces) else cls()


def _as_reported(trace: Trace) -> list[tuple[tuple[int, ...], bool]]:
    """The ends that each metric of a loop speaks for, or that the loop itself gives; and whether they are of training.

    A metric that begins anew in each epoch has counted most at the end of one. One that never does, or that is read
    once, says nothing; nor does one that begins anew in each step.
    """
    given = {each.epoch: each.steps for each in trace.reported if each.epoch}
    if given:
        numbered = sorted(given) == [*range(1, len(given) + 1)]
        return [(tuple(given[epoch] for epoch in sorted(given)) if numbered else (), True)]
    found = []
    for reads in _reads(trace):
        most = max(each.counted for each in reads)
        ends = tuple(each.steps for each in reads if each.counted == most > 0)
        if len(ends) > 1 and ends[0] > 1:
            found.append((ends, not measures_validation(reads[0])))
    return found


def _ends_there(trace: Trace, ends: Sequence[int]) -> bool:
    """Whether a loop reports at these ends, not after every step, and makes no step more, unless it was cut short."""
    given = {each.steps for each in trace.reported if each.epoch}
    reported = [given, *({each.steps for each in reads} for reads in _reads(trace))]
    left = trace.last - ends[-1]
    over = left == 0 or (0 < left < ends[0] and not trace.whole)
    return over and any(len(steps) < trace.last and steps.issuperset(ends) for steps in reported)


def _reads(trace: Trace) -> list[list[Reported]]:
    """What each metric says after steps, where it is first read; one that is read once goes on with its namesake."""
    first: dict[int, dict[int, Reported]] = {}
    for each in trace.reported:
        if each.kind and not each.updating and 0 < each.steps <= trace.last:
            first.setdefault(each.steps, {}).setdefault(each.metric, each)
    times = Counter(metric for at_step in first.values() for metric in at_step)
    found: dict[tuple[str, str, int] | int, list[Reported]] = {}
    for step in sorted(first):
        places = Counter[tuple[str, str]]()
        for metric, each in sorted(first[step].items()):
            place = each.name, each.kind, places[each.name, each.kind]
            found.setdefault(metric if times[metric] > 1 else place, []).append(each)
            places[each.name, each.kind] += times[metric] == 1
    return list(found.values())
