"""Reader of lines of whole numbers, in bounded memory and without a loop over lines."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from client_sdk.data.cells import gather
from client_sdk.data.chunks import Chunk, chunks
from client_sdk.data.errors import DataError

__all__ = ["read_id_lists"]

_LONGEST: Final = 15  # digits


def read_id_lists(path: Path, separators: str = " \t") -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Read lines of one or more integers. Return all integers, int64 (total,), and the count per line, int64 (lines,).

    separators: characters that separate numbers, in any number. Raises `DataError`, with the line number, for a
    malformed or blank line.
    """
    outside = np.zeros(256, bool)
    outside[np.frombuffer(f"{separators}\r\n".encode(), np.uint8)] = True
    parts = [_parsed(path, chunk, outside) for chunk in chunks(path)]
    numbers, lengths = zip(*parts, strict=True)
    return np.concatenate(numbers), np.concatenate(lengths)


def _parsed(path: Path, chunk: Chunk, outside: NDArray[np.bool_]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    buffer = np.frombuffer(chunk.data, np.uint8)
    gap = outside[buffer]
    before = np.concatenate([[True], gap[:-1]])
    starts = np.flatnonzero(~gap & before)
    ends = np.flatnonzero(gap & ~before)
    line = np.searchsorted(np.flatnonzero(buffer == ord("\n")), starts)
    lengths = np.bincount(line, minlength=chunk.data.count(b"\n")).astype(np.int64)
    if not lengths.all():
        raise DataError("a blank line in the middle of the file", path, chunk.line + int(np.argmin(lengths)))
    long = ends - starts > _LONGEST
    cells = gather(chunk.data, (starts, np.minimum(ends, starts + _LONGEST)))
    digits = (cells.matrix - np.uint8(ord("0")) <= 9) | (cells.matrix == 0)
    wrong = long | ~digits.all(axis=0)
    if wrong.any():
        bad = int(wrong.argmax())
        word = chunk.data[starts[bad] : ends[bad]].decode()[:40]
        raise DataError(f"not a whole number of at least 0: {word!r}", path, chunk.line + int(line[bad]))
    values = np.zeros(starts.size, np.int64)
    for place, column in enumerate(cells.matrix):
        values = np.where(place < cells.lengths, values * 10 + (column - np.uint8(ord("0"))), values)
    return values, lengths
