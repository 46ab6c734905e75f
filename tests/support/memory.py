"""How much memory some work takes."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from typing import TypeVar

Made = TypeVar("Made")


def peak_of(work: Callable[[], Made]) -> tuple[Made, int]:
    """Return what `work` returns, and the bytes that were allocated at the same time, at most, while it ran."""
    tracemalloc.start()
    try:
        made = work()
        return made, tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
