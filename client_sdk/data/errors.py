"""The error of all functions that read, download or describe data."""

from __future__ import annotations

from pathlib import Path

from protocols.errors import HushRecError

__all__ = ["DataError"]


class DataError(HushRecError, ValueError):
    """Data is missing or malformed.

    problem: what is wrong. path: the file, if known. line: the line in it, from 1, if known (parquet: the row, from 1).
    column: the column, if known: its heading or its number from 0, as in `Columns`, and what is read from it.
    """

    def __init__(
        self, problem: str, path: Path | None = None, line: int | None = None, column: str | None = None
    ) -> None:
        self.problem, self.path, self.line, self.column = problem, path, line, column
        place = [str(path)] if path is not None else []
        place += [f"line {line}"] if line is not None and place else []
        place += [f"column {column}"] if column is not None else []
        super().__init__((", ".join(place) + ": " if place else "") + problem)
