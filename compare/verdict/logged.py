"""What two trainings logged, compared without their weights: plain data, no TensorFlow."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from compare.naming import listed
from compare.records.metrics_csv import shortest
from compare.records.model import Record
from compare.verdict import exact
from compare.verdict.model import Comparison, Difference, Reporting, Training
from compare.verdict.outcomes import ALIKE, INCONCLUSIVE
from compare.verdict.seeds import Margin, of_one_seed, study

DIGITS = 6
"""The significant digits from which on equal losses are no coincidence; a number rounded for reading has fewer."""
MORE = (
    "one log of each cannot tell rounding or another seed from a mistake; compare the weights (fit-vs-loop "
    "scripts, or --trainers), or give logs of several seeds"
)


def compare_logs(reference: Sequence[Record], candidate: Sequence[Record], margins: Sequence[Margin]) -> Comparison:
    """Compares logged numbers: of one seed bit for bit, of several seeds by the tests of a study.

    Never identical, since weights were not seen. ``alike`` if all numbers are equal, among them a loss with all its
    digits, or if a study says so. Different numbers of one seed are inconclusive: nobody knows whether both were meant
    to be equal. Each side has a record per seed, without fingerprints.
    """
    pairs = of_one_seed(reference, candidate)
    compared = [_compare(*pair, alone=len(pairs) == 1) for pair in pairs]
    unequal = [each for each in compared if each.verdict != ALIKE]
    shown = max([*unequal, *compared[: not unequal]], key=lambda each: each.number_alone is not None)
    if len(pairs) == 1:
        return shown
    seed = pairs[compared.index(shown)][0].seed
    tested = study(*in_common(pairs), margins)
    if shown.training.verdict != ALIKE:
        shown = shown.with_training(verdict=tested.verdict)
    return replace(shown, seed=seed, study=tested)


def _compare(reference: Record, candidate: Record, *, alone: bool) -> Comparison:
    """Compares the logs of one seed; if they are all there is, the reason says what would tell more."""
    gaps = exact.metric_gaps(reference, candidate)
    both = exact.reported_by_both(reference, candidate)
    lost = exact.not_finite_values(reference, candidate)
    starts: dict[str, int] = {}  # by number, the first epoch in which it differs
    beyond: dict[str, str] = {}  # and its values there, if they have no gap
    for epoch, name, a, b in both:
        # A log may hold 0.1 as float32 and the other as float64, by the digits of their other epochs.
        if exact.absolute_gap(a, b) != 0 and shortest(a) != shortest(b):
            starts.setdefault(name, epoch)
            if exact.absolute_gap(a, b) is None:
                values = f"{shortest(a)} in {reference.trainer} and {shortest(b)} in {candidate.trainer}"
                beyond.setdefault(name, f"in epoch {epoch} {values}")
    verdict, first = INCONCLUSIVE, None
    if not both:
        each = [f"{record.trainer} has {', '.join(exact.metric_names(record))}" for record in (reference, candidate)]
        reason = f"the logs have no number in common: {', '.join(each)}"
    elif starts:
        first = Difference(min(starts.values()), None)
        largest = {name: gaps[name].max_gap for name in gaps if name in starts}
        sizes = [
            f"{name} from epoch {starts[name]} on, {beyond[name] if gap is None else f'by up to {gap:.1e}'}"
            for name, gap in largest.items()
        ]
        reason = f"the logged numbers differ ({'; '.join(sizes)})"
        equal = [(name, a) for _, name, a, _ in both if name not in starts]
        more = MORE
        if _telling(equal):
            same = listed(list(dict.fromkeys(name for name, _ in equal)))
            other = listed(list(starts))
            more = f"{same} agree to the last digit, as with equal weights: look at how {other} is calculated"
        reason += f"; {more}" if alone and not any(each.alone for each in lost) else ""
    else:
        pairs = exact.paired_names(reference, candidate)
        epochs = {name: [epochs_of(reference, name), epochs_of(candidate, other)] for name, other in pairs.items()}
        shared = {name: len(one & two) for name, (one, two) in epochs.items() if one & two}
        most = max(shared.values())
        where = [name if count == most else f"{name} in {_count(count)}" for name, count in shared.items()]
        reason = f"the logged numbers are equal in {_count(most)} ({', '.join(where)})"
        if not _telling([(name, a) for _, name, a, _ in both]):
            reason += f", but no loss has {DIGITS} digits or more and changes, so different trainings may log the same"
        elif gap := next((name for name in shared if epochs[name][0] != epochs[name][1]), ""):
            one, two = (_count(len(each)) for each in epochs[gap])
            reason += f", but {gap} is logged in {one} by {reference.trainer} and in {two} by {candidate.trainer}"
        else:
            verdict = ALIKE
    training = Training(verdict, None, first, 0, reason=reason)
    compared = Comparison(candidate.trainer, training, Reporting(None, gaps), weights_seen=False, not_finite=lost)
    return compared.held_different()


def epochs_of(record: Record, name: str) -> set[int]:
    """The epochs in which a number was logged."""
    return {epoch for epoch, numbers in record.logs.items() if name in numbers}


def _telling(values: Sequence[tuple[str, float]]) -> bool:
    """Whether equal numbers can hardly be a coincidence: a loss has all its digits, and training changes it."""
    losses: dict[str, list[float]] = {}
    for name, value in values:
        if name.removeprefix("val_").endswith("loss"):
            losses.setdefault(name, []).append(value)
    return any(
        (len(set(each)) > 1 or len(each) == 1) and any(_digits(value) >= DIGITS for value in each)
        for each in losses.values()
    )


def _digits(value: float) -> int:
    """The number of significant digits of the shortest decimal."""
    return len(shortest(value).partition("e")[0].replace(".", "").lstrip("-0"))


def in_common(pairs: Sequence[tuple[Record, Record]]) -> tuple[list[Record], list[Record]]:
    """The records of each side, under the reference's names, with the numbers that both sides have.

    What no log of a side has in an epoch is no difference. What some of its logs lack is: those may be the ones that
    went wrong.
    """
    sides = [reference for reference, _ in pairs], [exact.named_as(*pair) for pair in pairs]
    places = [{(epoch, name) for each in side for epoch, row in each.logs.items() for name in row} for side in sides]
    both = places[0] & places[1]

    def trimmed(record: Record) -> Record:
        logs = {
            epoch: {name: value for name, value in row.items() if (epoch, name) in both}
            for epoch, row in record.logs.items()
        }
        return replace(record, logs=logs)

    return list(map(trimmed, sides[0])), list(map(trimmed, sides[1]))


def _count(epochs: int) -> str:
    return f"{epochs} epoch{'s' * (epochs != 1)}"
