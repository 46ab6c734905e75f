"""A server that lies about the model: `python -m tests.support.lying_server serve`.

It is the real one, but its model after the second sum, and after each later one, has a row of 1e6 in place of item 0.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from aggregator_service.cli import main
from protocols.recipes.rows import FactorModel

_honest = FactorModel.absorb


def _lying(self: FactorModel, state: Any, spec: Any, total: Any, contributions: int) -> Any:
    after: Any = _honest(self, state, spec, total, contributions)
    if spec.sum_index < 2:
        return after
    factors = after.item_factors.copy()
    factors[0] = 1e6
    return replace(after, item_factors=factors)


FactorModel.absorb = _lying  # type: ignore[method-assign]

if __name__ == "__main__":
    main()
