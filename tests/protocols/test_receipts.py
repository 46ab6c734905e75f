"""Receipts: what they prove of a contribution, every way of altering one, and two that prove a lie."""

from __future__ import annotations

from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from protocols.codec import b64encode
from protocols.crypto.certificates import certify
from protocols.crypto.keys import digest, person_of
from protocols.errors import ReceiptError
from protocols.messages import OrganiserPin
from protocols.messages.receipts import Receipt, Release, RoundReceipt
from protocols.receipts import (
    Survivors,
    acknowledge,
    check_receipt,
    contradiction,
    read_receipt,
    release,
    show_receipt,
)

TASK, ROUND = "t_1", 3
SERVER, ORGANISER = (Ed25519PrivateKey.from_private_bytes(digest("receipt", name)) for name in ("server", "organiser"))
MEMBERS = [Ed25519PrivateKey.from_private_bytes(digest("receipt member", number)) for number in range(12)]
MAILBOX, AGGREGATE, SENT = digest("mailbox"), digest("aggregate").hex(), digest("contribution").hex()


def public(key: Ed25519PrivateKey) -> bytes:
    return key.public_key().public_bytes_raw()


def leaves(members: list[Ed25519PrivateKey]) -> list[bytes]:
    return [person_of(public(member)) for member in members]


def ended(among: list[Ed25519PrivateKey], me: Ed25519PrivateKey = MEMBERS[0], **changes: Any) -> RoundReceipt:
    """What an honest server says of a round with these survivors; none: it failed."""
    found = leaves(among)
    facts = {"aggregate": AGGREGATE if among else None, "number": ROUND, "key": SERVER} | changes
    stated = release(facts["key"], TASK, facts["number"], 2, len(found), Survivors(found).root, facts["aggregate"])
    return RoundReceipt(release=stated, places=Survivors(found).places_of(person_of(public(me))))


def unsigned(said: RoundReceipt | None, me: Ed25519PrivateKey = MEMBERS[0], sent: str = SENT) -> Receipt:
    certificate = certify(ORGANISER, "app", public(me), MAILBOX, role="member", serial=7, not_after=9)
    return Receipt(
        server_key=b64encode(public(SERVER)),
        identity_key=b64encode(public(me)),
        mailbox_key=b64encode(MAILBOX),
        organiser=OrganiserPin(key=b64encode(public(ORGANISER)), scope="app"),
        certificate=b64encode(certificate.encode()),
        acknowledged=acknowledge(SERVER, public(me), TASK, ROUND, sent, 100),
        round=said,
        audience="an auditor",
        signature=b64encode(bytes(64)),
    )


def shown(said: RoundReceipt | None, me: Ed25519PrivateKey = MEMBERS[0], sent: str = SENT) -> Receipt:
    return show_receipt(me, unsigned(said, me, sent))


def test_a_member_is_counted_or_omitted_wherever_it_is_among_the_others() -> None:
    """In sets of every size, and at every place in the order of the leaves."""
    for size in range(1, len(MEMBERS) + 1):
        for me in MEMBERS[:size]:
            one = check_receipt(shown(ended(MEMBERS[:size], me), me))
            assert (one.verdict, one.certified) == ("counted", True)
            others = [member for member in MEMBERS[:size] if member is not me]
            expected = "omitted" if others else "failed"
            assert check_receipt(shown(ended(others, me), me)).verdict == expected


def test_a_round_that_failed_or_goes_on_counts_nobody() -> None:
    assert check_receipt(shown(ended([]))).verdict == "failed"
    assert check_receipt(shown(None)).verdict == "acknowledged"


def test_a_receipt_is_read_from_its_file_and_holds_no_contribution() -> None:
    receipt = shown(ended(MEMBERS))
    body = receipt.model_dump_json(indent=1).encode()
    assert read_receipt(body) == receipt
    assert len(body) < 3000
    without = unsigned(None).model_copy(update={"organiser": None, "certificate": None})
    assert not check_receipt(show_receipt(MEMBERS[0], without)).certified


@pytest.mark.parametrize("body", [b"", b"[]", b"{}", b'{"format": "hushrec receipt 2"}', b"\xff", b" " * 70_000])
def test_what_is_no_receipt_is_refused(body: bytes) -> None:
    with pytest.raises(ReceiptError, match="receipt"):
        read_receipt(body)


