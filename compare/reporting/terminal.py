"""The terminal output of a run: first lines, live progress, tables and the details of a verdict."""

from __future__ import annotations

import sys
import textwrap
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from io import StringIO
from typing import Any

import numpy as np
import xxhash
from rich.console import Console
from rich.text import Text

from compare.check.stage_views import stage_sentence
from compare.naming import Code, printable
from compare.records.model import EPOCH_END, INITIAL, AnyRecord, EpochRecord, Place, StepRecord, total_norm
from compare.reporting import sentences
from compare.reporting.live import UNLIMITED, live_line, progress_line
from compare.verdict.exact import unequal
from compare.verdict.findings import Finding
from compare.verdict.model import Comparison, Verdict
from compare.verdict.outcomes import ALIKE, DIFFERENT, IDENTICAL


def say(console: Console, text: str, style: str | None = None) -> None:
    """Prints text verbatim: without markup, emoji or escape sequences; a terminal may break its lines anywhere.

    For paths and code, which can be copied from there.
    """
    console.print(verbatim(text), style=style, soft_wrap=True)


def say_items(console: Console, items: Sequence[str]) -> None:
    """Prints a line of items; a terminal that is too narrow gets several, broken between items."""
    glued = "  ".join(item.replace(" ", GLUE) if len(item) <= columns_of(console) - 4 else item for item in items)
    for line in _wrapped(console, glued, "    "):
        say(console, line.replace(GLUE, " "))


def tell(console: Console, sentence: str, style: str | None = None, *, head: str = "") -> None:
    """Prints sentences, broken between words where a terminal is too narrow; ``Code`` is not broken.

    The text's indentation is kept on all lines. If it begins with a head, only that is in this style.
    """
    text = f"{head}{sentence}"
    indent = " " * (len(text) - len(text.lstrip(" ")))
    lines = [text] if isinstance(sentence, Code) else _wrapped(console, text, indent)
    for number, line in enumerate(lines):
        shown = verbatim(line)
        if style is not None:
            shown.stylize(style, 0, len(head) if head and number == 0 else None)
        console.print(shown, soft_wrap=True)
        style = None if head else style


GLUE = "\N{NO-BREAK SPACE}"


def columns_of(console: Console) -> int:
    return console.width if console.is_terminal else UNLIMITED


def _wrapped(console: Console, text: str, indent: str) -> list[str]:
    """The lines of a text in a terminal; one line elsewhere."""
    if not console.is_terminal:
        return [text]
    wrapper = textwrap.TextWrapper(console.width, subsequent_indent=indent)
    wrapper.break_long_words = wrapper.break_on_hyphens = wrapper.replace_whitespace = False
    return wrapper.wrap(text) or [""]


def verbatim(text: str) -> Text:
    """Text for Rich to print as it is, in tables too; control characters are escaped."""
    return Text(printable(text))


def style_of(verdict: str) -> str:
    """The style of a verdict's word, in the colours that pages have; one that is none of these is neutral there too."""
    return {IDENTICAL: "bold green", ALIKE: "bold cyan", DIFFERENT: "bold red"}.get(verdict, "bold")


