"""What was measured, as numbers and names: the data from which ``words`` makes a sentence when something is shown."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Measurement:
    """One measurement.

    Attributes:
        kind: what was measured; ``words.TEXTS`` has a sentence for each kind.
        quantities: numbers, names and places by name.
    """

    kind: str
    quantities: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, kind: str, /, **quantities: Any) -> Measurement:
        return cls(kind, quantities)

    @classmethod
    def all(cls, parts: Sequence[Measurement]) -> Measurement:
        return parts[0] if len(parts) == 1 else cls.of("several", parts=list(parts))

    @classmethod
    def read(cls, content: Mapping[str, Any]) -> Measurement:
        """A measurement as ``as_json`` gives it."""
        quantities = {name: value for name, value in content.items() if name != "kind"}
        if "parts" in quantities:
            quantities["parts"] = [cls.read(part) for part in quantities["parts"]]
        return cls(content["kind"], quantities)

    def but(self, **quantities: Any) -> Measurement:
        return Measurement(self.kind, {**self.quantities, **quantities})

    def __hash__(self) -> int:
        return hash((self.kind, repr(self.quantities)))

    def as_json(self) -> dict[str, Any]:
        """Its kind and its quantities as JSON has them; a number that is not finite is null."""
        return {"kind": self.kind, **{name: _plain(value) for name, value in self.quantities.items()}}


def _plain(value: Any) -> Any:
    if isinstance(value, Measurement):
        return value.as_json()
    if isinstance(value, Mapping):
        return {str(name): _plain(each) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(each) for each in value]
    if isinstance(value, np.generic):
        return _plain(value.item())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value if value is None or isinstance(value, (bool, int, float, str)) else str(value)
