"""What the server hands out in a one-shot round: round trips, and bytes that are refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocols.errors import CodecError
from protocols.sums.oneshot.committee import (
    join_confirmations,
    join_keys,
    split_confirmations,
    split_keys,
    split_shares,
    split_statements,
)
from protocols.sums.oneshot.server import kept_from_opening
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


MEMBERS = ("a", "b", "c", "d", "e")


def test_reports_that_leave_enough_members_keep_nobody_out() -> None:
    assert kept_from_opening(MEMBERS, {"d": ["x"], "e": ["x", "y"], "c": []}, 3, {}) == frozenset()


def test_of_members_that_report_the_less_distrusted_are_believed() -> None:
    reports = {"a": ["liar 1"], "b": ["liar 2"], "c": ["x"], "d": [], "e": ["x"]}
    assert kept_from_opening(MEMBERS, reports, 3, {}) == {"liar 1", "liar 2", "x"}  # a, b and c: smallest ids
    assert kept_from_opening(MEMBERS, reports, 3, {"a": 1, "b": 1}) == {"x"}  # c, d and e


@given(reports=st.dictionaries(st.sampled_from(MEMBERS), st.frozensets(st.sampled_from("uvwxyz"))))
def test_without_those_kept_out_enough_members_can_open_the_rest(reports: dict[str, frozenset[str]]) -> None:
    out = kept_from_opening(MEMBERS, reports, 3, {})
    assert sum(not reports.get(member, frozenset()) - out for member in MEMBERS) >= 3
    assert out <= frozenset().union(*reports.values())
