"""The one error of everything that reads, fetches or describes data."""

from __future__ import annotations

from pathlib import Path

from protocols.errors import HushRecError

__all__ = ["DataError"]


class DataError(HushRecError, ValueError):
    """Data that is missing or malformed: `problem`, and where known the file's `path` and the `line` (from 1)."""

    def __init__(self, problem: str, path: Path | None = None, line: int | None = None) -> None:
        self.problem, self.path, self.line = problem, path, line
        place = "" if path is None else f"{path}: " if line is None else f"{path}, line {line}: "
        super().__init__(place + problem)
