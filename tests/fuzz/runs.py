"""How much is tried, and from which seed: see docs/fuzzing.md."""

from __future__ import annotations

import os
from random import Random
from typing import Any, Final

from hypothesis import HealthCheck, Phase, settings

__all__ = ["AGAIN", "EXAMPLES", "SEED", "limits"]

_GIVEN: Final = os.environ.get("HUSHREC_FUZZ_EXAMPLES", "")
EXAMPLES: Final = int(_GIVEN or "60")
SEED: Final = int(os.environ.get("HUSHREC_SEED", "0")) or (Random().randrange(1, 2**31) if _GIVEN else 1)
"""The same in every plain run of the suite; another one each time when more is asked for."""
AGAIN: Final = f"HUSHREC_SEED={SEED} HUSHREC_FUZZ_EXAMPLES={EXAMPLES}"


def limits(examples: int, **changes: Any) -> settings:
    """Nothing is shrunk, kept or timed: a server has a past, so the same example need not fail twice."""
    return settings(
        max_examples=max(1, examples),
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
        report_multiple_bugs=False,
        **changes,
    )
