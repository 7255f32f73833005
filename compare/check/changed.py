"""What has changed between two runs, by what their ``run.json`` say; no TensorFlow here."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from compare.check.measurement import Measurement
from compare.check.recorded import things_apart
from compare.option import flag
from compare.watch.trace import CLIPPING

OF_STEP = "jit", "steps_per_execution", "iteration"
"""The options that change how a step is made, and so how it rounds."""
SAID_ELSEWHERE = "devices", "name", "global_batch_size"
"""What a strategy has that says nothing more."""
CALLED = {"model": "the layers"}
"""What parts of an experiment are called where their own name does not say it."""


def changed(now: Mapping[str, Any], then: Mapping[str, Any]) -> list[Measurement]:
    """What has changed since another run, or that nothing has that is known of both.

    Args:
        now: the content of a run's ``run.json``.
        then: that of the other.
    """
    found = [*changed_settings(now, then, "this run"), *_changed_values(now, then), *_of_replicas(now, then)]
    before: Mapping[str, str] = then.get("code") or {}
    files = {name: "fit-vs-loop" if name == "compare" else Path(name).name for name in now["code"] if name in before}
    if alone := [name for name in now["code"] if name not in before and before]:
        gone = [name for name in before if name not in now["code"]]
        found.append(Measurement.of("changed", side="this run", what="the files", now=alone, then=gone))
    others = [shown for name, shown in files.items() if now["code"][name] != before[name]]
    one, other = (each.get("imported") or {} for each in (now, then))
    others += [Path(name).name for name in sorted(one.keys() & other.keys()) if one[name] != other[name]]
    if others:
        found.append(Measurement.of("changed-files", files=others))
    same = [*["settings"] * bool(then.get("settings")), "versions", *files.values()]
    return found or [Measurement.of("nothing-changed", same=same)]


def _of_replicas(now: Mapping[str, Any], then: Mapping[str, Any]) -> Iterator[Measurement]:
    """What another number of replicas changes by itself, also where nothing is wrong."""
    counts: list[int] = [(each.get("strategy") or {}).get("replicas", 0) for each in (now, then)]
    if 0 in counts or counts[0] == counts[1]:
        return
    settings: Mapping[str, Any] = now.get("settings") or {}
    for layer in settings.get("model", ()):
        if layer["class"] == "BatchNormalization" or "Dropout" in layer["class"]:
            kind = "dropout-per-replica" if "Dropout" in layer["class"] else "batch-norm-per-replica"
            yield Measurement.of(kind, layer=layer["name"], replicas=max(counts))
    if any(each["config"].get(name) for each in settings.get("optimizer", ()) for name in CLIPPING):
        yield Measurement.of("clips-per-replica", replicas=max(counts))


def changed_settings(now: Mapping[str, Any], then: Mapping[str, Any], side: str) -> Iterator[Measurement]:
    """The layers, optimizer, loss and metrics that are others, or have other settings, where both are known."""
    for part, own in (now.get("settings") or {}).items():
        earlier = (then.get("settings") or {}).get(part, own)
        classes, before = ([each["class"] for each in things] for things in (own, earlier))
        if classes != before:
            what = CALLED.get(part, f"the {part}")
            yield Measurement.of("changed", side=side, what=what, now=classes, then=before)
        for one, _, settings in things_apart(own, earlier, initializers=True):
            layers = [each for each in own if each["class"] != "InputLayer"]  # which people do not count
            known = part == "model" and one in layers
            thing = f"layer {layers.index(one) + 1} ({one['class']})" if known else one["class"]
            yield Measurement.of("script-settings", side=side, optimizer=thing, settings=settings)


def _changed_values(now: Mapping[str, Any], then: Mapping[str, Any]) -> Iterator[Measurement]:
    for part in ("options", "versions", "arithmetic", "threads", "strategy"):
        own, earlier = (each.get(part) or {} for each in (now, then))
        wanted = set(OF_STEP) if part == "options" else own.keys() - set(SAID_ELSEWHERE)
        for name in sorted(wanted & own.keys() & earlier.keys()):
            if own[name] != earlier[name]:
                what = {"options": flag(name), "threads": f"threads ({name})", "strategy": f"the strategy's {name}"}
                values = {"now": own[name], "then": earlier[name]}
                yield Measurement.of("changed", side="this run", what=what.get(part, name), **values)
