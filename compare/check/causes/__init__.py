"""The catalogue of causes, one module per family.

A cause is one entry in its family's ``CAUSES``: recogniser, texts, a wrong line and the line that fixes it. Its proof
lives elsewhere: a planted loop in ``tests/corpus``, the fix applied in ``tests/test_advice.py``, its id in
``tests/test_check_report.py``, and a measured example on the page of traps (``STAGES`` in ``tests/corpus/traps.py``,
what only this page says in ``scripts/pages/templates/causes.toml``, then ``python scripts/traps.py --only ID``). The
tests name each of these that is missing.
"""

from compare.check.causes import data, layers, loss, loss_of_examples, not_finite, optimizer, reporting, step
from compare.check.causes.base import Cause

CATALOGUE: dict[str, Cause] = {
    cause.id: cause
    for cause in (
        *not_finite.CAUSES,
        *loss.CAUSES,
        *loss_of_examples.CAUSES,
        *step.CAUSES,
        *layers.CAUSES,
        *optimizer.CAUSES,
        *data.CAUSES,
        *reporting.CAUSES,
    )
}

__all__ = ["CATALOGUE", "Cause"]
