"""Recomputes the numbers that a trainer reports from the weights that it had."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from typing import Any

import numpy as np
import tensorflow as tf

from compare.check.case import Case
from compare.check.recipe import MetricFormula, Recipe, Split
from compare.check.replay_parts import Batch, PassResult, concatenate, length
from compare.check.step_values import relative_gap
from compare.engine.keras_generation import AVERAGES_OUTPUT_LOSSES

TRAIN, VALIDATION = "train", "validation"
BINARY = "BinaryAccuracy"
ACCURACIES = (BINARY, "CategoricalAccuracy", "SparseCategoricalAccuracy")
"""The metrics of Keras that compile makes of "accuracy"."""


@dataclass(frozen=True)
class Cell:
    """One replica's part of one batch.

    Attributes:
        trained_loss: the loss that the trainer differentiates.
        right: the result with the experiment's loss and weights.
        trained: the result with the loss and weights that the trainer differentiates.
    """

    trained_loss: float
    examples: int
    y: Any
    right: PassResult
    trained: PassResult


Table = list[list[Cell]]
"""``[batch][replica]``; replicas without examples are left out."""


class MetricTable:
    """The values of each replica and batch of a trainer's two epochs."""

    def __init__(self, case: Case, recipe: Recipe) -> None:
        self.case, self.recipe, self.replay = case, recipe, case.replay
        right = Recipe()
        of_loss = ("loss", "loss_weights", "sample_weights", "class_weights", "omitted")
        self._right = replace(recipe, **{name: getattr(right, name) for name in of_loss})
        """The recipe with the same forward pass and the experiment's loss."""
        self.validation, self.after = cache(self._validation), cache(self._after)
        self.measured: dict[Any, dict[str, float]] = {}

    @cached_property
    def train(self) -> dict[int, Table] | None:
        """The training batches of each epoch; None if they are unknown."""
        steps = self.case.passes
        feed = self.case.feed(self.recipe) if steps is self.case.steps else self.recipe.feed or self.case.expected
        if feed is None or len(feed) != len(steps):
            return None
        tables: dict[int, Table] = {epoch: [] for epoch in self.case.epochs}
        for step, span in zip(steps, feed, strict=True):
            recipes = self._right, self.recipe
            parts = self.replay.parts(span)
            passes = [
                [self.replay.replica_pass(step, replica, part, recipe) for recipe in recipes]
                for replica, part in enumerate(parts)
                if part.stop > part.start
            ]
            tables[step.epoch].append(self._row([self.replay.batch(part) for part in parts], passes))
        return tables

    def _validation(self, epoch: int, *, training: bool, sample_weights: bool) -> Table:
        """The validation batches, evaluated with the weights at the end of an epoch."""
        observation = self.case.observation
        at_end = observation.last_step_states.get(epoch, observation.epoch_end_states[epoch])
        states = [list(state) for state in at_end]
        table = []
        for batch in self.replay.validation:
            parts, passes = self.replay.divided(batch), []
            for replica, part in enumerate(parts):
                if length(part):
                    recipe = Recipe(training=training, sample_weights=sample_weights)
                    right = trained = self.replay.compute(states[replica], part, recipe)
                    if self.recipe != self._right:
                        wrong = replace(self.recipe, training=training)
                        trained = self.replay.compute(states[replica], part, wrong)
                    states[replica] = right.state  # dropout's seeds advance from batch to batch
                    passes.append((right, trained))
            table.append(self._row(parts, passes))
        return table

    def _after(self, *, training: bool) -> dict[int, Table]:
        """The training batches of each epoch, evaluated with the weights that the step's update has made."""
        tables: dict[int, Table] = {epoch: [] for epoch in self.case.epochs}
        for step, span in zip(self.case.passes, self.case.expected, strict=False):
            parts = self.replay.divided(self.replay.batch(span)) if step.after is not None else []
            states = zip(parts, step.after or (), strict=True)
            seen = [self.replay.compute(x, part, Recipe(training=training)) for part, x in states if length(part)]
            tables[step.epoch].append(self._row(parts, [(each, each) for each in seen]))
        return tables

    def _row(self, parts: Sequence[Batch], passes: Sequence[Sequence[PassResult]]) -> list[Cell]:
        """The cells of a batch's parts that have examples, from the right pass and the trainer's own over each."""
        split = Split(tuple(length(part) for part in parts), self.replay.global_batch_size)
        row = []
        for replica, (right, trained) in zip(np.flatnonzero(split.sizes).tolist(), passes, strict=True):
            share = self.recipe.share(split)[replica] * split.replicas
            trained_loss = share * trained.loss + self.recipe.regularization * trained.penalty
            row.append(Cell(trained_loss, split.sizes[replica], parts[replica][1], right, trained))
        return row


