"""A text file in pieces of whole rows, so that a file of any size is read in bounded memory."""

from __future__ import annotations

import csv
import gzip
import io
import shlex
import zipfile
import zlib
from array import array
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final, cast

import numpy as np
from numpy.typing import NDArray

from client_sdk.lab.data.interactions import DataError

CHUNK_BYTES: Final = 1 << 22
GZIP_MAGIC: Final = b"\x1f\x8b"
_BOM: Final = b"\xef\xbb\xbf"
_ZIP: Final = b"PK\x03\x04"
_EXCEL: Final = "an Excel workbook: save the sheet as CSV UTF-8"
_UTF16: Final = "UTF-16 text: save it as UTF-8: iconv -f utf-16 -t utf-8 FILE > new.csv"
_OTHERS: Final = {
    b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1": _EXCEL,  # of before 2007
    b"\xff\xfe": _UTF16,
    b"\xfe\xff": _UTF16,
    b"\x93NUMPY": "a numpy array, not a table: write its rows as CSV: numpy.savetxt('new.csv', array, '%d', ',')",
    b"BZh": "compressed with bzip2: unpack it first: bunzip2 -k FILE",
    b"\xfd7zXZ\x00": "compressed with xz: unpack it first: unxz -k FILE",
    b"\x28\xb5\x2f\xfd": "compressed with zstd: unpack it first: unzstd FILE",
    b"PAR1": "a parquet file, which is not text",
}
_LONGEST_LINE: Final = 1 << 28
_LONGEST_QUOTED: Final = 1 << 24
"""Within so many bytes a quoted field ends. Quotes that are not closed there stand inside fields."""


@dataclass(frozen=True)
class Chunk:
    """Whole rows of a file."""

    data: bytes
    """UTF-8 without NUL, ends with a line feed."""
    line: int
    """Number of the first line, from 1."""


def chunks(path: Path, size: int | None = None, quoted: bool = True) -> Generator[Chunk, None, None]:
    """Yield the lines of a plain or gzip file in chunks of about `size` bytes, `CHUNK_BYTES` by default.

    A chunk does not end inside a quoted field, if fields may be `quoted`. Blank lines at the end of the file, also of
    spaces, are left out, and so is a byte order mark. Raises `DataError` if the file is missing, empty, damaged, not
    UTF-8, or not text.
    """
    line, at_end = 1, False
    with _opened(path) as file:
        carry = file.read(len(_BOM)).removeprefix(_BOM)
        while not at_end:
            block = file.read(size or CHUNK_BYTES)
            at_end = not block
            whole, carry = _whole_lines(carry + block, at_end, quoted)
            if len(carry) > _LONGEST_LINE:
                raise DataError(f"a line of more than {_LONGEST_LINE} bytes", path, line)
            if whole:
                _require_text(path, whole, line)
                yield Chunk(whole, line)
                line += whole.count(b"\n")
    if line == 1:
        raise DataError("the file is empty", path)


def rows_of(
    path: Path, chunk: Chunk, separator: str, width: int, quoted: bool
) -> tuple[bytes, NDArray[np.int64], list[tuple[int, str]]]:
    """Return the rows of a chunk with `width` fields, the last line of each, int64 (rows,), and the others' faults.

    separator: a single byte. quoted: whether fields may be quoted as in RFC 4180. Where a row has another number of
    fields, or a quote is neither around a field nor doubled inside one, the rows are read by the csv module and quoted
    anew. Raises `DataError` for a quoted field that does not end, or does not end before a separator.
    """
    data, has_quotes = chunk.data, quoted and b'"' in chunk.data
    if not has_quotes or _are_quotes_proper(data, separator):
        text = np.frombuffer(data, np.uint8)
        ends, splits = np.flatnonzero(text == ord("\n")), np.flatnonzero(text == ord(separator))
        lines = np.arange(ends.size) + chunk.line
        if has_quotes:
            quotes = np.flatnonzero(text == ord('"'))
            outside = np.searchsorted(quotes, ends) % 2 == 0
            ends, lines = ends[outside], lines[outside]
            splits = splits[np.searchsorted(quotes, splits) % 2 == 0]
        if splits.size == (width - 1) * ends.size:
            table = splits.reshape(ends.size, width - 1)
            if (table[:, -1] < ends).all() and (table[1:, 0] > ends[:-1]).all():
                return data, lines, []
    written, kept, wrong = io.StringIO(), [], []
    writer = csv.writer(written, delimiter=separator, lineterminator="\n", quoting=csv.QUOTE_ALL)
    reader = csv.reader(
        io.StringIO(data.decode(), newline="\n"),
        delimiter=separator,
        strict=True,
        quoting=csv.QUOTE_MINIMAL if quoted else csv.QUOTE_NONE,
    )
    try:
        for row in reader:
            line = chunk.line - 1 + reader.line_num
            if len(row) == width:
                writer.writerow(row)
                kept.append(line)
            elif len(row) > 1 or "".join(row).strip():
                wrong.append((line, f"the line has {len(row)} fields, but most lines have {width}"))
            else:
                wrong.append((line, "a blank line"))
    except csv.Error as error:
        raise DataError(f"not a CSV line: {error}", path, chunk.line - 1 + reader.line_num) from error
    return written.getvalue().encode(), np.array(kept, np.int64), wrong


# --- lines of whole numbers, such as LightGCN's: `user item item ...` ------------------------------------------------

