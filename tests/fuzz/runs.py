"""The number of examples and the seed of fuzz tests; see docs/testing.md."""

from __future__ import annotations

import os
from random import Random
from typing import Any, Final

from hypothesis import HealthCheck, Phase, settings

__all__ = ["AGAIN", "EXAMPLES", "SEED", "limits"]

_GIVEN: Final = os.environ.get("HUSHREC_FUZZ_EXAMPLES", "")
EXAMPLES: Final = int(_GIVEN or "60")
SEED: Final = int(os.environ.get("HUSHREC_SEED", "0")) or (Random().randrange(1, 2**31) if _GIVEN else 1)
"""Fixed in a plain run of the suite; random in longer runs."""
AGAIN: Final = f"HUSHREC_SEED={SEED} HUSHREC_FUZZ_EXAMPLES={EXAMPLES}"


def limits(examples: int, **changes: Any) -> settings:
    """Return settings without shrinking, database or deadline: the server keeps state, so failures may not repeat."""
    return settings(
        max_examples=max(1, examples),
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
        report_multiple_bugs=False,
        **changes,
    )