class ReportedMetric:
    """One reported number, such as ``val_loss``, of training or of validation."""

    def __init__(self, table: MetricTable, key: str) -> None:
        self.table, self.key = table, key
        self.part = VALIDATION if key.startswith("val_") else TRAIN
        self.name = key.removeprefix("val_")
        self.replicas = table.replay.replicas
        self.of_output = self.name in table.replay.output_losses
        """Whether this is the loss of one of several outputs, which Keras reports in addition to their sum."""
        self.is_loss = self.name == "loss" or self.of_output

    @property
    def divided(self) -> str:
        """The part, if Keras was seen to divide its loss by the number of replicas; else empty."""
        return self.part if self.is_loss and self.part in self.table.case.divided else ""

    @property
    def right(self) -> MetricFormula:
        """The formula of ``fit``."""
        return MetricFormula(per="parts" if self.of_output and AVERAGES_OUTPUT_LOSSES else "examples")

    @property
    def broadcastable(self) -> bool:
        """Whether labels [n, 1] may meet predictions of shape [n], or the reverse."""
        y = self.table.replay.validation[0][1]
        return not isinstance(y, dict | tuple | list) and (np.ndim(y) == 1 or np.shape(y)[1:] == (1,))

    @property
    def validation_batches(self) -> int:
        return len(self.table.replay.validation)

    @property
    def weighted(self) -> bool:
        return len(self.table.replay.validation[0]) == 3 if self.part == VALIDATION else self.table.replay.weighted

    @property
    def accuracy(self) -> str:
        """The class of Keras's accuracy of this name; empty if the experiment measures something else."""
        model = self.table.replay.model
        compiled = getattr(model, "_compile_metrics", None) or getattr(model, "compiled_metrics", None)
        kinds = {metric.name: type(metric).__name__ for metric in getattr(compiled, "metrics", ())}
        return kinds[self.name] if kinds.get(self.name) in ACCURACIES else ""

    @property
    def other_accuracies(self) -> list[str]:
        """The classes of Keras that are also called accuracy; none if this metric is not one of them."""
        return [kind for kind in ACCURACIES if kind != self.accuracy] if self.accuracy else []

    def known(self) -> bool:
        exists = self.is_loss or self.name in self.table.replay.metrics
        return exists and (self.part == VALIDATION or self.table.train is not None)

    def residual(self, formula: MetricFormula) -> float:
        """The largest relative error of any epoch's reported number under a formula."""
        worst = 0.0
        for epoch, logs in self.table.case.observation.logs.items():
            if epoch not in self.table.case.epochs:
                continue
            if self.key not in logs:
                return np.inf
            values = self._choices(formula, epoch) if formula.chosen else [self.value(formula, epoch)]
            worst = max(worst, min((relative_gap(value, logs[self.key]) for value in values), default=np.inf))
        return worst

    def _choices(self, formula: MetricFormula, epoch: int) -> list[float]:
        """The values over each choice of as many batches as the formula says."""
        rows = self._rows(formula, self.part, epoch)
        return [
            self._of_rows(formula, list(chosen), len(chosen), None)
            for chosen in itertools.combinations(rows, formula.chosen)
        ]

    @property
    def penalties(self) -> int:
        rows = self.table.validation(self.table.case.epochs[0], training=False, sample_weights=True)
        return len(rows[0][0].right.penalties)

    def value(self, formula: MetricFormula, epoch: int) -> float:
        """Returns what a trainer that uses this formula reports for an epoch."""
        earlier = [other for other in self.table.case.epochs if other < epoch]
        own = [(other, self.part) for other in earlier]
        shared = [(epoch, TRAIN)] if self.part == VALIDATION else []
        carried = {
            "nothing": [],
            "own": own,
            "sum": own,
            "shared": shared,
            "validation": [(other, VALIDATION) for other in earlier[-1:]],
            "everything": [*itertools.product(earlier, (TRAIN, VALIDATION)), *shared],
        }
        before = [row for other, part in carried[formula.carry] for row in self._rows(formula, part, other)]
        rows = self._rows(formula, self.part, epoch)
        return self._of_rows(formula, before + rows, len(rows), epoch)

    def _of_rows(self, formula: MetricFormula, rows: Table, batches: int, epoch: int | None) -> float:
        """The value over some batches; that of all batches that an epoch reports is kept."""
        cells = [cell for row in rows for cell in row]
        if not cells:
            return np.nan
        if not self.is_loss and formula.per == "batches":
            return float(np.mean([self._measure(row, formula)[self.name] for row in rows]))
        if not self.is_loss:
            if epoch is None or formula.metric:
                return self._measure(cells, formula)[self.name]
            # All metrics of the same cells are computed at once.
            key = replace(formula, per="", scale=1.0, regularization=1.0), self.part, epoch
            if key not in self.table.measured:
                self.table.measured[key] = self._measure(cells, formula)
            return self.table.measured[key][self.name]
        return formula.mean([[(self._loss(cell, formula), cell.examples) for cell in row] for row in rows], batches)

    def _rows(self, formula: MetricFormula, part: str, epoch: int) -> Table:
        if part == TRAIN and formula.after:
            rows = self.table.after(training=formula.after == "training").get(epoch, [])
        elif part == TRAIN:
            rows = (self.table.train or {}).get(epoch, [])
        else:
            rows = self.table.validation(epoch, training=formula.training, sample_weights=formula.sample_weights)
            rows = rows[: formula.batches]
        if formula.last:
            rows = rows[-1:]
        return rows if formula.replica is None else [row[formula.replica : formula.replica + 1] for row in rows]

    def _loss(self, cell: Cell, formula: MetricFormula) -> float:
        if self.of_output:
            return (cell.trained if formula.trained_loss else cell.right).outputs[self.name]
        if formula.trained_loss:
            return cell.trained_loss
        penalty = sum(value for i, value in enumerate(cell.right.penalties) if i != formula.without)
        return cell.right.loss / cell.examples + penalty * formula.regularization

    def _measure(self, cells: Sequence[Cell], formula: MetricFormula) -> dict[str, float]:
        # In one batch: how examples are batched does not affect a metric that accumulates over them.
        results = [cell.trained if formula.trained_loss else cell.right for cell in cells]
        ys, of_cells = [cell.y for cell in cells], [result.predictions for result in results]
        if not formula.paired:  # each part by itself, and as a mean over its examples
            measured = [self.table.replay.measure(*_every_pair(y, each)) for y, each in zip(ys, of_cells, strict=True)]
            examples = [cell.examples for cell in cells]
            return {
                name: float(np.average([each[name] for each in measured], weights=examples)) for name in measured[0]
            }
        y, predictions = concatenate(ys), concatenate(of_cells)
        if formula.metric:
            return {self.name: _accuracy(formula.metric, y, predictions)}
        weights = None if results[0].weights is None else concatenate([result.weights for result in results])
        masks = [
            None if parts[0] is None else concatenate(parts)
            for parts in zip(*(result.masks for result in results), strict=True)
        ]
        return self.table.replay.measure(y, predictions, weights, masks)


def _accuracy(kind: str, y: Any, predictions: Any) -> float:
    """An accuracy of Keras, of labels as they are or, where that is impossible, as one-hot vectors."""
    if tf.nest.is_nested(y) or tf.nest.is_nested(predictions):
        return np.nan
    labels = np.asarray(y)
    if kind == BINARY and labels.size * predictions.shape[-1] == predictions.size and predictions.shape[-1] > 1:
        labels = np.eye(predictions.shape[-1], dtype=np.float32)[labels.reshape(-1).astype(int)]
    try:
        metric = getattr(tf.keras.metrics, kind)()
        metric.update_state(labels, predictions)
        return float(metric.result())
    except (ValueError, IndexError, tf.errors.OpError):
        return np.nan


def _every_pair(y: Any, predictions: Any) -> tuple[np.ndarray, np.ndarray]:
    """Each label with the prediction of every example, as broadcasting [n, 1] against [n] computes."""
    labels, outputs = np.asarray(y), np.asarray(predictions)
    return np.repeat(labels, len(outputs), axis=0), np.concatenate([outputs] * len(labels))
