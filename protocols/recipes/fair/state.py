"""FAIR's model state on the server, its compressed view on a device, and their encodings.

sum index  uint32
seed       32 bytes, from which hash positions and signs are derived
state      tables (2 x n float32) || dense (float32) || the sums of the turn so far (float32)
view       tables (2 x m float32) || dense (float32)

All little-endian. The sum index and the device group determine the lengths.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from protocols.recipes.base import ModelState
from protocols.recipes.fair.subspaces import Subspace, hash_key

__all__ = [
    "TABLES",
    "FairState",
    "FairView",
    "spaces_of",
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


def spaces_of(seed: bytes, elements: int, buckets: int) -> tuple[Subspace, Subspace]:
    """Return the spaces with `buckets` buckets of the tables, in the order of `TABLES`."""
    first, second = (Subspace(elements, buckets, hash_key(seed, table)) for table in TABLES)
    return first, second
