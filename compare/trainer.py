"""What a trainer is: anything with a name and a ``train``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from compare.engine.run import Run


class Trainer(Protocol):
    """One way of training.

    A trainer takes everything from its ``Run``, calls ``run.end_step()`` after every optimizer step
    and ``run.end_epoch(epoch, logs)`` after every epoch. It may be called several times, with
    different runs.
    """

    name: str

    def train(self, run: Run) -> None:
        """Train for ``run.epochs``, reporting to ``run``."""
        ...