def test_every_altered_fact_is_refused() -> None:
    """Also where the member itself alters it, and signs what it made of it."""
    honest = unsigned(ended(MEMBERS))
    stated, place = honest.round.release, honest.round.places[0]  # type: ignore[union-attr]
    other = digest("other").hex()

    def with_release(**changes: Any) -> dict[str, Any]:
        return {"round": honest.round.model_copy(update={"release": stated.model_copy(update=changes)})}  # type: ignore[union-attr]

    def with_place(**changes: Any) -> dict[str, Any]:
        return {"round": honest.round.model_copy(update={"places": [place.model_copy(update=changes)]})}  # type: ignore[union-attr]

    acknowledged = honest.acknowledged
    altered: list[dict[str, Any]] = [
        {"server_key": honest.identity_key},
        {"identity_key": b64encode(public(MEMBERS[1]))},
        {"mailbox_key": b64encode(digest("other"))},
        {"organiser": OrganiserPin(key=honest.identity_key, scope="app")},
        {"organiser": OrganiserPin(key=b64encode(public(ORGANISER)), scope="other")},
        {"certificate": "AAAA"},
        *(
            {"acknowledged": acknowledged.model_copy(update=change)}
            for change in ({"task_id": "t_2"}, {"round": 4}, {"digest": other}, {"bytes": 99})
        ),
        *(
            with_release(**change)
            for change in (
                {"task_id": "t_2"},
                {"round": 4},
                {"sum_index": 1},
                {"survivors": 11},
                {"survivors_digest": other},
                {"aggregate_digest": other},
                {"aggregate_digest": None},
            )
        ),
        with_place(leaf=other),
        with_place(index=place.index ^ 1),
        with_place(path=[]),
        with_place(path=[*place.path, other]),
        {"round": honest.round.model_copy(update={"places": []})},  # type: ignore[union-attr]
        {"round": ended(MEMBERS, number=ROUND + 1)},
        {"round": ended(MEMBERS, key=ORGANISER)},
        {"round": ended(MEMBERS, aggregate=None)},
        {"round": ended([], aggregate=AGGREGATE)},
        {"round": ended(MEMBERS, MEMBERS[5])},
        {"round": RoundReceipt(release=ended([]).release, places=[place])},
    ]
    for change in altered:
        with pytest.raises(ReceiptError):
            show_receipt(MEMBERS[0], honest.model_copy(update=change))
        with pytest.raises(ReceiptError):
            check_receipt(show_receipt(MEMBERS[0], honest).model_copy(update=change))
    signed = show_receipt(MEMBERS[0], honest)
    for change in ({"audience": "somebody else"}, {"signature": b64encode(bytes(64))}):
        with pytest.raises(ReceiptError, match="not signed by the member"):
            check_receipt(signed.model_copy(update=change))


def test_an_omission_needs_the_two_places_between_which_the_member_would_be() -> None:
    """One neighbour, two that are not next to each other, or the wrong way round, prove nothing."""
    ordered = sorted(MEMBERS, key=lambda member: person_of(public(member)))
    me, others = ordered[6], [*ordered[:6], *ordered[7:]]
    honest = ended(others, me)
    places = [Survivors(leaves(others)).places_of(leaf)[0] for leaf in sorted(leaves(others))]
    assert [place.index for place in honest.places] == [5, 6]
    for wrong in ([places[5]], [places[6]], [places[4], places[6]], [places[6], places[5]], [places[0], places[1]]):
        with pytest.raises(ReceiptError, match="neither"):
            shown(RoundReceipt(release=honest.release, places=wrong), me)
    for first_or_last, rest in ((ordered[0], ordered[1:]), (ordered[-1], ordered[:-1])):
        assert len(ended(rest, first_or_last).places) == 1
        assert check_receipt(shown(ended(rest, first_or_last), first_or_last)).verdict == "omitted"


def test_two_receipts_of_one_round_prove_that_the_server_lied() -> None:
    mine, others = shown(ended(MEMBERS)), shown(ended(MEMBERS, MEMBERS[1]), MEMBERS[1])
    assert contradiction(mine, others) is None
    fewer = shown(ended(MEMBERS[:5], MEMBERS[1]), MEMBERS[1])
    assert "two different ends" in str(contradiction(mine, fewer))
    another = shown(ended(MEMBERS, MEMBERS[1], aggregate=digest("another").hex()), MEMBERS[1])
    assert "two different ends" in str(contradiction(mine, another))
    twice = shown(None, sent=digest("second").hex())
    assert "two different contributions" in str(contradiction(mine, twice))
    assert contradiction(shown(None), shown(None, MEMBERS[1])) is None
    elsewhere = mine.model_copy(update={"server_key": b64encode(public(ORGANISER))})
    later = mine.model_copy(update={"acknowledged": mine.acknowledged.model_copy(update={"round": ROUND + 1})})
    assert contradiction(mine, elsewhere) is contradiction(mine, later) is None


def test_the_release_says_every_fact_that_it_signs() -> None:
    assert set(Release.model_fields) - {"signature"} == {
        *("task_id", "round", "sum_index", "survivors", "survivors_digest", "aggregate_digest"),
    }
