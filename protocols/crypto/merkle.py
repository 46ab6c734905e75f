"""Merkle trees over a list of members: a root that stands for the list, and short proofs of who is in it.

The tree, the inclusion path and its check are those of RFC 9162, sections 2.1.1 and 2.1.3 (Certificate Transparency),
with SHA-256. The leaves here are sorted and distinct, so two neighbours prove that nothing lies between them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from typing import Final

from protocols.errors import ParameterError

_HASH: Final = 32
LONGEST_PATH: Final = 64
"""Hashes of a path in a tree of fewer than 2^64 leaves."""


class Tree:
    """The tree over `leaves`, in this order: 64 bytes for each. The root of no leaves is SHA-256 of nothing."""

    def __init__(self, leaves: Iterable[bytes]) -> None:
        self._levels = [b"".join(map(_leaf, leaves))]
        while len(level := self._levels[-1]) > _HASH:
            pairs = range(0, len(level) - _HASH, 2 * _HASH)
            above = [_node(level[start : start + _HASH], level[start + _HASH : start + 2 * _HASH]) for start in pairs]
            self._levels.append(b"".join(above) + level[2 * _HASH * len(pairs) :])  # the last one may have no pair

    @property
    def root(self) -> bytes:
        """The root, 32 bytes."""
        return self._levels[-1] or hashlib.sha256().digest()

    def path(self, index: int) -> list[bytes]:
        """Return the hashes (32 bytes each) that lead from leaf `index` to the root, the lowest first.

        Raises `ParameterError` for an index outside the list.
        """
        if not 0 <= index < len(self._levels[0]) // _HASH:
            raise ParameterError(f"the tree has no leaf {index}")
        found = []
        for level in self._levels:
            beside = (index ^ 1) * _HASH
            if beside < len(level):
                found.append(level[beside : beside + _HASH])
            index >>= 1
        return found


def is_leaf(leaf: bytes, index: int, size: int, path: Sequence[bytes], root: bytes) -> bool:
    """Return whether `leaf` is leaf `index` of the tree of `size` leaves with this root (RFC 9162, section 2.1.3.2)."""
    if not 0 <= index < size:
        return False
    first, last, found = index, size - 1, _leaf(leaf)
    for step in path:
        if last == 0:
            return False
        if first & 1 or first == last:
            found = _node(step, found)
            while first and not first & 1:
                first, last = first >> 1, last >> 1
        else:
            found = _node(found, step)
        first, last = first >> 1, last >> 1
    return last == 0 and found == root


def _leaf(leaf: bytes) -> bytes:
    return hashlib.sha256(b"\x00" + leaf).digest()


def _node(left: bytes, right: bytes) -> bytes:
    return hashlib.sha256(b"\x01" + left + right).digest()
