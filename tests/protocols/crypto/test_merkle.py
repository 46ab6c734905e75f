"""Merkle trees: every leaf of every small tree has one proof, which holds for nothing else."""

from __future__ import annotations

import hashlib

import pytest

from protocols.crypto.merkle import Tree, is_leaf
from protocols.errors import ParameterError

LEAVES = [bytes([number]) for number in range(20)]


def test_the_roots_are_those_of_rfc_9162() -> None:
    """By hand: no leaves, one leaf, and three leaves, of which the third stands alone."""
    one, two, three = (hashlib.sha256(b"\0" + leaf).digest() for leaf in LEAVES[:3])
    both = hashlib.sha256(b"\1" + one + two).digest()
    assert Tree([]).root == hashlib.sha256(b"").digest()
    assert Tree(LEAVES[:1]).root == one
    assert Tree(LEAVES[:3]).root == hashlib.sha256(b"\1" + both + three).digest()
    assert Tree(LEAVES[:3]).path(2) == [both]


@pytest.mark.parametrize("size", range(1, 20))
def test_each_leaf_has_a_proof_that_holds_for_nothing_else(size: int) -> None:
    leaves, root = LEAVES[:size], Tree(LEAVES[:size]).root
    for index, leaf in enumerate(leaves):
        path = Tree(leaves).path(index)
        assert is_leaf(leaf, index, size, path, root)
        assert not is_leaf(b"another", index, size, path, root)
        assert not is_leaf(leaf, index, size, path, Tree(LEAVES[: size + 1]).root)
        assert not is_leaf(leaf, index, size, [*path, root], root)
        assert not path or not is_leaf(leaf, index, size, path[:-1], root)
        assert not is_leaf(leaf, -1, size, path, root)
        assert not is_leaf(leaf, size, size, path, root)
        others = [other for other in range(size) if other != index and is_leaf(leaf, other, size, path, root)]
        assert not others, "a place in the tree is one index"


def test_a_leaf_that_is_not_in_the_list_has_no_path() -> None:
    with pytest.raises(ParameterError, match="no leaf 3"):
        Tree(LEAVES[:3]).path(3)
