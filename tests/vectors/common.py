"""Helpers for the modules that write test vectors."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, Final

from protocols.crypto.domain import digest
from protocols.errors import HushRecError
from protocols.layout import Segment

__all__ = ["SEED", "drawn_for", "error_of", "failures", "load", "refusals", "segment_facts"]

SEED: Final = bytes(range(32))


def load(name: str) -> Any:
    """Return the content of a vector file."""
    return json.loads((Path(__file__).parent / name).read_text())


def error_of(call: Callable[[], object]) -> str:
    """Return the name of the error that `call` must raise."""
    try:
        call()
    except HushRecError as error:
        return type(error).__name__
    raise AssertionError("a failing case was accepted")


def failures(calls: Mapping[str, Callable[[], object]]) -> list[dict[str, str]]:
    """Return what must fail, with its errors."""
    return [{"what": what, "error": error_of(call)} for what, call in calls.items()]


def refusals(bodies: Mapping[str, bytes], call: Callable[[bytes], object]) -> list[dict[str, str]]:
    """Return bodies that `call` must refuse, with its errors."""
    return [{"what": what, "body": body.hex(), "error": error_of(partial(call, body))} for what, body in bodies.items()]


def drawn_for(purpose: str, label: str) -> Callable[[int], bytes]:
    """Made-up randomness: 32 bytes a digest, counted over all calls; a call drops what is left of its last digest."""
    numbers = count()

    def random(size: int) -> bytes:
        return b"".join(digest(purpose, label, next(numbers)) for _ in range(-(-size // 32)))[:size]

    return random


def segment_facts(segment: Segment) -> dict[str, Any]:
    """Return a segment as JSON."""
    return {name: getattr(segment, name) for name in ("name", "length", "clip", "integral", "sum_bound")}
