"""Membership certificates and revocation lists: what the organiser signed holds, and nothing else does."""

from __future__ import annotations

from dataclasses import replace

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given, settings
from hypothesis import strategies as st

from protocols.crypto import certificates
from protocols.crypto.certificates import (
    CERTIFICATE_BYTES,
    LONGEST_SCOPE,
    Certificate,
    RevocationList,
    certificate_request,
    certify,
    check_certificate,
    check_revocations,
    check_scope,
    revoke,
    subject_of,
)
from protocols.crypto.keys import domain_tag
from protocols.crypto.sealing import SealingKey
from protocols.errors import CertificateError, CodecError, ParameterError

ORGANISER, STRANGER = Ed25519PrivateKey.generate(), Ed25519PrivateKey.generate()
PUBLIC = ORGANISER.public_key().public_bytes_raw()
IDENTITY = Ed25519PrivateKey.generate().public_key().public_bytes_raw()
MAILBOX = SealingKey.generate().name
NOW = 1_800_000_000
LATER = NOW + 3600


def certificate(**changes: object) -> Certificate:
    given: dict[str, object] = {"role": "member", "serial": 7, "not_after": LATER, **changes}
    return certify(ORGANISER, "movies", IDENTITY, MAILBOX, **given)


def test_a_certificate_holds_until_its_last_second_for_what_it_was_signed_for() -> None:
    made, foreign = certificate(), STRANGER.public_key().public_bytes_raw()
    keys = {"organiser_key": PUBLIC, "identity_key": IDENTITY, "mailbox_key": MAILBOX}
    good = {**keys, "scope": "movies", "certificate": made}
    for now in (NOW, LATER):
        check_certificate(**good, now=now)
    with pytest.raises(CertificateError, match="expired"):
        check_certificate(**good, now=LATER + 1)
    listed = revoke(ORGANISER, "movies", [], NOW)  # its signature is no certificate's
    changes = (
        *({"scope": "songs"}, {"identity_key": MAILBOX}, {"mailbox_key": IDENTITY}),
        *({"organiser_key": key} for key in (foreign, bytes(32), b"short")),
        *({"certificate": replace(made, **{name: value})} for name, value in (("role", "holder"), ("serial", 8))),
        *({"certificate": replace(made, not_after=LATER + 1)}, {"certificate": replace(made, signature=bytes(64))}),
        {"certificate": Certificate("member", 0, LATER, listed.signature)},
    )
    for changed in changes:
        with pytest.raises(CertificateError, match="not signed by the organiser"):
            check_certificate(**{**good, **changed}, now=NOW)


@given(
    role=st.sampled_from(["member", "holder", "committee"]),
    serial=st.integers(0, 2**64 - 1),
    not_after=st.integers(0, 2**64 - 1),
)
@settings(max_examples=30, deadline=None)
def test_a_certificate_is_found_again_in_its_bytes(role: str, serial: int, not_after: int) -> None:
    made = certificate(role=role, serial=serial, not_after=not_after)
    body = made.encode()
    assert len(body) == CERTIFICATE_BYTES == 81
    assert Certificate.decode(body) == made


def test_what_is_no_certificate() -> None:
    for body in (b"", bytes(80), bytes(82), b"\x03" + bytes(80), b"\xff" + bytes(80)):
        with pytest.raises(CodecError):
            Certificate.decode(body)
    for identity, mailbox, text in ((IDENTITY, MAILBOX[:31], "32 bytes"), (IDENTITY[:31], MAILBOX, "32 bytes")):
        with pytest.raises(ParameterError, match=text):
            certify(ORGANISER, "movies", identity, mailbox, role="member", serial=1, not_after=LATER)
    for changes in ({"serial": -1}, {"serial": 2**64}, {"not_after": -1}, {"not_after": 2**64}):
        with pytest.raises(ParameterError, match="2\\^64"):
            certificate(**changes)


@given(serials=st.frozensets(st.integers(0, 2**64 - 1), max_size=9))
@settings(max_examples=20, deadline=None)
def test_a_revocation_list_is_found_again_in_its_bytes(serials: frozenset[int]) -> None:
    made = revoke(ORGANISER, "movies", serials, NOW)
    again = RevocationList.decode(made.encode())
    assert again == made
    check_revocations(PUBLIC, "movies", again)
    assert all(again.covers(certificate(serial=serial)) for serial in serials)
    assert again.covers(certificate()) == (7 in serials)


