"""FAIR's model state on the server, its compressed view on a device, and their encodings.

sum index  uint32
seed       32 bytes, from which hash positions and signs are derived
state      tables (2 x n float32) || dense (float32) || the sums of the turn so far (float32)
view       tables (2 x m float32) || dense (float32)

All little-endian. The sum index and the device group determine the lengths.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Final

import numpy as np
from numpy.typing import NDArray

from protocols.codec import exact
from protocols.crypto.domain import SEED_BYTES
from protocols.errors import CodecError, ParameterError
from protocols.recipes.base import ModelState
from protocols.recipes.fair.subspaces import Subspace, hash_key

__all__ = [
    "TABLES",
    "FairState",
    "FairView",
    "encode_model",
    "fair_state",
    "fair_view",
    "model_bytes",
    "read_model",
    "spaces_of",
    "sum_index_of",
]

TABLES: Final = ("gmf", "mlp")
"""Names of the item tables; each has its own hash key."""

_SUM_INDEX: Final = struct.Struct("<I")


@dataclass(frozen=True, eq=False)
class FairState(ModelState):
    """The whole model after `sum_index` sums.

    seed: 32 public bytes, the same for the whole task. tables: float32 (2, n), n = items * dim values per table,
    row-major. dense: float32, the small layers. given: float32, the sums of the current turn, one per device group so
    far; tables and layers change when the turn is complete.
    """

    sum_index: int
    seed: bytes
    tables: NDArray[np.float32]
    dense: NDArray[np.float32]
    given: tuple[NDArray[np.float32], ...] = ()

    def freeze(self) -> None:
        """Make every array read-only, including the sums of the turn."""
        super().freeze()
        for total in self.given:
            total.flags.writeable = False


@dataclass(frozen=True, eq=False)
class FairView(ModelState):
    """A device's part of the model: tables float32 (2, m), m the buckets of its space, m = n for a whole table."""

    sum_index: int
    seed: bytes
    tables: NDArray[np.float32]
    dense: NDArray[np.float32]


def fair_state(state: ModelState) -> FairState:
    """Return `state` as FAIR's whole model; `ParameterError` for another recipe's state or a device's view."""
    if not isinstance(state, FairState):
        raise ParameterError(f"this is not FAIR's whole model: it is a {type(state).__name__}")
    return state


def fair_view(state: ModelState) -> FairView:
    """Return `state` as a device's view of FAIR's model; `ParameterError` for anything else."""
    if not isinstance(state, FairView):
        raise ParameterError(f"a device of FAIR trains on its view of the model, not on a {type(state).__name__}")
    return state


def spaces_of(seed: bytes, elements: int, buckets: int) -> tuple[Subspace, Subspace]:
    """Return the spaces with `buckets` buckets of the tables, in the order of `TABLES`."""
    first, second = (Subspace(elements, buckets, hash_key(seed, table)) for table in TABLES)
    return first, second


def model_bytes(values: int) -> int:
    """Return the length in bytes of an encoded state or view with `values` values."""
    return _SUM_INDEX.size + SEED_BYTES + 4 * values


def encode_model(model: FairState | FairView, parts: Sequence[NDArray[np.float32]]) -> bytes:
    """Return the sum index, the seed and the parts' values as bytes."""
    return b"".join([_SUM_INDEX.pack(model.sum_index), model.seed, *(part.astype("<f4").tobytes() for part in parts)])


def sum_index_of(body: bytes, round_number: int) -> int:
    """Return the sum index of an encoded model; `CodecError` if it is missing or greater than the round's number."""
    if len(body) < _SUM_INDEX.size:
        raise CodecError(f"a model of FAIR has at least {_SUM_INDEX.size} bytes, got {len(body)}")
    sum_index: int = _SUM_INDEX.unpack_from(body)[0]
    if sum_index > round_number:
        raise CodecError(f"a model of round {round_number} claims {sum_index} sums")
    return sum_index


def read_model(body: bytes, lengths: Sequence[int]) -> tuple[bytes, list[NDArray[np.float32]]]:
    """Return the seed and the parts of these lengths, float32.

    Raises `CodecError` for another length, or values that are not finite.
    """
    view = exact(body, model_bytes(sum(lengths)), "a model of FAIR")
    head = _SUM_INDEX.size + SEED_BYTES
    values = np.frombuffer(view, "<f4", offset=head).astype(np.float32)
    if not np.isfinite(values).all():
        raise CodecError("a model of FAIR holds values that are not finite")
    return bytes(view[_SUM_INDEX.size : head]), [values[a:b] for a, b in pairwise(accumulate(lengths, initial=0))]
