"""A pydantic validation error as one line of text."""

from __future__ import annotations

from collections.abc import Iterable
from re import fullmatch

from pydantic import ValidationError

__all__ = ["first_fault"]


def first_fault(error: ValidationError, known: Iterable[str] = ()) -> str:
    """Return the first error as one line without the input's value; unknown names come before other errors.

    known: the valid names, which the text lists after an unknown name.
    """
    faults = error.errors(include_url=False, include_input=False)
    first = next((fault for fault in faults if fault["type"] == "extra_forbidden"), faults[0])
    where = "".join(f"{_printable(part)}: " for part in first["loc"])
    if first["type"] == "extra_forbidden":
        names = ", ".join(known)
        return f"{where}unknown name" + (f"; choose from: {names}" if names else "")
    if first["type"] == "missing":
        return f"{where}is required"
    return f"{where}{first['msg'].removeprefix('Value error, ')}"


def _printable(part: int | str) -> str:
    """Return a part of a location if it is a plain name or number; other text from the request is not repeated."""
    return str(part) if fullmatch(r"[A-Za-z0-9_]{1,40}", str(part)) else "(invalid name)"
