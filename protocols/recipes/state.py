"""The bytes of model states: a recipe lists the fields of its state, and one codec writes and reads them.

Fields follow each other without separators, arrays row-major, all little-endian. A state whose fields depend on the
number of its sums begins with that number, a field called `sum_index` (uint32).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from math import prod
from typing import Any, Final, Literal, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from protocols.codec import exact
from protocols.errors import CodecError, ParameterError
from protocols.layout import Floats

S = TypeVar("S")


@dataclass(frozen=True)
class StateField:
    """One value of a state."""

    name: str
    dtype: Literal["<f4", "<f8", "<u4", "u1"]
    """That of its encoding; "u1" is a byte string."""
    shape: tuple[int, ...] = ()
    """Empty for a single number."""

    @property
    def bytes(self) -> int:
        """Length of the encoding."""
        return prod(self.shape) * np.dtype(self.dtype).itemsize


StateFields = Sequence[StateField]
SUM_INDEX: Final = StateField("sum_index", "<u4")
"""How many sums are in the state; the first field of a state that has it."""


def count_fields(items: int, name: str = "item_counts") -> tuple[StateField, StateField]:
    """Return the fields of how many of how many clients have each item; `as_counts` checks what is decoded."""
    return StateField(name, "<u4", (items,)), StateField("clients", "<u4")


def fields_bytes(fields: StateFields) -> int:
    """Return the length of the encoding of `fields`."""
    return sum(field.bytes for field in fields)


def encode(fields: StateFields, values: Mapping[str, Any]) -> bytes:
    """Return the values of `fields` as exactly `fields_bytes(fields)` bytes; whole numbers may be held as floats.

    Raises `ParameterError` for a value that is missing or has another shape.
    """
    parts = []
    for field in fields:
        if field.name not in values:
            raise ParameterError(f"this model state has no {field.name}: it is one of another recipe")
        value = values[field.name]
        array = np.frombuffer(value, "u1") if isinstance(value, bytes) else np.asarray(value)
        if array.shape != field.shape:
            raise ParameterError(f"{field.name} of a model state must have shape {field.shape}, got {array.shape}")
        parts.append(np.ascontiguousarray(array, field.dtype).reshape(-1).data)
    return b"".join(parts)


def decode(fields: StateFields, body: bytes | bytearray | memoryview, *, copy: bool = True) -> dict[str, Any]:
    """Return the values of `fields` by name: arrays in the machine's byte order, numbers, and byte strings.

    copy: False for read-only views of `body` where its byte order is the machine's. Raises `CodecError` for another
    length and for values that are not finite.
    """
    view, start, found = exact(body, fields_bytes(fields), "a model state"), 0, dict[str, Any]()
    for field in fields:
        array = np.frombuffer(view[start : start + field.bytes], field.dtype).reshape(field.shape)
        start += field.bytes
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            raise CodecError("a model state holds values that are not finite")
        if field.dtype == "u1":
            found[field.name] = array.tobytes()
        else:
            found[field.name] = array.astype(array.dtype.newbyteorder("="), copy=copy) if field.shape else array.item()
    return found


def sum_index_of(body: bytes | bytearray | memoryview, round_number: int) -> int:
    """Return the sum index with which a state begins; `CodecError` if it is missing or above the round's number."""
    if len(body) < SUM_INDEX.bytes:
        raise CodecError(f"a model state has at least {SUM_INDEX.bytes} bytes, got {len(body)}")
    sum_index = int(decode((SUM_INDEX,), memoryview(body)[: SUM_INDEX.bytes])["sum_index"])
    if sum_index > round_number:
        raise CodecError(f"a model state of round {round_number} claims {sum_index} sums")
    return sum_index


def as_counts(counts: NDArray[np.uint32], clients: int) -> Floats:
    """Return decoded item counts as float64 (items,); `CodecError` for a count above the number of clients."""
    if counts.max() > clients:
        raise CodecError(f"a model state counts an item for {counts.max()} of {clients} clients")
    return counts.astype(np.float64)


def state_as(state: object, kind: type[S]) -> S:
    """Return `state` as a `kind`; `ParameterError` for a state of another recipe, or a view instead of a state."""
    if not isinstance(state, kind):
        raise ParameterError(f"a model state of type {kind.__name__} is needed, got {type(state).__name__}")
    return state


STATE_TOLERANCE: Final = 1e-5
"""Largest difference of two values of a state that follow from the same sums, relative to the largest value beside
them. Products of matrices and decompositions differ between machines in their last bits."""


def same_state(own: object, other: object) -> bool:
    """Return whether two states, or parts of them, are equal but for rounding.

    Floating-point values may differ by `STATE_TOLERANCE` of the largest one of their array in `own`; all other values
    are equal.
    """
    if type(own) is not type(other):
        return False
    if is_dataclass(own):
        return all(same_state(getattr(own, field.name), getattr(other, field.name)) for field in fields(own))
    if isinstance(own, tuple):
        return len(own) == len(cast(tuple[object, ...], other)) and all(map(same_state, own, cast(Any, other)))
    if not isinstance(own, np.ndarray | float):
        return own == other
    mine, theirs = np.asarray(own), np.asarray(other)
    if mine.shape != theirs.shape or mine.dtype != theirs.dtype:
        return False
    if mine.dtype.kind != "f":
        return bool((mine == theirs).all())
    largest = float(np.abs(mine).max(initial=0.0))
    return float(np.abs(mine - theirs).max(initial=0.0)) <= STATE_TOLERANCE * largest
