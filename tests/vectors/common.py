"""Helpers for the modules that write test vectors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from protocols.errors import HushRecError

__all__ = ["SEED", "error_of"]

SEED: Final = bytes(range(32))


def error_of(call: Callable[[], object]) -> str:
    """Return the name of the error that `call` must raise."""
    try:
        call()
    except HushRecError as error:
        return type(error).__name__
    raise AssertionError("a failing case was accepted")
