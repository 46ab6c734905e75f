"""The fields of one column of many rows as an array of bytes, and their conversion without a loop over the rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

__all__ = ["Cells", "Span", "gather", "split_lines", "text_cells"]

Bytes = NDArray[np.uint8]
Span = tuple[NDArray[np.int64], NDArray[np.int64]]
"""Start and end of each field in a buffer."""

_MOST_DIGITS: Final = 18  # fit in int64
_NUMBER: Final = np.zeros(256, bool)
_NUMBER[np.frombuffer(b"0123456789+-.eE\0", np.uint8)] = True
_BLANK: Final = np.zeros(256, bool)
_BLANK[np.frombuffer(b" \t\r", np.uint8)] = True


@dataclass(frozen=True, eq=False)
class Cells:
    """Fields of one column, without blanks around them.

    matrix: uint8 (longest, rows), byte j of each field, 0 behind its end. lengths: int64 (rows,), in bytes.
    """

    matrix: Bytes
    lengths: NDArray[np.int64]

    def texts(self) -> NDArray[np.bytes_]:
        """Return the fields as UTF-8, S (rows,)."""
        width = max(1, self.matrix.shape[0])
        rows = np.zeros((self.lengths.size, width), np.uint8)
        rows[:, : self.matrix.shape[0]] = self.matrix.T
        return rows.view(f"S{width}")[:, 0]

    def text(self, row: int) -> str:
        """Return one field, shortened to 40 characters."""
        return bytes(self.matrix[: self.lengths[row], row]).decode()[:40]

    def integers(self) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """Return the values of the fields that are integers in their shortest form, int64 (rows,), and which are.

        The shortest form has no plus sign and no leading zero, and at most 18 digits. Other fields have any value.
        """
        rows = self.lengths.size
        if not self.matrix.shape[0]:
            return np.zeros(rows, np.int64), np.zeros(rows, bool)
        negative = self.matrix[0] == ord("-")
        digits = self.lengths - negative
        good = (digits >= 1) & (digits <= _MOST_DIGITS)
        values = np.zeros(rows, np.int64)
        for place, column in enumerate(self.matrix[: _MOST_DIGITS + 1]):
            digit = column - np.uint8(ord("0"))  # wraps for smaller codes
            here = place < self.lengths
            if place == 0:
                here = here & ~negative
            good &= ~here | (digit <= 9)
            values = np.where(here, values * 10 + digit, values)
        second = self.matrix[1] if self.matrix.shape[0] > 1 else np.zeros(rows, np.uint8)
        leading = np.where(negative, second, self.matrix[0]) == ord("0")
        good &= ~leading | ((digits == 1) & ~negative)
        return np.where(negative, -values, values), good

    def numbers(self) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
        """Return the values of the fields that are numbers, float64 (rows,), and which are. NaN is no number."""
        values, good = self.integers()
        if good.all():
            return values.astype(np.float64), good
        allowed = _NUMBER[self.matrix].all(axis=0) & (self.lengths > 0)
        found = np.full(self.lengths.size, np.nan)
        texts = self.texts()
        try:
            found[allowed] = texts[allowed].astype(np.float64)
        except ValueError:  # of the few distinct texts, find those that are no number
            distinct, inverse = np.unique(texts[allowed], return_inverse=True)
            found[allowed] = np.array([_float(text) for text in distinct])[inverse]
        return found, np.isfinite(found)


def _float(text: bytes) -> float:
    try:
        return float(text)
    except ValueError:
        return float("nan")


def split_lines(data: bytes, separator: bytes, width: int, columns: Sequence[int]) -> tuple[list[Span], int | None]:
    """Return the spans of `columns` in lines with `width` fields, and None, or no span and the first line, from 0, with
    another number of fields.

    data: lines, each with a line feed. separator: one or two bytes.
    """
    buffer = np.frombuffer(data, np.uint8)
    ends = np.flatnonzero(buffer == ord("\n"))
    places = _places(buffer, separator)
    counts = np.diff(np.searchsorted(places, ends), prepend=0)
    wrong = np.flatnonzero(counts != width - 1)
    if wrong.size:
        return [], int(wrong[0])
    starts = np.concatenate([[0], ends[:-1] + 1])
    table = places.reshape(ends.size, width - 1)
    spans = []
    for column in columns:
        start = starts if column == 0 else table[:, column - 1] + len(separator)
        end = ends if column == width - 1 else table[:, column]
        spans.append(_stripped(buffer, start, end))
    return spans, None


def _places(buffer: Bytes, separator: bytes) -> NDArray[np.intp]:
    if len(separator) == 1:
        return np.flatnonzero(buffer == separator[0])
    both = (buffer[:-1] == separator[0]) & (buffer[1:] == separator[1])
    if separator[0] == separator[1]:  # of ":::", the first two bytes are the separator
        both[1:] &= ~both[:-1]
    return np.flatnonzero(both)


def _stripped(buffer: Bytes, starts: NDArray[np.int64], ends: NDArray[np.int64]) -> Span:
    """Return the spans without blanks at both ends."""
    starts, ends = starts.copy(), ends.copy()
    while (blank := (starts < ends) & _BLANK[buffer[starts]]).any():
        starts += blank
    while (blank := (starts < ends) & _BLANK[buffer[ends - 1]]).any():
        ends -= blank
    return starts, ends


def gather(data: bytes, span: Span) -> Cells:
    """Return the fields at `span` of `data`."""
    buffer, (starts, ends) = np.frombuffer(data, np.uint8), span
    lengths = ends - starts
    matrix = np.zeros((int(lengths.max(initial=0)), lengths.size), np.uint8)
    for place, column in enumerate(matrix):
        np.multiply(buffer[np.minimum(starts + place, buffer.size - 1)], place < lengths, out=column)
    return Cells(matrix, lengths)


def text_cells(values: Sequence[str]) -> Cells:
    """Return the fields `values`, without blanks around them."""
    encoded: NDArray[Any] = np.strings.encode(np.strings.strip(np.array(values, dtype=np.str_)), "utf-8")
    width = encoded.dtype.itemsize
    matrix = np.ascontiguousarray(encoded).view(np.uint8).reshape(encoded.size, width).T
    return Cells(matrix, np.strings.str_len(encoded).astype(np.int64))
