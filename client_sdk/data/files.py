"""Reading text files of numbers: gzip transparently, whole arrays at a time, and the exact line of a fault.

A file is parsed in one go; only when that fails, or does not account for every line, a second, slow pass looks for
the line to blame. No line is ever skipped: a blank one is a fault unless nothing but blank lines follows it.
"""

from __future__ import annotations

import gzip
import io
import re
import zlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from client_sdk.data.errors import DataError

__all__ = ["find_file", "first_existing", "read_id_lists", "read_table", "read_text", "require_ids"]

GZIP_MAGIC: Final = b"\x1f\x8b"
NUMBER: Final = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?", re.ASCII)
INTEGER: Final = re.compile(r"\d{1,15}", re.ASCII)
LARGEST_ID: Final = 10**15  # exact as float64 and, as INTEGER says, 15 digits


def first_existing(folders: Iterable[Path], name: str) -> Path | None:
    """`name` or `name.gz` in the first of `folders` that has one of them."""
    for folder in folders:
        for path in (folder / name, folder / f"{name}.gz"):
            if path.is_file():
                return path
    return None


def find_file(folders: Sequence[Path], name: str) -> Path:
    """As `first_existing`, but `DataError` says where it was looked for when there is none."""
    found = first_existing(folders, name)
    if found is None:
        raise DataError(f"no {name} (nor {name}.gz) in {' or '.join(str(folder) for folder in folders)}")
    return found


def read_text(path: Path) -> str:
    """The file's text, unpacked when it is gzip (told by its first bytes); trailing blank lines are cut off.

    Raises `DataError` for a file that is missing, empty, cut off or not UTF-8.
    """
    data = b""
    try:
        raw = path.read_bytes()
        data = gzip.decompress(raw) if raw.startswith(GZIP_MAGIC) else raw
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError("not UTF-8 text", path, data.count(b"\n", 0, error.start) + 1) from error
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise DataError("a damaged or incomplete gzip file", path) from error
    except OSError as error:
        raise DataError(f"cannot be read: {error.strerror or error}", path) from error
    if not text.strip():
        raise DataError("the file is empty", path)
    return text.replace("\r\n", "\n").rstrip(" \t\n") + "\n"


def read_table(path: Path, separator: str, columns: Sequence[str], *, optional: int = 0) -> NDArray[np.float64]:
    """A table of numbers, float64 (lines, columns found); up to `optional` of the last `columns` may be missing.

    `DataError` names the first line that has another number of fields than the first one, or a field that is not a
    finite number.
    """
    text = read_text(path)
    lines = text.count("\n")
    found = text[: text.index("\n")].count(separator) + 1
    if not len(columns) - optional <= found <= len(columns):
        raise _first_fault(path, text, separator, columns, optional)
    try:
        table = _parse(text, separator)
    except ValueError as error:
        raise _first_fault(path, text, separator, columns, optional) from error
    if table.shape != (lines, found) or not np.isfinite(table).all():
        raise _first_fault(path, text, separator, columns, optional)
    return table


def _parse(text: str, separator: str) -> NDArray[np.float64]:
    """numpy's own reader takes one-character separators only, so a longer one becomes a tab (not a tab before)."""
    if len(separator) > 1:
        if "\t" in text:
            raise ValueError("a tab in a file that is not separated by tabs")
        text, separator = text.replace(separator, "\t"), "\t"
    return np.loadtxt(io.StringIO(text), delimiter=separator, comments=None, ndmin=2)


def _first_fault(path: Path, text: str, separator: str, columns: Sequence[str], optional: int) -> DataError:
    """Line by line, what is wrong with the first bad one."""
    expected: int | None = None
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip():
            return DataError("a blank line in the middle of the file", path, number)
        fields = line.split(separator)
        if not len(columns) - optional <= len(fields) <= len(columns):
            wanted = " ".join(columns)
            return DataError(f"{len(columns)} fields were expected ({wanted}), found {len(fields)}", path, number)
        expected = expected or len(fields)
        if len(fields) != expected:
            return DataError(f"{len(fields)} fields, but {expected} in the lines before", path, number)
        for name, field in zip(columns, fields, strict=False):
            if not NUMBER.fullmatch(field.strip()):
                return DataError(f"the {name} is not a number: {field[:40]!r}", path, number)
    return DataError("the file is not a table of numbers", path)


def require_ids(path: Path, name: str, values: NDArray[np.float64]) -> NDArray[np.int64]:
    """`values` (lines,) as int64 ids; `DataError` names the first line whose value is not a whole number >= 0."""
    bad = np.flatnonzero((values < 0) | (values >= LARGEST_ID) | (values != np.floor(values)))
    if bad.size:
        raise DataError(
            f"the {name} must be a whole number of at least 0, got {values[bad[0]]:.15g}", path, int(bad[0]) + 1
        )
    return values.astype(np.int64)


def read_id_lists(path: Path, separators: str = " \t") -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Lines of whole numbers, of any length >= 1: all numbers in a row, and how many each line has (both int64).

    Every character of `separators` separates, runs of them count as one; `DataError` names the first bad line.
    """
    text = read_text(path).translate({ord(character): " " for character in separators})
    rows = [line.split() for line in text.split("\n")[:-1]]
    lengths = np.array([len(row) for row in rows], dtype=np.int64)
    if not lengths.all():
        raise DataError("a blank line in the middle of the file", path, int(np.argmin(lengths)) + 1)
    # One check and one conversion for the whole file; digits alone, so that "1.5" and "-1" are seen.
    words = text.split()
    if not (text.isascii() and "".join(words).isdigit() and max(map(len, words)) <= 15):
        for number, row in enumerate(rows, start=1):
            for word in row:
                if not INTEGER.fullmatch(word):
                    raise DataError(f"not a whole number of at least 0: {word[:40]!r}", path, number)
    return np.array(words).astype(np.int64), lengths
