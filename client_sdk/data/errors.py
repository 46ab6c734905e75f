"""The error of all functions that read, download or describe data."""

from __future__ import annotations

from pathlib import Path

from protocols.errors import HushRecError

__all__ = ["DataError"]


class DataError(HushRecError, ValueError):
    """Data is missing or malformed.

    problem: what is wrong. path: the file, if known. line: the line in it, from 1, if known.
    """

    def __init__(self, problem: str, path: Path | None = None, line: int | None = None) -> None:
        self.problem, self.path, self.line = problem, path, line
        place = "" if path is None else f"{path}: " if line is None else f"{path}, line {line}: "
        super().__init__(place + problem)
