"""The description of a key that a benchmark writes, and the patterns that describe a family of keys.

    {a,b}    one of these texts
    [x]      `x`, or nothing; may hold alternatives
    <name>   one part of the key, without a full stop
    <run>    the key of a run, of one or more parts

Of several rows that match a key, the first describes it, so that the special cases come before `<run>`.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Literal

__all__ = ["Key", "Sign", "at_least", "at_most", "faults", "row_of"]

Sign = Literal["<=", ">="]

_TOKENS: Final = {"{": "(?:", "}": ")", ",": "|", "[": "(?:", "]": ")?"}
_PARTS: Final = re.compile(r"<\w+>|.")


@dataclass(frozen=True)
class Key:
    """One key, or a family of keys that `pattern` matches. A key with a target is written out in full.

    unit: of the value; empty for a number without a unit, `bool` or `text`. bound: the target, None without one.
    """

    pattern: str
    unit: str
    meaning: str
    bound: tuple[Sign, float] | None = None

    def matches(self, key: str) -> bool:
        """Whether the pattern matches `key`."""
        return self.form(key) is not None

    def form(self, key: str) -> str | None:
        """`key` without the parts that the pattern leaves open, equal for all sizes and runs; None without a match."""
        found = re.fullmatch(_expression(self.pattern), key)
        if found is None:
            return None
        for place in range(found.re.groups, 0, -1):
            key = f"{key[: found.start(place)]}<>{key[found.end(place) :]}"
        return key


def at_most(pattern: str, bound: float, unit: str, meaning: str) -> Key:
    """A key whose value must not be greater than `bound`."""
    return Key(pattern, unit, meaning, ("<=", bound))


def at_least(pattern: str, bound: float, unit: str, meaning: str) -> Key:
    """A key whose value must not be less than `bound`."""
    return Key(pattern, unit, meaning, (">=", bound))


def row_of(key: str, rows: Iterable[Key]) -> Key | None:
    """The first of `rows` that matches `key`; None when none does."""
    return next((row for row in rows if row.matches(key)), None)


def faults(figures: Collection[str], named: Iterable[str], rows: Sequence[Key]) -> list[str]:
    """What is wrong with the keys of a script: those that no row describes, and `named` ones without their like.

    named: keys that must be there for some size or run.
    """
    written = {form for key in figures for row in rows if (form := row.form(key)) is not None}
    found = [f"key {key} is not described" for key in figures if row_of(key, rows) is None]
    found += [f"key {key} is absent" for key in named if not any(row.form(key) in written for row in rows)]
    return found


def _expression(pattern: str) -> str:
    """The regular expression of a key pattern."""
    parts = []
    for part in _PARTS.findall(pattern):
        if part == "<run>":
            parts.append("(.+)")
        elif part.startswith("<"):
            parts.append(r"([^.]+)")
        else:
            parts.append(_TOKENS.get(part) or re.escape(part))
    return "".join(parts)
