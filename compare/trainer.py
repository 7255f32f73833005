"""The ``Trainer`` protocol: an object with a name and a method ``train``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from compare.engine.run import Run


class Trainer(Protocol):
    """A way of training a model.

    A trainer takes everything from its ``Run``. It calls ``run.end_step()`` after every optimizer step and
    ``run.end_epoch(epoch, logs)`` after every epoch. Every training has a copy of the trainer, made as it
    was given, so attributes that ``train`` sets are not seen in it afterwards.

    Attributes:
        name: name of the trainer in file names, tables and plots.
    """

    name: str

    def train(self, run: Run) -> None:
        """Trains for ``run.epochs``, and reports every step and epoch to ``run``."""
