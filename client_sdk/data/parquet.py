"""Reader of parquet files, with pyarrow (the extra `parquet`), one batch of rows at a time."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any, Final

import numpy as np

from client_sdk.data.columns import Columns, Role, resolve
from client_sdk.data.errors import DataError
from client_sdk.data.rows import CollectedRows

__all__ = ["is_parquet", "read_parquet"]

_MAGIC: Final = b"PAR1"
_ROWS: Final = 1 << 18
_LONGEST: Final = 255


def is_parquet(path: Path) -> bool:
    """Return whether the file begins as parquet does. Raises `DataError` if it cannot be read."""
    try:
        with path.open("rb") as file:
            return file.read(len(_MAGIC)) == _MAGIC
    except OSError as error:
        raise DataError(f"cannot read the file: {error.strerror or error}", path) from error


def read_parquet(path: Path, columns: Columns | None, *, integer_ids: bool = False) -> CollectedRows:
    """Return the rows of a parquet file. columns: as in `read_data_file`.

    Raises `DataError` for a damaged file, a column that the file does not have or of a type that cannot be read, and a
    missing value; also if pyarrow is not installed.
    """
    arrow, parquet = _pyarrow(path)
    try:
        with parquet.ParquetFile(path) as file:
            header = tuple(file.schema_arrow.names)
            roles = resolve(path, columns, header, [header])
            collected = CollectedRows(path, roles, header, integer_ids)
            names = [header[place] for place in roles.values()]
            for batch in file.iter_batches(_ROWS, columns=names):
                before = collected.count
                for role, place in roles.items():
                    _add(arrow, collected, role, batch.column(names.index(header[place])), before)
                collected.count += batch.num_rows
    except (arrow.ArrowException, OSError) as error:
        raise DataError(f"not a readable parquet file: {str(error).splitlines()[0]}", path) from error
    return collected


def _pyarrow(path: Path) -> tuple[ModuleType, ModuleType]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise DataError("a parquet file needs pyarrow: pip install 'hushrec[parquet]'", path) from error
    return pyarrow, pyarrow.parquet


def _add(arrow: ModuleType, rows: CollectedRows, role: Role, column: Any, before: int) -> None:
    """Add a column of a batch. before: the rows of the file before it."""
    if column.null_count:
        missing = column.is_null().to_numpy(zero_copy_only=False)
        raise rows.error(role, before + int(missing.argmax()) + 1, f"the {role} is missing")
    kind = column.type
    if arrow.types.is_dictionary(kind):
        column, kind = column.dictionary_decode(), kind.value_type
    if arrow.types.is_temporal(kind) and role == "time":
        column = column.cast(arrow.int32() if kind.bit_width == 32 else arrow.int64())
        kind = column.type
    if role in ("rating", "time"):
        if not (arrow.types.is_integer(kind) or arrow.types.is_floating(kind)):
            raise rows.error(role, None, f"the {role} has type {kind}, which is no number")
        rows.add_numbers(role, column.to_numpy(zero_copy_only=False), lambda row: before + row + 1)
    elif arrow.types.is_integer(kind):
        values = column.cast(arrow.int64()).to_numpy(zero_copy_only=False)
        if rows.integer_ids and (values < 0).any():
            raise rows.error(role, before + int((values < 0).argmax()) + 1, f"the {role} is negative")
        rows.add_ids(role, values)
    elif arrow.types.is_string(kind) or arrow.types.is_large_string(kind):
        texts = np.array(column.to_pylist(), dtype=np.str_)
        _add_texts(rows, role, texts, before)
    else:
        raise rows.error(role, None, f"the {role} has type {kind}; ids are integers or text")


def _add_texts(rows: CollectedRows, role: Role, texts: Any, before: int) -> None:
    from client_sdk.data.cells import text_cells

    cells = text_cells(texts)
    for wrong, problem in (
        (cells.lengths == 0, f"the {role} is empty"),
        (cells.lengths > _LONGEST, f"a field of more than {_LONGEST} bytes"),
    ):
        if wrong.any():
            raise rows.error(role, before + int(wrong.argmax()) + 1, problem)
    rows.add_text_ids(role, cells, lambda row: before + row + 1)
