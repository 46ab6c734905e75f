"""Finds files of data sets, and reads small text files whole, plain or gzip."""

from __future__ import annotations

import gzip
import re
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from client_sdk.data.errors import DataError

__all__ = ["INTEGER", "first_existing", "read_text"]

GZIP_MAGIC: Final = b"\x1f\x8b"
INTEGER: Final = re.compile(r"\d{1,15}", re.ASCII)


def first_existing(folders: Iterable[Path], name: str) -> Path | None:
    """Return the path of `name` or `name.gz` in the first of `folders` that contains one of them, otherwise None."""
    for folder in folders:
        for path in (folder / name, folder / f"{name}.gz"):
            if path.is_file():
                return path
    return None


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