def test_a_revocation_list_that_was_changed_is_noticed() -> None:
    made = revoke(ORGANISER, "movies", [1, 2, 3], NOW)
    for changed in (
        replace(made, serials=frozenset({1, 2})),
        replace(made, issued_at=NOW + 1),
        revoke(STRANGER, "movies", [1, 2, 3], NOW),
        revoke(ORGANISER, "songs", [1, 2, 3], NOW),
    ):
        with pytest.raises(CertificateError, match="revocation list"):
            check_revocations(PUBLIC, "movies", changed)


@given(st.tuples(*[st.tuples(st.integers(0, 3), st.frozensets(st.integers(0, 3)))] * 2))
@settings(max_examples=40, deadline=None)
def test_of_two_lists_the_later_one_or_the_one_that_revokes_more_is_newer(
    lists: tuple[tuple[int, frozenset[int]], tuple[int, frozenset[int]]],
) -> None:
    one, other = (revoke(ORGANISER, "movies", serials, NOW + seconds) for seconds, serials in lists)
    assert not one.is_older_than(one)
    if one.issued_at != other.issued_at:
        assert one.is_older_than(other) == (one.issued_at < other.issued_at)
    else:  # neither is taken for the other if each revokes what the other does not
        assert one.is_older_than(other) == bool(other.serials - one.serials)


def test_a_revocation_list_has_one_form() -> None:
    body = revoke(ORGANISER, "movies", [1, 2], NOW).encode()
    head, first, second, rest = body[:12], body[12:20], body[20:28], body[28:]
    for wrong in (body + b"x", body[:-1], head + second + first + rest, head + first + first + rest):
        with pytest.raises(CodecError):
            RevocationList.decode(wrong)
    with pytest.raises(CodecError, match="at most"):
        RevocationList.decode(bytes(8) + b"\xff\xff\xff\xff" + bytes(64))


def test_limits_are_inclusive(monkeypatch: pytest.MonkeyPatch) -> None:
    """The longest scope, the most serials and the largest numbers are accepted, and one more is not."""
    longest = "s" * LONGEST_SCOPE
    check_scope(longest), check_scope("s")
    for wrong in (longest + "s", "é" * (LONGEST_SCOPE // 2 + 1), ""):
        with pytest.raises(ParameterError, match="1 to"):
            check_scope(wrong)
        with pytest.raises(ParameterError, match="1 to 100 bytes"):
            certify(ORGANISER, wrong, IDENTITY, MAILBOX, role="member", serial=1, not_after=LATER)
    largest = certify(ORGANISER, "s", IDENTITY, MAILBOX, role="member", serial=2**64 - 1, not_after=2**64 - 1)
    check_certificate(PUBLIC, "s", IDENTITY, MAILBOX, largest, now=2**64 - 1)
    monkeypatch.setattr(certificates, "MOST_REVOKED", 2)
    full = revoke(ORGANISER, "s", [0, 2**64 - 1], NOW)
    assert RevocationList.decode(full.encode()) == full
    for wrong in ([0, 1, 2], [-1], [2**64]):
        with pytest.raises(ParameterError, match="at most 2 serials"):
            revoke(ORGANISER, "s", wrong, NOW)
    with pytest.raises(CodecError, match="at most 2 serials"):
        RevocationList.decode(RevocationList(NOW, frozenset({0, 1, 2}), bytes(64)).encode())


def test_a_request_is_for_one_scope_role_and_pair_of_keys() -> None:
    """A client signs it: the signature must serve for no other certificate, and as no other kind of message."""
    own = ("movies", "member", IDENTITY, MAILBOX)
    assert certificate_request(*own) == domain_tag("certificate request", *own)


def test_the_subject_of_a_certificate_is_its_serial() -> None:
    """A person who renews a certificate, or gets new keys for it, is the same; another serial is another person."""
    made = {serial: subject_of(certificate(serial=serial).encode()) for serial in (0, 7, 2**56, 2**63 + 7)}
    assert len({*made.values()}) == 4 and {len(one or b"") for one in made.values()} == {8}
    assert subject_of(certificate(serial=7, role="holder", not_after=1).encode()) == made[7]