_LONGEST_NUMBER: Final = 15  # digits


def require_distinct(path: Path, users: NDArray[np.int64], what: str) -> None:
    """Raise `DataError` for the first line whose user is that of an earlier one, and already has `what`."""
    _, first = np.unique(users, return_index=True)
    if first.size < users.size:
        again = int(np.setdiff1d(np.arange(users.size), first)[0])
        raise DataError(f"user {users[again]} already has {what}", path, again + 1)


def read_id_lists(path: Path, separators: str = " \t") -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Read lines of one or more integers. Return all integers, int64 (total,), and the count per line, int64 (lines,).

    separators: characters that separate numbers, in any number. Raises `DataError`, with the line number, for a
    malformed or blank line.
    """
    blanks = bytes.maketrans(separators.encode(), b" " * len(separators))
    numbers, lengths = array("q"), array("q")
    for chunk in chunks(path, quoted=False):
        for line, text in enumerate(chunk.data.translate(blanks).split(b"\n")[:-1], start=chunk.line):
            words = text.split()
            if not words:
                raise DataError("a blank line in the middle of the file", path, line)
            if not b"".join(words).isdigit() or max(map(len, words)) > _LONGEST_NUMBER:
                wrong = next(word for word in words if not word.isdigit() or len(word) > _LONGEST_NUMBER).decode()[:40]
                raise DataError(f"not a whole number of at least 0: {wrong!r}", path, line)
            numbers.extend(map(int, words))
            lengths.append(len(words))
    return np.array(numbers, np.int64), np.array(lengths, np.int64)


def _are_quotes_proper(data: bytes, separator: str) -> bool:
    """Return whether each quote opens a field, closes it, or is one of a pair in a quoted field, as in RFC 4180."""
    text = np.frombuffer(b"\n" + data, np.uint8)
    places = np.flatnonzero(text == ord('"'))
    if places.size % 2:
        return False
    before, after = text[places[::2] - 1], text[places[1::2] + 1]
    outside = [ord(separator), ord("\n"), ord('"')]
    return bool(np.isin(before, outside).all() and np.isin(after, [*outside, ord("\r")]).all())


def _whole_lines(block: bytes, at_end: bool, quoted: bool) -> tuple[bytes, bytes]:
    """Return the lines of `block` up to the last that is not blank and ends outside quotes, and the rest."""
    end = len(block) if at_end else _end_of_rows(block) if quoted else block.rfind(b"\n") + 1
    body = block[:end].rstrip(b"\r\n")
    while (last := body.rfind(b"\n") + 1) and not body[last:].strip(b" \r"):
        body = body[:last].rstrip(b"\r\n")
    if not body.strip():
        return b"", b"" if at_end else block
    rest = block[len(body) :]
    return body + b"\n", rest.removeprefix(b"\r").removeprefix(b"\n")


def _end_of_rows(block: bytes) -> int:
    """Return the end of the last line that does not end inside a quoted field, 0 if there is none."""
    last = end = block.rfind(b"\n") + 1
    quotes = block.count(b'"', 0, end)
    while quotes % 2:
        start = block.rfind(b"\n", 0, end - 1) + 1
        quotes -= block.count(b'"', start, end)
        end = start
    return end or (last if len(block) > _LONGEST_QUOTED else 0)


def _require_text(path: Path, data: bytes, line: int) -> None:
    zero = data.find(b"\0")
    if zero >= 0:
        raise DataError("not a text file, or UTF-16: it contains a zero byte", path, line + data.count(b"\n", 0, zero))
    if not data.isascii():
        try:
            data.decode()
        except UnicodeDecodeError as error:
            command = f"iconv -f latin1 -t utf-8 {shlex.quote(str(path))} > new.csv"
            problem = f"not UTF-8 text: save it as UTF-8 (in Excel: CSV UTF-8), or if it is Latin-1: {command}"
            raise DataError(problem, path, line + data.count(b"\n", 0, error.start)) from error


def _archive(file: IO[bytes]) -> str:
    """Return what a zip archive is, and what to do with it."""
    try:
        names = zipfile.ZipFile(file).namelist()
    except zipfile.BadZipFile:
        names = []
    if any(name.startswith("xl/") for name in names):
        return _EXCEL
    if "content.xml" in names:
        return "a spreadsheet of LibreOffice: save the sheet as CSV UTF-8"
    if names and all(name.endswith(".npy") for name in names):
        return "numpy arrays (.npz), not a table: write users, items and ratings as columns of a CSV file"
    return "a zip archive: unpack it first: unzip FILE"


@contextmanager
def _opened(path: Path) -> Iterator[IO[bytes]]:
    """Open the file for reading, decompressed if it is gzip, and turn errors of reading into `DataError`."""
    try:
        with path.open("rb") as raw:
            start = raw.read(8)
            raw.seek(0)
            if start.startswith(_ZIP):
                raise DataError(_archive(raw).replace("FILE", shlex.quote(str(path))), path)
            for magic, what in _OTHERS.items():
                if start.startswith(magic):
                    raise DataError(what.replace("FILE", shlex.quote(str(path))), path)
            if start.startswith(GZIP_MAGIC):
                with gzip.open(raw) as unpacked:
                    yield cast(IO[bytes], unpacked)
            else:
                yield raw
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise DataError("a damaged or incomplete gzip file", path) from error
    except OSError as error:
        raise DataError(f"cannot read the file: {error.strerror or error}", path) from error
