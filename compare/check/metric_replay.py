"""What a trainer prints for an epoch, against what the weights it had at the time give."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import tensorflow as tf

from compare.check.case import Case
from compare.check.recipe import GIVEN, Parts, Reading, Recipe, mean_of_means
from compare.check.replay import Batch, Pieces, length
from compare.engine.strategies import keras_version

ALL, TRAIN, VALIDATION = "all", "train", "validation"


@dataclass(frozen=True)
class Cell:
    """One replica's part of one batch: mean loss, penalty, the trained loss, examples, and what they gave.

    ``right`` is from the experiment's loss and weights, ``trained`` from those that the trainer differentiates.
    """

    loss: float
    penalty: float
    own: float
    examples: int
    y: Any
    right: Pieces
    trained: Pieces


Table = list[list[Cell]]
"""``[batch][replica]``; a replica without examples is left out."""


class ReadingTable:
    """The numbers of a trainer's two epochs, cell by cell.

    Args:
        case: the trainer's case.
        recipe: how its gradients come about, as far as that is known.
    """

    def __init__(self, case: Case, recipe: Recipe) -> None:
        self.case, self.recipe, self.replay = case, recipe, case.replay
        self._validation: dict[tuple[int, bool, bool], Table] = {}
        self.measured: dict[Any, dict[str, float]] = {}

    @cached_property
    def train(self) -> dict[int, Table] | None:
        """Per epoch the training batches; None where nobody knows which they were."""
        steps = self.case.passes
        feed = self.case.feed(self.recipe) if steps is self.case.steps else self.recipe.feed or self.case.expected
        if feed is None or len(feed) != len(steps):
            return None
        tables: dict[int, Table] = {epoch: [] for epoch in self.case.epochs}
        for step, place in zip(steps, feed, strict=True):
            parts = self.replay.parts(place)
            split = Parts(tuple(part.stop - part.start for part in parts), self.replay.global_batch_size)
            row = []
            for replica, part in enumerate(parts):
                if part.stop > part.start:
                    right = self.replay.pieces(step, replica, part, self._right(self.recipe))
                    own = self.replay.pieces(step, replica, part, self.recipe)
                    row.append(self._cell(right, own, self.replay.batch(part), split, replica))
            tables[step.epoch].append(row)
        return tables

    def validation(self, epoch: int, *, training: bool, sample_weights: bool) -> Table:
        """The validation batches after an epoch, through the weights that it ended with."""
        key = epoch, training, sample_weights
        if key not in self._validation:
            seen = self.case.seen
            states = [list(state) for state in seen.trained.get(epoch, seen.ended[epoch])]
            table = []
            for batch in self.replay.validation:
                parts = self.replay.divided(batch)
                split = Parts(tuple(length(part) for part in parts), self.replay.global_batch_size)
                row = []
                for replica, part in enumerate(parts):
                    if length(part):
                        recipe = Recipe(training=training, sample_weights=sample_weights)
                        right = own = self.replay.forward(states[replica], part, recipe)
                        if self.recipe != self._right(self.recipe):
                            wrong = replace(self.recipe, training=training)
                            own = self.replay.forward(states[replica], part, wrong)
                        states[replica] = right.state  # dropout's seeds go on from batch to batch
                        row.append(self._cell(right, own, part, split, replica))
                table.append(row)
            self._validation[key] = table
        return self._validation[key]

    @staticmethod
    def _right(recipe: Recipe) -> Recipe:
        """The same forward pass, with the experiment's loss."""
        return replace(recipe, loss=GIVEN, sample_weights=True, class_weights=True)

    def _cell(self, right: Pieces, own: Pieces, part: Batch, split: Parts, replica: int) -> Cell:
        share = self.recipe.share(split)[replica] * split.replicas
        trained = share * own.loss + self.recipe.regularization * own.penalty
        loss = mean_of_means(split)[replica] * split.replicas * right.loss
        return Cell(loss, right.penalty, trained, split.sizes[replica], part[1], right, own)


