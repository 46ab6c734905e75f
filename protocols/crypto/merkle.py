"""Merkle trees over a list of members: a root that stands for the list, and short proofs of who is in it.

The tree, the inclusion path and its check are those of RFC 9162, sections 2.1.1 and 2.1.3 (Certificate Transparency),
with SHA-256. The leaves here are sorted and distinct, so two neighbours prove that nothing lies between them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Final

from protocols.errors import ParameterError

LONGEST_PATH: Final = 64
"""Hashes of a path in a tree of fewer than 2^64 leaves."""


def tree_root(leaves: Sequence[bytes]) -> bytes:
    """Return the root (32 bytes) of the tree over `leaves`, in this order; that of no leaves is SHA-256 of nothing."""
    if not leaves:
        return hashlib.sha256().digest()
    if len(leaves) == 1:
        return _leaf(leaves[0])
    middle = _split(len(leaves))
    return _node(tree_root(leaves[:middle]), tree_root(leaves[middle:]))


def tree_path(leaves: Sequence[bytes], index: int) -> list[bytes]:
    """Return the hashes (32 bytes each) that lead from leaf `index` to the root, the lowest first.

    Raises `ParameterError` for an index outside the list.
    """
    if not 0 <= index < len(leaves):
        raise ParameterError(f"the tree has no leaf {index}")
    if len(leaves) == 1:
        return []
    middle = _split(len(leaves))
    if index < middle:
        return [*tree_path(leaves[:middle], index), tree_root(leaves[middle:])]
    return [*tree_path(leaves[middle:], index - middle), tree_root(leaves[:middle])]


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


def _split(size: int) -> int:
    """Return the largest power of two below `size`, which is at least 2."""
    return 1 << (size - 1).bit_length() - 1


def _leaf(leaf: bytes) -> bytes:
    return hashlib.sha256(b"\x00" + leaf).digest()


def _node(left: bytes, right: bytes) -> bytes:
    return hashlib.sha256(b"\x01" + left + right).digest()
