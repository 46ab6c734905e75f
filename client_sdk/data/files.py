"""Readers of text files of numbers, plain or gzip, that name the line of an error.

A file is parsed in one call. If that fails, or gives another number of rows than the file has lines, a slower second
pass finds the line with the error. No line is skipped: a blank line is an error, except at the end of the file.
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
LARGEST_ID: Final = 10**15  # exact in float64; 15 digits, as in INTEGER


def first_existing(folders: Iterable[Path], name: str) -> Path | None:
    """Return the path of `name` or `name.gz` in the first of `folders` that contains one of them, otherwise None."""
    for folder in folders:
        for path in (folder / name, folder / f"{name}.gz"):
            if path.is_file():
                return path
    return None


def find_file(folders: Sequence[Path], name: str) -> Path:
    """Return the same as `first_existing`. Raises `DataError`, with the folders, if there is no such file."""
    found = first_existing(folders, name)
    if found is None:
        raise DataError(f"no {name} or {name}.gz in {' or '.join(str(folder) for folder in folders)}")
    return found


def read_text(path: Path) -> str:
    """Return the text of a file, decompressed if it is gzip. Trailing blank lines are removed.

    gzip is recognised by the first bytes. Raises `DataError` if the file is missing, empty, truncated or not UTF-8.
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
        raise DataError(f"cannot read the file: {error.strerror or error}", path) from error
    if not text.strip():
        raise DataError("the file is empty", path)
    return text.replace("\r\n", "\n").rstrip(" \t\n") + "\n"


def read_table(path: Path, separator: str, columns: Sequence[str], *, optional: int = 0) -> NDArray[np.float64]:
    """Read a table of numbers, float64 (lines, columns in the file).

    columns: names of the columns, for error messages. optional: how many of the last columns may be missing. Raises
    `DataError`, with the line number, for a line that has a different number of fields than the first line, or a field
    that is not a finite number.
    """
    text = read_text(path)
    lines = text.count("\n")
    found = text[: text.index("\n")].count(separator) + 1
    if not len(columns) - optional <= found <= len(columns):
        raise _first_error(path, text, separator, columns, optional)
    try:
        table = _parse(text, separator)
    except ValueError as error:
        raise _first_error(path, text, separator, columns, optional) from error
    if table.shape != (lines, found) or not np.isfinite(table).all():
        raise _first_error(path, text, separator, columns, optional)
    return table


def _parse(text: str, separator: str) -> NDArray[np.float64]:
    """Parse with numpy. Its separator has one character, so a longer one is replaced by a tab first."""
    if len(separator) > 1:
        if "\t" in text:
            raise ValueError("the file contains a tab, but is not separated by tabs")
        text, separator = text.replace(separator, "\t"), "\t"
    return np.loadtxt(io.StringIO(text), delimiter=separator, comments=None, ndmin=2)


def _first_error(path: Path, text: str, separator: str, columns: Sequence[str], optional: int) -> DataError:
    """Return an error that describes the first malformed line."""
    expected: int | None = None
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip():
            return DataError("a blank line in the middle of the file", path, number)
        fields = line.split(separator)
        if not len(columns) - optional <= len(fields) <= len(columns):
            wanted = " ".join(columns)
            return DataError(f"expected {len(columns)} fields ({wanted}), found {len(fields)}", path, number)
        expected = expected or len(fields)
        if len(fields) != expected:
            return DataError(f"the line has {len(fields)} fields, but the lines before have {expected}", path, number)
        for name, field in zip(columns, fields, strict=False):
            if not NUMBER.fullmatch(field.strip()):
                return DataError(f"the {name} is not a number: {field[:40]!r}", path, number)
    return DataError("the file is not a table of numbers", path)


def require_ids(path: Path, name: str, values: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return `values` (lines,) as int64. Raises `DataError`, with the line, for a value that is not an integer >= 0."""
    bad = np.flatnonzero((values < 0) | (values >= LARGEST_ID) | (values != np.floor(values)))
    if bad.size:
        raise DataError(
            f"the {name} must be a whole number of at least 0, got {values[bad[0]]:.15g}", path, int(bad[0]) + 1
        )
    return values.astype(np.int64)


def read_id_lists(path: Path, separators: str = " \t") -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Read lines of one or more integers. Return all integers, int64 (total,), and the count per line, int64 (lines,).

    separators: characters that separate numbers, in any number. Raises `DataError`, with the line number, for a
    malformed or blank line.
    """
    text = read_text(path).translate({ord(character): " " for character in separators})
    rows = [line.split() for line in text.split("\n")[:-1]]
    lengths = np.array([len(row) for row in rows], dtype=np.int64)
    if not lengths.all():
        raise DataError("a blank line in the middle of the file", path, int(np.argmin(lengths)) + 1)
    # Check and convert the whole file at once. Only digits are accepted, so "1.5" and "-1" are errors.
    words = text.split()
    if not (text.isascii() and "".join(words).isdigit() and max(map(len, words)) <= 15):
        for number, row in enumerate(rows, start=1):
            for word in row:
                if not INTEGER.fullmatch(word):
                    raise DataError(f"not a whole number of at least 0: {word[:40]!r}", path, number)
    return np.array(words).astype(np.int64), lengths
