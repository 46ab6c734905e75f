"""The chain of aggregates and the signed statements of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from protocols.crypto.aggregate_chain import (
    CHAIN_BYTES,
    AggregateChain,
    StatedChain,
    extend_chain,
    first_chain,
    stated_chain,
)
from protocols.errors import CodecError, SignatureError

VECTORS = json.loads((Path(__file__).parents[2] / "vectors" / "aggregate_chains.json").read_text())


def verified(case: dict[str, Any]) -> tuple[bytes, int]:
    names = ("client_id", "method", "authority", "fields", "signature_input", "signature")
    stated = StatedChain(**{name: case[name] for name in names})
    return stated_chain(stated, bytes.fromhex(case["identity_key"]), case["task"], case["round"])


def test_the_links_of_the_vectors() -> None:
    before = first_chain(VECTORS["task"])
    for link in VECTORS["links"]:
        assert link["before"] == before.hex()
        before = extend_chain(before, link["round"], bytes.fromhex(link["sha256"]))
        assert link["digest"] == before.hex()


@pytest.mark.parametrize("case", VECTORS["stated"], ids=lambda case: case["method"])
def test_a_statement_of_this_round_verifies(case: dict[str, Any]) -> None:
    assert verified(case) == (bytes.fromhex(case["chain"]), case["created"])


@pytest.mark.parametrize("case", VECTORS["refused"], ids=lambda case: case["why"])
def test_any_other_statement_is_refused(case: dict[str, Any]) -> None:
    assert case["error"] == "SignatureError"
    with pytest.raises(SignatureError):
        verified(case)


@pytest.mark.parametrize(
    "changes",
    [
        {"client_id": "c_" + "0" * 20}, {"authority": "another.example"}, {"fields": {"aggregate-chain": "0" * 64}},
        {"identity_key": "00" * 32}, {"round": 9}, {"task": "t_" + "0" * 20}, {"method": "PATCH"},
    ],
    ids=lambda changes: next(iter(changes)),
)  # fmt: skip
def test_a_statement_that_was_verified_before_does_not_vouch_for_an_altered_one(changes: dict[str, Any]) -> None:
    case = next(case for case in VECTORS["stated"] if case["method"] == "PUT")
    verified(case)
    with pytest.raises(SignatureError):
        verified(case | changes)


def test_every_part_changes_the_chain() -> None:
    """Task, order, number and bytes of the aggregates."""
    first = AggregateChain.first("t_1")
    assert first.before == first.digest != AggregateChain.first("t_2").digest
    both = first.extended(1, b"a").extended(2, b"b")
    swapped, renumbered = first.extended(2, b"b").extended(1, b"a"), first.extended(1, b"a").extended(3, b"b")
    others = (swapped, renumbered, first.extended(2, b"b"))
    assert both.before == first.extended(1, b"a").digest
    assert len({both.digest, *(other.digest for other in others)}) == 4


def test_the_encoding() -> None:
    chain = AggregateChain.first("t_1").extended(1, b"a")
    assert AggregateChain.decode(chain.encode()) == chain
    assert len(chain.encode()) == CHAIN_BYTES
    with pytest.raises(CodecError, match="64 bytes"):
        AggregateChain.decode(chain.encode()[:-1])
