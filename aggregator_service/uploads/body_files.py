"""Files that hold bodies: their contents without reading a whole file into memory."""

from __future__ import annotations

from pathlib import Path

from aggregator_service.storage.file_maps import map_open_file

__all__ = ["map_file"]


def map_file(path: Path) -> memoryview:
    """Map a file that is not empty into memory, read-only. The mapping ends with its last reference."""
    with path.open("rb") as file:
        return map_open_file(file)
