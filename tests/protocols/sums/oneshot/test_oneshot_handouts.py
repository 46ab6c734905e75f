"""What the server hands out in a one-shot round: round trips, and bytes that are refused."""

from __future__ import annotations

import pytest

from protocols.errors import CodecError
from protocols.sums.oneshot.handouts import (
    join_confirmations,
    join_keys,
    split_confirmations,
    split_keys,
    split_shares,
    split_statements,
)
from tests.protocols.sums.oneshot.rounds import Round, small_plan


@pytest.fixture(scope="module")
def played() -> Round:
    made = Round(small_plan())
    made.contribute()
    return made


def test_the_keys_of_a_committee(played: Round) -> None:
    body = join_keys(key.encode() for key in played.committee.members)
    assert tuple(split_keys(body)) == played.committee.members
    one = join_keys([played.committee.members[0].encode()])
    for wrong in (body[:-1], body + b"\x01", one * 17):
        with pytest.raises(CodecError):
            split_keys(wrong)


def test_statements_and_shares(played: Round) -> None:
    statements = played.statements()
    body = b"".join(statement.encode() for statement in statements)
    assert split_statements(played.plan, body, len(statements)) == statements
    for wrong, most in ((body, len(statements) - 1), (body[:-1], 6), (body + b"\x01", 7)):
        with pytest.raises(CodecError):
            split_statements(played.plan, wrong, most)
    sealed = [upload.ticket.sealed[0] for upload in played.uploads.values()]
    assert split_shares(played.plan, b"".join(sealed), len(sealed)) == sealed
    with pytest.raises(CodecError):
        split_shares(played.plan, b"".join(sealed), len(sealed) - 1)


def test_confirmations(played: Round) -> None:
    confirmed = {name: played.confirm(name)[0].signature for name in played.members[1:]}
    body = join_confirmations(played.members[::-1], confirmed)
    assert body.startswith(bytes(64))
    assert split_confirmations(played.committee, body) == confirmed
    with pytest.raises(CodecError):
        split_confirmations(played.committee, body[:-1])
