"""Sorts what is seen inside the steps of a process, on each replica, into the steps of its trainings."""

from __future__ import annotations

import itertools
import sys
import threading
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import tensorflow as tf

from compare.engine.fingerprints import container
from compare.engine.insides_keras import Variable
from compare.watch.data_sets import DataSets
from compare.watch.seen import CloseUp, Event, row_hashes, sketch
from compare.watch.settings import Detail
from compare.watch.shapes import are_few
from compare.watch.trainings import Trainings

WITH_ROWS = ("inputs", "targets")
"""The kinds of events whose arrays have a row per example."""


@dataclass
class Replica:
    """How far one replica is.

    Attributes:
        waiting: what was seen since the last step ended.
        drawn: the random numbers since, of which no step is known to use them yet.
        ended: the numbers of the trainings whose step has ended since.
        applied: how often optimizers were given gradients of each variable of a training in its step.
    """

    waiting: list[Event] = field(default_factory=list)
    drawn: list[Event] = field(default_factory=list)
    ended: set[int] = field(default_factory=set)
    made: Counter[int] = field(default_factory=Counter)
    applied: defaultdict[int, Counter[int]] = field(default_factory=lambda: defaultdict(Counter))

    def skipped(self, optimizer: int) -> int:
        """How many updates an optimizer has left out since its last one; what was computed for them is forgotten."""
        for i, event in enumerate(self.waiting if not self.ended else ()):
            if event.kind == "scaled" and event.info["optimizer"] == optimizer:
                del self.waiting[: i + 1]
                return int(event.info["skipped"]) + 1
        return 0


