"""A validation error in words that a person can act on."""

from __future__ import annotations

from collections.abc import Iterable
from re import fullmatch

from pydantic import ValidationError

__all__ = ["first_fault"]


def first_fault(error: ValidationError, known: Iterable[str] = ()) -> str:
    """The first thing that is wrong, one line, without the input's value; a misspelt name before one that is missing.

    `known` are the names that a misspelt one may have meant.
    """
    faults = error.errors(include_url=False, include_input=False)
    first = next((fault for fault in faults if fault["type"] == "extra_forbidden"), faults[0])
    where = "".join(f"{_shown(part)}: " for part in first["loc"])
    if first["type"] == "extra_forbidden":
        names = ", ".join(known)
        return f"{where}there is no such name" + (f"; there are: {names}" if names else "")
    if first["type"] == "missing":
        return f"{where}is needed and was not given"
    return f"{where}{first['msg'].removeprefix('Value error, ')}"


def _shown(part: int | str) -> str:
    """A place in the input, as far as it is a plain name or number: what a stranger wrote is not repeated."""
    return str(part) if fullmatch(r"[A-Za-z0-9_]{1,40}", str(part)) else "(a name that is none)"
