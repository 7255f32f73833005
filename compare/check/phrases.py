"""How a sentence takes up quantities: names, choices of words and numbers."""

from __future__ import annotations

import math
import string
from collections.abc import Mapping, Sequence
from typing import Any

from compare.naming import listed, some
from compare.records.metrics_csv import shortest


class _Sentences(string.Formatter):
    """Puts names and choices of words into a sentence, besides what ``str.format`` does."""

    def get_value(self, key: int | str, args: Sequence[Any], quantities: Mapping[str, Any]) -> Any:
        """Returns a quantity; None if it is one that a measurement of the kind may lack."""
        return quantities.get(key) if key in OPTIONAL else super().get_value(key, args, quantities)

    def format_field(self, value: Any, spec: str) -> str:
        """Formats a list by ``some``, ``count``, ``each`` or the word between its names, and by ``one|many`` a number.

        A truth value counts as ``one`` if it is true. ``?`` begins words that are left out where there is no such
        quantity, ``or`` those in its place; ``finite`` begins those for a finite number, and for another one.
        ``exact`` gives all digits of a number, since another one beside it may differ in the last of them.
        """
        kind, _, words = spec.partition(" ")
        if spec.startswith("?"):
            return spec[1:] if value else ""
        if kind == "finite":
            return words.split("|")[not is_finite(value)]
        if "|" in spec:
            return spec.split("|")[(len(value) if isinstance(value, list | tuple) else value) != 1]
        if kind == "or":
            return self.format_field(value, "") if value else words
        if spec == "exact":
            return shortest(value)
        if isinstance(value, Mapping):
            return ", ".join(f"{name}={each}" for name, each in value.items())
        if not isinstance(value, list | tuple):
            return "None" if value is None else str(super().format_field(value, spec))
        if kind == "count":
            return str(len(value))
        texts = [self.format_field(each, words) if kind == "each" else str(each) for each in value]
        if kind == "and":
            return listed(texts)
        return some(texts) if kind == "some" else ", ".join(texts)


SENTENCES = _Sentences()
OPTIONAL = (
    "alone", "divided", "epsilon", "examples", "frozen", "labels", "last", "logits", "output", "predictions",
    "replicas", "state", "training", "when",
)  # fmt: skip


def is_finite(number: float | None) -> bool:
    """Whether a number is finite; in JSON one that is not is null."""
    return number is not None and math.isfinite(number)


def what_is_explained(q: Mapping[str, Any]) -> str:
    """What is explained: what the optimizer was seen to do in so many steps or epochs, or a reported number."""
    return EXPLAINED[q["explains"]].format_map(q)


EXPLAINED = {
    "gradients": "the gradients of all {places} steps",
    "updates": "all {places} updates",
    "weights after steps": "the weights after all {places} steps",
    "weights after epochs": "the weights after all {places} epochs",
    "metric": "{metric}",
}
"""What a cause may explain, by its id."""


SHARE = (
    "1/{replicas} of the {alone:?examples' }loss, on {replicas} replicas{alone:?, and has all of the layers' losses}"
    "{divided:? (Keras's loss object divides by the number of replicas inside strategy.run)}"
)