class StepEvents:
    """What was seen of the steps of each training.

    Attributes:
        seen: the same, by the number of the training.
    """

    def __init__(self, settings: Detail, trainings: Trainings, data_sets: DataSets | None) -> None:
        self._settings, self._trainings, self._data_sets = settings, trainings, data_sets
        self._lost_at = sys.maxsize
        self._applications = itertools.count(1)
        self._accumulates = False
        self._lock = threading.Lock()
        self._replicas: defaultdict[int, Replica] = defaultdict(Replica)
        self.seen: defaultdict[int, CloseUp] = defaultdict(lambda: CloseUp({}))

    def near(self, replica: int) -> bool:
        """Whether the next step of a replica may be one whose stages are recorded, or the one before it.

        That is in any training, and in one that may be beginning.
        """
        made = [self._replicas[replica].made[training.number] for training in self._trainings]
        steps = [*(step + 1 for step in made), *(made if self._accumulates else ())]
        more = len(self._trainings) < self._settings.trainings
        return any(map(self.watches, [*steps, 1] if more else steps))

    def add(self, kind: str, info: dict[str, Any], of_replica: Any, *arrays: Any) -> None:
        """Adds an event, as soon as its arrays have values, to the step that it belongs to."""
        number = int(of_replica)
        if kind in ("untaped", "again", "summed"):
            self._between_steps(kind, number, arrays)
            return
        if kind == "drawn":
            info = {**info, "shape": list(arrays[0].shape)}
            self._replicas[number].drawn.append(Event(kind, number, info, [], row_hashes([arrays[0][None]])))
            return
        with self._lock:
            replica = self._replicas[number]
            waiting = replica.waiting
            if kind == "updated":
                if not self._settings.losses_only:
                    self._updated(info, number, arrays)
                return
            if kind == "scaled":
                if not self._settings.losses_only:
                    waiting.append(Event(kind, number, {**info, "skipped": replica.skipped(info["optimizer"])}, []))
                return
            near = self.near(number)
            kept = kind == "loss" or (near and not self._settings.losses_only)
            rows = row_hashes(arrays[: info.get("true")]) if kind in WITH_ROWS else ()
            wanted = kind == "inputs" and near and not info["operations"]  # else of a loop in the graph
            data_sets = self._data_sets if wanted else None
            info = {**info, "operations": data_sets.operations(arrays)} if data_sets is not None else info
            kept |= kind == "targets" and self._settings.losses_only and all(map(are_few, arrays[1:2]))
            copies = [np.array(array) for array in arrays] if kept else []
            events = [Event(kind, number, info, copies, rows)] if kept or rows else []
            if kind != "gradients":
                # A new step begins with inputs, or, where no model is called, with a loss.
                begins = kind == "inputs" or (kind == "loss" and not any(each.kind == "inputs" for each in waiting))
                if begins and replica.ended:
                    replica.ended.clear()
                    waiting.clear()
                if not replica.ended:  # what is drawn after a step is for the next one
                    waiting += replica.drawn
                    replica.drawn.clear()
                waiting += events
                return
            self._given(info, number, arrays, events)

    def _given(self, info: dict[str, Any], number: int, arrays: Sequence[Any], events: list[Event]) -> None:
        """Completes the step whose gradients an optimizer is given."""
        training, times = self._trainings.now(info["training"]), info["times"]
        if times > 1:  # the optimizer takes their mean
            self._accumulates = True
            arrays = [arrays[0], *(array / np.asarray(times, array.dtype) for array in arrays[1:])]
            events = [replace(event, arrays=arrays) for event in events]
        if not self._settings.losses_only:
            events.append(Event("sketch", number, info, [sketch(array) for array in arrays[1:]]))
        step = self._step_of(training, number, info["positions"], times)
        self.seen[training].applied.setdefault(step, next(self._applications))
        seen = self.seen[training].steps.setdefault(step, [])
        weights = variable_ids(self._trainings[training].variables)
        # Who applies outside of strategy.run ends the step of all replicas.
        for replica in list(self._replicas.values()) if info["alone"] else [self._replicas[number]]:
            # The losses of a GAN's two models are computed before both are trained.
            if training not in replica.ended:
                seen += [each for each in replica.waiting if weights & each.info.get("of", weights)]
            replica.ended.add(training)
        seen += events
        if self._settings.latest_only and step <= self._lost_at:
            for steps in (self.seen[training].steps, self.seen[training].after):
                for earlier in [each for each in steps if each < step - 1]:
                    del steps[earlier]

    def _updated(self, info: dict[str, Any], replica: int, arrays: Sequence[Any]) -> None:
        """Keeps the weights that an optimizer has made."""
        training = self._trainings.now(info["training"])
        step = self._replicas[replica].made[training]
        if self.watches(step):
            event = Event("updated", replica, info, [np.array(array) for array in arrays])
            self.seen[training].steps[step].append(event)
            finite = all(np.isfinite(each).all() for each in self.seen[training].arrays(step, "loss"))
            pairs = zip(event.arrays, self._trainings[training].initial or itertools.repeat(np.zeros(0)), strict=False)
            # A mask may be infinite from the start.
            lost = any(not np.isfinite(now).all() and np.isfinite(first).all() for now, first in pairs)
            if self._settings.latest_only and (lost or not finite):
                self._lost_at = step

    def watches(self, step: int) -> bool:
        """Whether a step's stages are recorded, or it is the one before."""
        return step <= self._lost_at and any(first - 1 <= step <= last for first, last in self._settings.close_up)

    def _between_steps(self, kind: str, replica: int, arrays: Sequence[np.ndarray]) -> None:
        """Records what is computed without a gradient: a loss, or predictions for the examples of the last step."""
        for training in self._trainings:
            made, seen = self._replicas[replica].made[training.number], self.seen[training.number]
            if kind == "untaped":
                predicted, *values = arrays
                losses = seen.untaped.setdefault(made, [])
                losses.append((float(np.mean(values[0], dtype=np.float64)), len(predicted) if predicted.ndim else 0))
                continue
            if kind == "summed":
                seen.summed.append(float(arrays[0]))
                continue
            if row_hashes(arrays) in [each.rows for each in seen.steps.get(made, ()) if each.kind == "inputs"]:
                seen.again.add(made)

    def _step_of(self, training: int, replica: int, positions: Sequence[int], times: int) -> int:
        """The number of the step to which gradients belong; optimizers of different variables share theirs.

        An optimizer that accumulates gradients is given those of a variable several times in a step.
        """
        made, applied = self._replicas[replica].made, self._replicas[replica].applied[training]
        if not applied or any(applied[position] >= times for position in positions):
            made[training] += 1
            applied.clear()
        applied.update(positions)
        return made[training]


def variable_ids(sources: Sequence[Any]) -> frozenset[int]:
    """Identifies the variables among what a gradient is taken with respect to."""
    return frozenset(id(container(each)) for each in sources if isinstance(each, tf.Variable | Variable))
