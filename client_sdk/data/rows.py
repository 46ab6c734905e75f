"""Rows of a table as they are collected: 16 to 20 bytes a row, and the distinct ids."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from client_sdk.data.cells import Cells
from client_sdk.data.columns import Role, Roles
from client_sdk.data.errors import DataError
from client_sdk.data.interactions import Duplicates, Interactions
from client_sdk.data.numbering import Numbering

__all__ = ["CollectedRows", "column_name"]

_LARGEST: Final = {"rating": float(np.finfo(np.float32).max), "time": 2.0**62}
_DTYPES: Final[dict[str, type[np.generic]]] = {"rating": np.float32, "time": np.int64}

Locate = Callable[[int], int]
"""A function from the number of a row of a part to its line in the file."""


def column_name(header: Sequence[str] | None, role: Role, place: int) -> str:
    """Return a column and its role in words, for errors: `2 (rating)` or `'stars' (rating)`."""
    name = str(place) if header is None else repr(header[place])
    return f"{name} ({role})"


@dataclass
class CollectedRows:
    """Collects the rows of a file part by part. roles, header: for the errors, which name the column."""

    path: Path
    roles: Roles
    header: Sequence[str] | None
    integer_ids: bool = False
    count: int = 0
    _ids: dict[str, Numbering] = field(default_factory=lambda: {"user": Numbering(), "item": Numbering()})
    _numbers: dict[str, list[NDArray[Any]]] = field(default_factory=lambda: {"rating": [], "time": []})

    def add_cells(self, cells: dict[Role, Cells], line_of: Locate) -> None:
        """Add rows in text. Raises `DataError` for an empty id and a field that is not a number where it must be."""
        for role, column in cells.items():
            empty = column.lengths == 0
            if empty.any():
                raise self.error(role, line_of(int(empty.argmax())), f"the {role} is empty")
            if role in self._numbers:
                values, good = column.numbers()
                if not good.all():
                    bad = int((~good).argmax())
                    raise self.error(role, line_of(bad), f"the {role} is not a number: {column.text(bad)!r}")
                self.add_numbers(role, values, line_of)
            else:
                self.add_text_ids(role, column, line_of)
        self.count += next(iter(cells.values())).lengths.size

    def add_text_ids(self, role: Role, column: Cells, line_of: Locate) -> None:
        """Add the ids of the next rows, which are integers if all are. Raises `DataError` with `integer_ids`."""
        values, good = column.integers()
        if self.integer_ids:
            wrong = ~good | (values < 0)
            if wrong.any():
                bad = int(wrong.argmax())
                raise self.error(
                    role,
                    line_of(bad),
                    f"the {role} must be a whole number of at least 0, got {column.text(bad)!r}",
                )
        self.add_ids(role, values if good.all() else column.texts())

    def add_ids(self, role: Role, ids: NDArray[Any]) -> None:
        """Add the ids of the next rows: int64 or UTF-8 bytes (rows,)."""
        self._ids[role].add(ids)

    def add_numbers(self, role: Role, values: NDArray[Any], line_of: Locate) -> None:
        """Add the ratings or times of the next rows. Raises `DataError` for one that is not finite or too large."""
        wrong = ~(np.abs(values) <= _LARGEST[role])  # NaN too
        if wrong.any():
            bad = int(wrong.argmax())
            raise self.error(role, line_of(bad), f"the {role} is too large or not a number: {values[bad]:g}")
        whole = np.floor(values) if role == "time" and values.dtype.kind == "f" else values
        self._numbers[role].append(whole.astype(_DTYPES[role]))

    def error(self, role: Role, line: int | None, problem: str) -> DataError:
        """Return an error that names the column of `role`."""
        return DataError(problem, self.path, line, column_name(self.header, role, self.roles[role]))

    def ids(self, role: Role) -> NDArray[np.int64]:
        """Return the integer ids of `role`, int64 (rows,), which are given up."""
        distinct, codes = self._ids.pop(role).finish()
        return np.asarray(distinct[codes], dtype=np.int64)

    def numbers(self, role: Role) -> NDArray[Any] | None:
        """Return the ratings, float32 (rows,), or times, int64 (rows,), which are given up; None without them."""
        parts = self._numbers.pop(role)
        return np.concatenate(parts) if parts else None

    def interactions(self, duplicates: Duplicates) -> Interactions:
        """Return the collected rows, which are given up. Raises `DataError` for repeated pairs on "error"."""
        user_ids, users = self._ids.pop("user").finish()
        item_ids, items = self._ids.pop("item").finish()
        ratings, times = self.numbers("rating"), self.numbers("time")
        try:
            return Interactions.from_pairs(
                users,
                items,
                n_users=user_ids.size,
                n_items=item_ids.size,
                ratings=ratings,
                timestamps=times,
                user_ids=user_ids,
                item_ids=item_ids,
                duplicates=duplicates,
            )
        except DataError as error:
            raise DataError(error.problem, self.path) from error
