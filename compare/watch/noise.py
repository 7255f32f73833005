"""Moves the weights of a watched training as rounding does, for a noise twin."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from compare.engine.fingerprints import copies_of
from compare.engine.noise_twins import HalfNoise, half_dtypes, mover
from compare.patching import Inside
from compare.watch.initial_weights import InitialWeights
from compare.watch.settings import Nudge
from compare.watch.trainings import Training
from compare.watch.under_way import Here
from compare.watch.weights import strategy_of


class Noise:
    """The noise of a twin, from the step on where it begins.

    Args:
        inside: calls inside which nothing is looked for.
    """

    def __init__(self, nudge: Nudge | None, initial: InitialWeights, inside: Inside, here: Here) -> None:
        self._nudge, self._initial, self._inside, self._here = nudge, initial, inside, here
        self._half: list[HalfNoise] = []

    def begin_step(self) -> None:
        with self._inside, self._initial.aside:
            for half in self._half:
                half.begin()

    def end_step(self) -> None:
        with self._inside, self._initial.aside:
            for half in self._half:
                half.end()

    def move_initial(self, variables: Sequence[Any]) -> None:
        """Moves the weights that a training begins with."""
        if self._nudge is not None and self._nudge.start <= 1:
            with self._inside, self._initial.aside:
                copies = copies_of(strategy_of(variables), variables)
                mover(copies, self._nudge.twin, self._nudge.units)(tf.constant(1))
                self._move_in_half(self._nudge, variables, copies)

    def move(self, training: Training, step: int) -> None:
        """Moves the weights before or after a step."""
        nudge = self._nudge
        if nudge is None or step < nudge.start_of(training.number):
            return
        assert training.fingerprint is not None
        if training.move is None:
            copies = training.fingerprint.copies
            training.move = mover(copies, nudge.twin, nudge.units)
            if nudge.start > 1:
                self._move_in_half(nudge, training.variables, copies)
        with self._inside, self._initial.aside:
            training.move(tf.constant(2 * step + 1))

    def _move_in_half(self, nudge: Nudge, variables: Sequence[Any], copies: Sequence[Sequence[Any]]) -> None:
        """Has the trained ones among variables moved during each step from now on."""
        trained = [each for variable, each in zip(variables, copies, strict=True) if variable.trainable]
        dtypes = set().union(*map(half_dtypes, self._initial.roots()))
        self._half.append(HalfNoise(trained, dtypes, nudge.twin, nudge.units))
        if self._here.tapes:  # the first step is under way
            self._half[-1].begin()