class RunningGap:
    """The weight gaps between the reference and the other trainers while they train, in turn or at the same time.

    Of those that train ``together``, the records of an epoch are shown when all have ended it. It keeps a digest of
    each replica after each of the reference's steps, and the projections at the ends of epochs. ``on_difference`` is
    called once for each trainer, with its name and the first step whose weights differ.
    """

    def __init__(
        self,
        reference: str,
        on_difference: Callable[[str, Place], None] = lambda *_: None,
        together: Sequence[str] = (),
    ) -> None:
        self.reference = reference
        self._order, self._together = list(together), {*together}
        self._rows: defaultdict[int, dict[str, EpochRecord]] = defaultdict(dict)
        self._on_difference = on_difference
        # More than one, where a place is recorded again: as training begins, and at its end.
        self._digests: defaultdict[str, defaultdict[Place, list[np.ndarray]]] = defaultdict(lambda: defaultdict(list))
        self._ends: defaultdict[str, dict[int, np.ndarray]] = defaultdict(dict)
        self._differs_since: dict[str, Place | None] = {}  # of those that were compared
        self._maybe_before = set[str]()  # of those that a resumed run compares no earlier
        self._last, self._rest = dict[str, np.ndarray](), set[str]()
        self._lock = threading.Lock()

    def see(self, trainer: str, record: StepRecord) -> None:
        """Compares a fingerprint with that of the same step by the reference or, if it is the reference, by all."""
        place, copies = (record.epoch, record.step), [copy.tobytes() for copy in record.hashes.T]
        with self._lock:
            digest = np.array([[[xxhash.xxh64_intdigest(copy) for copy in copies]]], np.uint64)
            self._digests[trainer][place].append(digest)
            if record.step > INITIAL and np.array_equal(digest, self._last.get(trainer, ())):
                self._rest.add(trainer)
            self._last[trainer] = digest
            if record.step == EPOCH_END:
                self._ends[trainer][record.epoch] = record.projections
            others = [name for name in self._digests if name != self.reference]
            wanted = others if trainer == self.reference else [trainer]
            new = {name: since for name in wanted if (since := self._compare(name, place)) is not None}
        for name, since in new.items():
            self._on_difference(name, since)

    def _compare(self, trainer: str, place: Place) -> Place | None:
        """Compares one step; returns since when the weights differ, if it is the first that does.

        Initial weights count once a step after them differs: callbacks may set them in one trainer before they are
        recorded, and in the other after that.
        """
        own, expected = (self._digests[name].get(place) for name in (trainer, self.reference))
        if not own or not expected or trainer == self.reference or place[1] == INITIAL:
            return None
        del self._digests[trainer][place]
        if self._rest & {trainer, self.reference} and place[1] > INITIAL:
            return None  # it accumulates gradients, say: where it reports several steps, the other may report one
        first = trainer not in self._differs_since and place > (1, 1)
        known = self._differs_since.setdefault(trainer, None)
        if known is not None or not all(unequal(each, own[-1]).any() for each in expected):
            return None
        begun = [self._digests[name].get((place[0], INITIAL)) for name in (trainer, self.reference)]
        apart = all(begun) and unequal(begun[1][-1], begun[0][-1]).any()  # type: ignore[index]
        self._differs_since[trainer] = since = (place[0], INITIAL) if apart else place
        self._maybe_before |= {trainer} if first else set()
        return since

    def or_before(self, trainer: str) -> str:
        """What is added to the place since when the weights differ, if nothing was compared before it."""
        return ", or before" if trainer in self._maybe_before else ""

    def now(self, trainer: str) -> str:
        """Whether the weights are equal so far, in two words; empty if nothing was compared."""
        if trainer not in self._differs_since:
            return ""
        return "weights differ" if self._differs_since[trainer] else "weights equal"

    def at_end_of(self, epoch: int, trainer: str) -> str:
        """What is known of the gap when a trainer ends an epoch: empty until the reference has ended it too."""
        with self._lock:
            if trainer != self.reference:
                return self._text(epoch, trainer) if epoch in self._ends[self.reference] else ""
            ended = [name for name, ends in self._ends.items() if epoch in ends and name != self.reference]
            texts = [(name, self._text(epoch, name)) for name in ended]
            return ", ".join(f"{printable(name)}: {text}" for name, text in texts if text)

    def ended(self, trainer: str, record: EpochRecord | None) -> list[dict[str, EpochRecord]]:
        """By trainer, the records of each epoch that can be shown, once a trainer has ended one, or all (None)."""
        with self._lock:
            if record is None:
                self._together.discard(trainer)
            else:
                self._rows[record.epoch][trainer] = record
            over = [epoch for epoch in sorted(self._rows) if self._rows[epoch].keys() >= self._together]
            rows = [self._rows.pop(epoch) for epoch in over]
        return [dict(sorted(row.items(), key=lambda each: [*self._order, each[0]].index(each[0]))) for row in rows]

    def _text(self, epoch: int, trainer: str) -> str:
        """Whether the weights are equal so far, and else since when and by how much at the end of an epoch."""
        if (since := self._differs_since.get(trainer)) is None:
            return self.now(trainer)
        first, step = since
        where = f"epoch {first}" + (f", step {step:,}" if step > INITIAL else "") + self.or_before(trainer)
        ends = [self._ends[name][epoch] for name in (trainer, self.reference) if epoch in self._ends[name]]
        gap = f" {float(total_norm(*ends)):.1e} (norm)" if len(ends) == 2 else ""
        return f"weight gap{gap} since {where}"


