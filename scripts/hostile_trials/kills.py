"""Kills: a run that signals end at random moments and that is resumed ends as one that was never disturbed."""

from __future__ import annotations

import contextlib
import io
import random
import shutil
import signal

from killed_runs import kill_and_resume

from scripts.hostile_trials.common import Place, Result

KILLS = 10
"""Kills in one trial, which share one undisturbed run."""
SIGNALS = [signal.SIGKILL, signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP]
WAYS = ["--sequential", "--sequential", "--parallel"]
"""The second is what the command does by itself, and takes longer."""


def trial(place: Place, generator: random.Random) -> Result:
    """Ten kills by one kind of signal, of as many runs as that takes."""
    folder = place.folder / "kills"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    number, replicas = generator.choice(SIGNALS), generator.choice([1] * 9 + [2])
    way = generator.choice(WAYS)
    with contextlib.redirect_stdout(io.StringIO()) as said:
        outcome = kill_and_resume(folder, replicas, KILLS, generator, place.commands, number, [way])
    what = f"{outcome.kills} kills by {number.name}, {replicas} replica(s), {outcome.runs} runs: {outcome.phases}"
    return Result(f"{number.name} {way}, then --resume", what, outcome.differing, outcome.kills, said.getvalue())
