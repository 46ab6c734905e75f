"""Numbering of the ids of a column that is read in parts: every distinct id once, one number a row."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

__all__ = ["Numbering"]

Ids = NDArray[Any]
_MERGE_AT: Final = 2_000_000  # distinct ids of parts, before they are merged


class Numbering:
    """Collects ids part by part; `finish` numbers them from 0 in ascending order.

    Ids are integers if those of all parts are, otherwise text. Memory: 4 bytes a row and the distinct ids.
    """

    def __init__(self) -> None:
        self._known: Ids = np.zeros(0, np.int64)
        self._codes: list[NDArray[np.int32]] = []  # numbers in `_known`
        self._fresh: list[tuple[Ids, NDArray[np.int32]]] = []  # parts of their own
        self._waiting = 0

    def add(self, ids: Ids) -> None:
        """Add the ids of the next rows: int64 or UTF-8 bytes (rows,)."""
        distinct, codes = np.unique(ids, return_inverse=True)
        self._fresh.append((distinct, codes.astype(np.int32)))
        self._waiting += distinct.size
        if self._waiting > max(_MERGE_AT, self._known.size):
            self._merge()

    def finish(self) -> tuple[Ids, NDArray[np.int32]]:
        """Return the distinct ids, int64 or str (ids,), ascending, and the number of each row's id, int32 (rows,)."""
        self._merge()
        codes = np.concatenate(self._codes) if self._codes else np.zeros(0, np.int32)
        self._codes = []
        known = self._known
        return (known if known.dtype.kind == "i" else np.strings.decode(known, "utf-8")), codes

    def _merge(self) -> None:
        parts = [self._known, *(distinct for distinct, _ in self._fresh)]
        parts = [part for part in parts if part.size] or [self._known]
        if any(part.dtype.kind == "S" for part in parts):
            parts = [_as_text(part) for part in parts]
        known = np.unique(np.concatenate(parts))
        text = known.dtype.kind == "S"

        def moved(ids: Ids) -> NDArray[np.int32]:
            return np.searchsorted(known, _as_text(ids) if text else ids).astype(np.int32)

        old = moved(self._known)
        self._codes = [old[codes] for codes in self._codes]
        self._codes += [moved(distinct)[codes] for distinct, codes in self._fresh]
        self._known, self._fresh, self._waiting = known, [], 0


def _as_text(ids: Ids) -> Ids:
    return ids if ids.dtype.kind == "S" else ids.astype(np.bytes_)
