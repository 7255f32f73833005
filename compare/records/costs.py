"""``costs.json``: what each training cost beside its seconds per epoch, each entry with a checksum."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from compare.records.files import checksum, read_json, write_json
from compare.records.model import RecordError
from compare.records.run_json import identity_of

COSTS = "costs.json"
"""The file with the costs of each trainer and seed: the duration of the first step and of a later step in seconds, the
peak memory in bytes (None if unknown), and ``own_peak``: whether that peak covers only this trainer's training
(otherwise the time since the process started)."""

Costs = dict[str, dict[str, dict[str, Any]]]
"""Maps a trainer's name and a seed, as text, to its costs."""


def add_costs(path: Path, trainer: str, seed: int, costs: Mapping[str, Any]) -> None:
    """Writes the costs of one trainer and seed.

    Raises:
        RecordError: if the file exists and is damaged.
        StorageError: if the file cannot be written.
    """
    content, run = read_costs(path), identity_of(path.parent)
    content.setdefault(trainer, {})[str(seed)] = dict(costs)
    for name, seeds in content.items():
        content[name] = {s: {**each, "sha256": _sum(run, name, s, each)} for s, each in seeds.items()}
    write_json(path, content)


def read_costs(path: Path) -> Costs:
    """Reads ``costs.json``.

    Raises:
        RecordError: if the file is damaged.
    """
    if not os.path.lexists(path):
        return {}
    content, run = read_json(path), identity_of(path.parent)
    try:
        if not content:  # of which none is ever written
            raise TypeError
        for trainer, seeds in content.items():
            for seed, costs in seeds.items():
                if costs.pop("sha256", None) != _sum(run, trainer, seed, costs):
                    problem = f"damaged, the costs of {trainer!r}, seed {seed} do not match their checksum"
                    raise RecordError(path, problem)
    except (AttributeError, TypeError):
        raise RecordError(path, "damaged, it does not hold the costs of a run") from None
    return dict(content)


def _sum(run: str | None, trainer: str, seed: str, costs: Mapping[str, Any]) -> str:
    """The checksum of an entry, which another run's differs from."""
    content = {"trainer": trainer, "seed": seed, "costs": costs}
    return checksum(content if run is None else {**content, "run": run})