class ReadingCase:
    """One reported metric, of training or of validation."""

    def __init__(self, table: ReadingTable, key: str) -> None:
        self.table, self.key = table, key
        self.part = VALIDATION if key.startswith("val_") else TRAIN
        self.name = key.removeprefix("val_")
        self.replicas = table.replay.replicas

    @property
    def is_loss(self) -> bool:
        return self.name == "loss" or self.of_output

    @property
    def of_output(self) -> bool:
        """Whether it is the loss of one of several outputs, which Keras reports beside their sum."""
        return self.name in self.table.replay.output_losses

    @property
    def right(self) -> Reading:
        """How ``fit`` comes to its number.

        Keras 3 counts an output's loss by the static size of a batch, which is open in a data set: so it
        is the plain mean over what each replica has of each batch, short or not, unlike the total.
        """
        return Reading(per="parts" if self.of_output and keras_version().startswith("3") else "examples")

    @property
    def validation_batches(self) -> int:
        return len(self.table.replay.validation)

    @property
    def weighted(self) -> bool:
        """Whether the examples have weights."""
        return len(self.table.replay.validation[0]) == 3 if self.part == VALIDATION else self.table.replay.weighted

    def known(self) -> bool:
        """Whether this metric can be recomputed."""
        there = self.is_loss or self.name in self.table.replay.metrics
        return there and (self.part == VALIDATION or self.table.train is not None)

    def residual(self, reading: Reading) -> float:
        """The largest relative distance of any epoch's reported number from the reading."""
        worst = 0.0
        for epoch, logs in self.table.case.seen.logs.items():
            if epoch not in self.table.case.epochs:
                continue
            if self.key not in logs:
                return np.inf
            value, reported = self.value(reading, epoch), logs[self.key]
            if np.isnan(value) and np.isnan(reported):
                continue
            off = abs(value - reported) / (max(abs(value), abs(reported)) or 1.0)
            worst = max(worst, np.inf if np.isnan(off) else off)
        return worst

    def value(self, reading: Reading, epoch: int) -> float:
        """What a trainer that reads this way would report."""
        earlier = [each for each in self.table.case.epochs if each < epoch]
        rows = self._rows(reading, self.part, epoch)
        batches = len(rows)
        if reading.carry in ("own", "sum"):
            rows = [row for each in earlier for row in self._rows(reading, self.part, each)] + rows
        elif reading.carry in ("shared", "everything"):
            before = [(each, part) for each in earlier for part in (TRAIN, VALIDATION)]
            taken = before if reading.carry == "everything" else []
            taken = [*taken, (epoch, TRAIN)] if self.part == VALIDATION else taken
            rows = [row for each, part in taken for row in self._rows(reading, part, each)] + rows
        cells = [cell for row in rows for cell in row]
        if not cells:
            return np.nan
        if not self.is_loss:
            # Many metrics come of the same cells.
            key = replace(reading, per="", scale=1.0, regularization=True), self.part, epoch
            if key not in self.table.measured:
                self.table.measured[key] = self._measure(cells, reading)
            return self.table.measured[key][self.name]
        if reading.per == "parts":
            return float(reading.scale * np.mean([self._loss(cell, reading) for cell in cells]))
        if reading.per == "examples":
            total = sum(cell.examples * self._loss(cell, reading) for cell in cells)
            return reading.scale * total / sum(cell.examples for cell in cells)
        by_examples = reading.per == "batches-of-examples"
        sums = sum(
            np.average(
                [self._loss(cell, reading) for cell in row],
                weights=[cell.examples if by_examples else 1 for cell in row],
            )
            for row in rows
        )
        return float(reading.scale * sums / (batches if reading.carry == "sum" else len(rows)))

    def _rows(self, reading: Reading, part: str, epoch: int) -> Table:
        if part == TRAIN:
            rows = (self.table.train or {}).get(epoch, [])
        else:
            rows = self.table.validation(epoch, training=reading.training, sample_weights=reading.sample_weights)
            rows = rows[: reading.batches]
        return rows if reading.replica is None else [row[reading.replica : reading.replica + 1] for row in rows]

    def _loss(self, cell: Cell, reading: Reading) -> float:
        if self.of_output:
            return (cell.trained if reading.own_loss else cell.right).outputs[self.name]
        if reading.own_loss:
            return cell.own
        return cell.loss + cell.penalty * reading.regularization

    def _measure(self, cells: Sequence[Cell], reading: Reading) -> dict[str, float]:
        # All at once: a state that adds up over batches does not care how they were cut.
        pieces = [cell.trained if reading.own_loss else cell.right for cell in cells]
        y = _joined([cell.y for cell in cells])
        predictions = _joined([each.predictions for each in pieces])
        weights = None if pieces[0].weights is None else _joined([each.weights for each in pieces])
        masks = [None if parts[0] is None else _joined(parts) for parts in zip(*(p.masks for p in pieces), strict=True)]
        return self.table.replay.measure(y, predictions, weights, masks)


def _joined(parts: Sequence[Any]) -> Any:
    return tf.nest.map_structure(lambda *each: np.concatenate([np.asarray(part) for part in each]), *parts)