class TrainerProgress:
    """The sink that shows the progress of one trainer: a line per epoch, and a live line in a terminal.

    The trainers of a comparison share the running gaps. A trainer may be ``shown`` under another name.
    """

    def __init__(
        self,
        console: Console,
        trainer: str,
        epochs: range,
        steps_per_epoch: int,
        global_batch_size: int,
        gap: RunningGap | None = None,
        shown: str = "",
    ) -> None:
        self._console, self._trainer, self._name = console, printable(shown or trainer), trainer
        self._gap = gap or RunningGap(trainer)
        self._steps, self._batch = steps_per_epoch, global_batch_size
        self._epochs = epochs
        self.begin(epochs[0])
        self._live = live_line(console, self.line)

    def begin(self, epoch: int) -> None:
        """Starts with the first of the epochs to train."""
        self._epochs = range(epoch, self._epochs.stop)
        self._epoch, self._step = epoch, 0
        self._first: tuple[float, int] | None = None  # when the first step was over, which includes tracing
        self._seen = time.monotonic()

    def __enter__(self) -> TrainerProgress:
        self._live.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._live.__exit__(*error)

    def __call__(self, record: AnyRecord) -> None:
        if isinstance(record, StepRecord):
            self._gap.see(self._name, record)
            if record.step > 0:
                self._epoch, self._step, self._seen = record.epoch, record.step, time.monotonic()
                self._first = self._first or (self._seen, self._done)
        if isinstance(record, EpochRecord):
            self._end_epoch(record)
            self._epoch, self._step, self._seen = record.epoch + 1, 0, time.monotonic()

    def _end_epoch(self, record: EpochRecord | None) -> None:
        for rows in self._gap.ended(self._name, record):
            self._say(rows)

    def end(self) -> None:
        """Ends the training, as it came: others do not wait for it."""
        self._end_epoch(None)

    def _say(self, rows: Mapping[str, EpochRecord]) -> None:
        """Prints the line of an epoch: losses only, for the table at the end has all numbers."""
        one, *others = rows.values()
        alone = not others
        names = list(dict.fromkeys(name for record in rows.values() for name in record.logs))
        texts = {
            name: [f"{row.logs[name]:.4f}" if name in row.logs else "-" for row in rows.values()] for name in names
        }
        metrics = [
            f"{name} {'/'.join(texts[name] if len({*texts[name]}) > 1 else texts[name][:1])}"
            for name in [each for each in names if each in ("loss", "val_loss")] or names[:2]
        ]
        gaps = {name: self._gap.at_end_of(one.epoch, name) for name in rows if alone or name != self._gap.reference}
        told = [gap if len(gaps) == 1 else f"{printable(name)}: {gap}" for name, gap in gaps.items() if gap]
        costs = "/".join(f"{record.seconds:.1f}" for record in rows.values()) + " s"
        costs += f", {one.examples_per_second:,.0f} examples/s" * alone
        head = self._trainer if {*rows} == {self._name} else "/".join(map(printable, rows))
        say_items(self._console, [head, self._place(one.epoch), *metrics, ", ".join([costs, *told])])

    def _place(self, epoch: int) -> str:
        last = str(self._epochs[-1])
        return f"epoch {epoch:>{len(last)}}/{last}"

    @property
    def _done(self) -> int:
        return (self._epoch - self._epochs[0]) * self._steps + self._step

    def line(self, columns: int) -> str:
        done, total, idle = self._done, len(self._epochs) * self._steps, time.monotonic() - self._seen
        note = self._gap.now(self._name)
        if idle > 1 and done >= total and self._step == 0:
            note = f"finishing, {idle:.0f} s"
        elif idle > 1 and self._step == 0:
            note = f"waiting for the first step, {idle:.0f} s"
        elif idle > 1 and self._step >= self._steps:
            note = f"validating, {idle:.0f} s"
        rate = left = None
        if self._first is not None and self._seen > self._first[0] and done > self._first[1]:
            seconds_per_step = (self._seen - self._first[0]) / (done - self._first[1])
            left = max(total - done, 0) * seconds_per_step
            rate = None if idle > 1 and self._step in (0, self._steps) else self._batch / seconds_per_step
        head = f"{self._trainer}  {self._place(min(self._epoch, self._epochs[-1]))}"
        return progress_line(columns, head, min(done / total, 1), rate, left, note)


