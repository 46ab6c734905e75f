"""Files that hold bodies: digest and contents without reading a whole file into memory."""

from __future__ import annotations

import hashlib
import mmap
from pathlib import Path

__all__ = ["file_digest", "map_file"]


def file_digest(path: Path) -> str:
    """Return the SHA-256 (hex) of a file; uses constant memory."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def map_file(path: Path) -> memoryview:
    """Map a file that is not empty into memory, read-only. The mapping ends with its last reference."""
    with path.open("rb") as file:
        return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
