"""PriviRec's model state (the results of the sums so far) and its encoding.

sum index         uint32
from sum 1 on     item degrees (m uint32) || clients (uint32) || Q (m x K float32, row-major)
                  || singular values (K float32) || captured, change (float64 each)
after a Gram sum  the upper triangle of P (m (m+1) / 2 float32)

All little-endian. The sum index determines the length.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from protocols.codec import exact
from protocols.errors import CodecError, ParameterError
from protocols.recipes.base import ModelState, RoundSpec
from protocols.recipes.item_counts import counts_bytes, decode_counts
from protocols.recipes.privirec.triangle import triangle_length

__all__ = ["PriviRecState", "StateForm", "privirec_state"]

_SUM_INDEX: Final = struct.Struct("<I")
_FIGURES: Final = struct.Struct("<dd")
_UNIT: Final = 1.0 + 1e-3
"""Largest norm of a column of Q, with room for float32 rounding. A longer column would break the bound on the sums."""


def _empty_array(*shape: int) -> Any:
    return field(default_factory=lambda: np.zeros(shape, dtype=np.float32))


@dataclass(frozen=True, eq=False)
class PriviRecState(ModelState):
    """The results of `sum_index` sums; arrays are empty before their sum.

    item_degrees: float64 (m,), whole numbers. clients: how many clients they were summed over. basis: Q, float32
    (m, K), orthonormal columns. singular_values: float32 (K,), of R~, zeros before the first iteration. captured:
    ||Q_old^T Q_new||_F^2 / K of the last iteration. change: relative change of the singular values in it. gram: float32
    (m (m+1) / 2,), P's upper triangle.
    """

    sum_index: int = 0
    item_degrees: NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))
    clients: int = 0
    basis: NDArray[np.float32] = _empty_array(0, 0)
    singular_values: NDArray[np.float32] = _empty_array(0)
    captured: float = 0.0
    change: float = 1.0
    gram: NDArray[np.float32] = _empty_array(0)

    def following(self, spec: RoundSpec, **changes: Any) -> PriviRecState:
        """Return the state after the sum of `spec`, with these fields changed."""
        return replace(self, round_number=spec.number, sum_index=spec.sum_index, **changes)


def privirec_state(state: ModelState) -> PriviRecState:
    """Return `state` as a state of PriviRec; `ParameterError` for a state of another recipe."""
    if not isinstance(state, PriviRecState):
        raise ParameterError(f"this state holds no spectrum: it is a {type(state).__name__}")
    return state


@dataclass(frozen=True)
class StateForm:
    """The shapes of one task's states.

    items: m. columns: K. steps: number of sums. last_iteration: index of the last sum that is a power iteration.
    """

    items: int
    columns: int
    steps: int
    last_iteration: int

    def empty(self) -> PriviRecState:
        """Return the state before the first sum."""
        return PriviRecState(0)

    def length(self, sum_index: int) -> int:
        """Return the length of an encoded state after `sum_index` sums; `ParameterError` if there is no such sum."""
        if not 0 <= sum_index <= self.steps:
            raise ParameterError(f"a task of this recipe has {self.steps} sums, there is no sum {sum_index}")
        known = counts_bytes(self.items) + 4 * (self.items + 1) * self.columns + _FIGURES.size if sum_index else 0
        return _SUM_INDEX.size + known + 4 * self._gram_values(sum_index)

    def _gram_values(self, sum_index: int) -> int:
        return triangle_length(self.items) if sum_index > self.last_iteration else 0

    def encode(self, state: PriviRecState) -> bytes:
        """Return the state as exactly `length(state.sum_index)` bytes."""
        if not state.sum_index:
            return _SUM_INDEX.pack(0)
        return b"".join(
            (
                _SUM_INDEX.pack(state.sum_index),
                np.append(state.item_degrees, state.clients).astype("<u4").tobytes(),
                state.basis.astype("<f4").tobytes(),
                state.singular_values.astype("<f4").tobytes(),
                _FIGURES.pack(state.captured, state.change),
                state.gram.astype("<f4").tobytes(),
            )
        )

    def decode(self, round_number: int, body: bytes) -> PriviRecState:
        """Decode the bytes of `encode`.

        Raises `CodecError` for a sum index that the task does not have, another length, values that are not finite, a
        degree above the number of clients, negative singular values, or a column of Q with a norm over 1, which clients
        would multiply with their rows.
        """
        if len(body) < _SUM_INDEX.size:
            raise CodecError(f"a model state has at least {_SUM_INDEX.size} bytes, got {len(body)}")
        (sum_index,) = _SUM_INDEX.unpack_from(body)
        if sum_index > self.steps or sum_index > round_number:
            raise CodecError(f"a model state of round {round_number} claims {sum_index} of {self.steps} sums")
        view = exact(body, self.length(sum_index), "a model state")
        if not sum_index:
            return replace(self.empty(), round_number=round_number)
        m, columns = self.items, self.columns
        places = np.cumsum([_SUM_INDEX.size, counts_bytes(m), 4 * m * columns, 4 * columns, _FIGURES.size])
        degrees, clients = decode_counts(view[places[0] : places[1]])
        basis = np.frombuffer(view, "<f4", m * columns, places[1]).reshape(m, columns).astype(np.float32)
        values = np.frombuffer(view, "<f4", columns, places[2]).astype(np.float32)
        share, change = _FIGURES.unpack_from(view, places[3])
        gram = np.frombuffer(view, "<f4", -1, places[4]).astype(np.float32)
        if not all(np.isfinite(part).all() for part in (basis, values, gram, (share, change))) or values.min() < 0:
            raise CodecError("a model state holds values that are not finite, or negative singular values")
        if not (np.linalg.norm(basis, axis=0) <= _UNIT).all():
            raise CodecError("a model state's basis has a column with a norm over 1")
        return PriviRecState(round_number, sum_index, degrees, clients, basis, values, share, change, gram)