def details(run: Mapping[str, Any]) -> list[str]:
    """The first lines that ``--verbose`` adds: versions, the data set and its checksums."""
    data = run["data"]
    return [
        ", ".join(f"{name} {version}" for name, version in run["versions"].items()),
        f"data: {data['source']}",
        f"training data, SHA-256 {data['training_sha256']}",
        f"validation data, SHA-256 {data['validation_sha256']}",
    ]


def print_verdict(verdict: Verdict, console: Console, known: Sequence[str] = (), *, verbose: bool = False) -> None:
    """Prints the result of every comparison, with its causes; not the errors of ``known`` trainers, which were seen."""
    for each, said in sentences.with_sentences(verdict.comparisons, verdict.reference, known):
        console.print()
        tell(console, said + ".", style_of(each.verdict), head=f"{each.verdict}: ")
        if text := stage_sentence(each, verdict.reference):
            tell(console, text + ".")
        for text in filter(None, (sentences.misnamed(each, verdict.reference), sentences.silent(each))):
            tell(console, text, "yellow", head="Warning: ")
        if text := sentences.warning(each, verdict.reference):
            tell(console, text + ".", "bold red", head="WARNING: ")
        hints = (
            sentences.more_may_follow(each, verdict.scope),
            "" if verdict.interrupted else sentences.unreported(each, verdict.scope),
        )
        lines = [*sentences.causes(each), *(f"{text}." for text in hints if text)]
        if verbose:
            lines += [
                f"  differs at that step: {one.name}"
                + ("" if one.gap is None else f", by {one.gap:.1e} (Euclidean norm)")
                for one in each.training.differing_variables
            ]
        if verbose or verdict.scope == "check":
            lines += [f"  not applicable: {one.probe}: {one.reason}" for one in each.not_applicable or ()]
        for line in lines:
            tell(console, line)
    if verdict.since_baseline:
        console.print()
        earlier = next(each.recorded for each in verdict.comparisons if each.against)
        own = f"Between this run's trainers: {verdict.between_trainers}"
        tell(console, f"{own}. Compared with {earlier}: {verdict.since_baseline}.")
    if verdict.interrupted and not any(each.so_far for each in verdict.comparisons):
        tell(console, "The run was interrupted before all was explained; what there is was judged.")
    for text in sentences.stops(verdict):
        tell(console, text + ".")
    if verdict.truth:
        tell(console, sentences.truth_sentence(verdict.truth) + ".")


def as_text(verdict: Verdict) -> str:
    """What ``print_verdict`` prints, without styles; its lines are as wide as the terminal, elsewhere of any length."""
    text, terminal = StringIO(), bool(sys.stdout and not sys.stdout.closed and sys.stdout.isatty())
    width = None if terminal else UNLIMITED
    print_verdict(verdict, Console(file=text, color_system=None, force_terminal=terminal, width=width))
    return text.getvalue().strip()


def headline(worst: Comparison) -> list[str]:
    """The verdict and the first cause in a line, since pytest's summary shows one only; none without a cause."""
    return [f"{worst.verdict}: {cause.label}" for cause in _leading(worst)]


def _leading(worst: Comparison) -> Sequence[Finding]:
    """The first cause; none where no cause explains why weights first differ."""
    return () if sentences.only_beside(worst) else worst.causes[:1]


def in_short(verdict: Verdict, options: str) -> str:
    """What a failed assertion says of the worst comparison: the result, where, and its first cause with the remedy.

    Of each further cause it says its name and its line, and at last with which options the command says more.
    """
    worst, *_ = sentences.worst_first(verdict)
    first = _leading(worst)
    shown = sentences.causes(replace(worst, causes=tuple(first), evidence=() if first else (worst.evidence or ())[:3]))
    inside = stage_sentence(worst, verdict.reference)
    said = f"{worst.verdict}: {sentences.sentence(worst, verdict.reference)}."
    text = [*headline(worst), said, *[f"{inside}."] * bool(inside), *shown]
    others = [(cause.label, cause.source) for cause in worst.causes[len(first) :]]
    more = [f"  also found: {label}{f', {source.where}' if source else ''}" for label, source in others]
    return "\n".join([*text, *more, f"  fit-vs-loop check {options} says more, and writes a page"])
