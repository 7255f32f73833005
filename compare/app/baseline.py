"""Refuses, before training, a ``--baseline`` that cannot be compared step by step, and says what changed since it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from compare.app.ready import Session
from compare.check.changed import changed
from compare.check.words import as_evidence, said
from compare.errors import NotComparableError, RequestError
from compare.modes import Logs, Scripts
from compare.naming import listed, shown_path, some
from compare.records.model import Record
from compare.records.reader import read_records
from compare.records.run_json import RunJson, read_verdict

if TYPE_CHECKING:
    from compare.engine.dry_run import TriedOut


def read_baseline(folder: Path) -> RunJson:
    """What is known of a baseline's run; one of scripts or logs is refused."""
    try:
        run = RunJson.read(folder)
        if (folder / "verdict.json").exists():  # none of a run that was interrupted
            read_verdict(folder / "verdict.json")
        for word in (Scripts.word, Logs.word):
            if run.options.get(word):
                raise RequestError(f"it compares {word}; give the folder of a comparison of trainers")
        return run
    except RequestError as error:
        raise RequestError(f"--baseline {shown_path(folder)}: {error}") from None


def since_baseline(session: Session, run: RunJson, known: Mapping[str, Any], tried: TriedOut) -> dict[str, Any]:
    """What has changed since a baseline, as ``RunJson.since_baseline``; refuses one that cannot be compared.

    Args:
        run: what is known of the baseline's run.
        known: what is known of this run before training, as for ``run.json``.
        tried: what was seen of its experiment; nothing in a cluster.
    """
    try:
        records = [each.without_missing() for each in read_records(run.folder) if each.trainer in session.trainers]
        for each in records:
            for epoch in each.weights_crc32:  # what is damaged is said now
                each.weights(epoch)
        for why in _differences(session, known, run, records):
            raise RequestError(why)
        for why in _other_data(session, known, run):
            raise NotComparableError(why)
        seen = changed(known, run.content())
        if tried.shapes and [each.shape for each in records[0].variables] != list(tried.shapes):
            raise NotComparableError(f"it has trained a model with other weights ({'; '.join(map(said, seen))})")
        return as_evidence(seen)
    except RequestError as error:
        kind = NotComparableError if isinstance(error, NotComparableError) else RequestError
        raise kind(f"--baseline {shown_path(run.folder)}: {error}") from None


def _differences(session: Session, known: Mapping[str, Any], run: RunJson, records: Sequence[Record]) -> Iterator[str]:
    options, names = session.options, listed(run.trainers or ())
    if not records:
        yield f"its trainers are {names}, here {listed(list(session.trainers))}: only the same names are compared"
    seeds = sorted({each.seed for each in records})
    if lacking := sorted(set(options.all_seeds) - set(seeds)):
        trained, others = (some(list(map(str, each))) for each in (seeds, lacking))
        count = f" --seeds {len(seeds)}" * (len(options.all_seeds) > 1)
        yield f"it has trained with seed {trained}, not {others}: give --seed {seeds[0]}{count}"
    if unfinished := next((each.trainer for each in records if each.end is None), ""):
        yield f"its {unfinished} has not finished: continue it with --resume, or leave {unfinished} out here"
    if (epochs := run.options["epochs"]) != options.epochs:
        yield f"it has trained for {epochs} epoch(s), not {options.epochs}: give --epochs {epochs}"
    if (first := run.options["train_examples"]) != options.train_examples:
        yield f"it has trained {_first(first)}, not {_first(options.train_examples)}: change --train-examples"
    batch, here = (each["global_batch_size"] for each in (run.strategy or known["strategy"], known["strategy"]))
    if batch != here:
        yield f"its global batch has {batch} examples, not {here}: change --batch-size"


def _first(examples: int | None) -> str:
    return "all examples" if examples is None else f"the first {examples:,} examples"


def _other_data(session: Session, known: Mapping[str, Any], run: RunJson) -> Iterator[str]:
    data: Mapping[str, Any] = run.data or known["data"]
    for part in ("training", "validation"):
        if data[f"{part}_sha256"] != known["data"][f"{part}_sha256"]:
            counts = [each[f"{part}_examples"] for each in (data, known["data"])]
            if counts[0] == counts[1]:
                yield f"some of its {counts[0]:,} {part} examples differ from those of this comparison"
            yield f"its {counts[0]:,} {part} examples are not the {counts[1]:,} of this comparison"
