"""Resuming an interrupted run: which runs need it, from which checkpoint each continues, and what must not change."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from compare.check.changed import changed_settings
from compare.check.words import said
from compare.errors import RequestError
from compare.naming import absolute
from compare.option import flag
from compare.options import OPTIONS
from compare.records.model import BEGINNING, EPOCH_END, Place, in_time
from compare.records.reader import hashes_at, kept
from compare.reporting.terminal import tell

if TYPE_CHECKING:
    from compare.app.ready import Job, Session

SAME = ("code", "imported", "versions", "data", "threads", "arithmetic", "strategy")
"""The other parts of ``run.json`` that must be the same."""

RESTORE = {
    "threads": "let it use as many processors as then, since sums depend on that",
    "oneDNN": "set TF_ENABLE_ONEDNN_OPTS to 1 (on) or 0 (off) as it was then, since sums depend on it",
}
"""How to restore what is in no file of the user's, by its part or name there."""


def is_done(session: Session, job: Job) -> bool:
    """Whether a training has ended in the run that is resumed."""
    return session.options.resume and kept(session.folder, job.trainer, job.seed)[1] is not None


def resume_points(session: Session, job: Job, checkpoints: Sequence[Path]) -> Iterator[Place]:
    """The places to continue a training after, the latest first, the beginning last.

    After a place it continues if every worker has an undamaged checkpoint in its folder.
    """
    from compare.engine.checkpoints import damage, path_of, saved  # noqa: PLC0415 (lazy)
    from compare.engine.dry_run import why_not_resumable  # noqa: PLC0415 (lazy)

    resume, of_job = session.options.resume, (session.folder, job.trainer, job.seed)
    recorded = kept(*of_job)[0] if resume else 0
    # Never after the last epoch: what a trainer does when training ends would be left out.
    end = in_time((min(recorded + 1, session.options.epochs), EPOCH_END))
    there = saved(checkpoints[0]) if resume else []
    places = [place for place in there if in_time(place) < end and hashes_at(*of_job, place) is not None]
    begun = there or recorded
    reason = why_not_resumable(session.task) if begun else ""
    for place in places if not reason else []:
        paths = [path_of(folder, place) for folder in checkpoints]
        states = [(path, damage(session.folder, path)) for path in paths]
        if damaged := [f"{path}: {text}" for path, text in states if text]:
            text = f"Note: a damaged checkpoint is skipped, the one before it is used: {damaged[0]}"
            tell(session.console, text, style="yellow")
            continue
        anew = "; what it counts in Python begins anew" * session.is_own(job.trainer)
        tell(session.console, f"{job.shown}  continues after {shown_place(place)}{anew}")
        yield place
    if begun:
        lost = "metrics.csv and records lack the steps of its checkpoints"
        why = reason or (lost if there and not places else "there is no checkpoint to continue from")
        tell(session.console, f"{job.shown}  starts again: {why}")
    yield BEGINNING


def shown_place(place: Place) -> str:
    epoch, step = place
    return f"epoch {epoch}" if step == EPOCH_END else f"step {step:,} of epoch {epoch}"


def _given(name: str, value: Any, *, bare: bool = False) -> str:
    if value is None or value == []:
        return "none" if bare else f"without {flag(name)}"
    return ("" if bare else f"with {flag(name)} ") + json.dumps(value)


def refuse_changes(before: Mapping[str, Any], now: Mapping[str, Any], who: str = "--resume") -> None:
    """Refuse to resume a run whose request, code, data or versions have changed.

    Args:
        before: the content of ``run.json`` as the run left it.
        now: the same of this request; what either lacks is not known yet.
        who: the option or command that refuses.
    """
    recorded, requested = before["options"], now["options"]
    fixed = [name for name, option in OPTIONS.items() if not option.may_change]
    paths = [name for name, option in OPTIONS.items() if option.kind is Path]
    for name in fixed:
        # An option that is not recorded did not exist when the run began.
        if name in recorded and not _same(recorded[name], requested[name], is_path=name in paths):
            raise RequestError(
                f"{who}: the run began {_given(name, recorded[name])}, this request has "
                f"{_given(name, requested[name], bare=True)}: give the original options, or start another run"
            )
    for part in SAME:
        earlier, later = before.get(part) or {}, now.get(part) or {}
        for name in sorted(earlier.keys() & later.keys()):
            if earlier[name] != later[name]:
                values = (
                    ""
                    if "sha256" in name or part in ("code", "imported")
                    else f" (from {earlier[name] or 'unset'} to {later[name] or 'unset'})"
                )
                restore = RESTORE.get(part) or RESTORE.get(name, "restore it")
                raise RequestError(
                    f"{who}: {_named(part, name)} changed since the run began{values}: {restore}, or start another run"
                )
    for each in changed_settings(now, before, "this request"):
        raise RequestError(f"{who}: {said(each)}, with which the run began: restore it, or start another run")


def _same(recorded: Any, requested: Any, *, is_path: bool) -> bool:
    if is_path and isinstance(recorded, str) and requested is not None:
        return absolute(Path(recorded)) == absolute(Path(requested))  # earlier versions recorded it as it was given
    return bool(recorded == requested)


def _named(part: str, name: str) -> str:
    if part == "code":
        return "the code of this package" if name == "compare" else name
    return name if part in ("arithmetic", "imported") else f"the {part} ({name})"
