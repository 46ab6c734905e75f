"""The organiser: certificates for its subjects alone, one identity each, and a revocation list that reaches clients."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from client_sdk import Identity
from client_sdk.errors import LocalFileError
from client_sdk.organiser import Organiser
from protocols.crypto.certificates import check_certificate, check_revocations
from protocols.errors import CertificateError, ParameterError

HOUR = 3600


class Clock:
    """Seconds since the epoch, moved by hand."""

    def __init__(self) -> None:
        self.now = 1_800_000_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def organiser(tmp_path: Path, clock: Clock) -> Organiser:
    made = Organiser.create(tmp_path / "organiser")
    return Organiser(made.signing_key, made.issued, clock)


def test_what_it_certifies_holds_and_what_it_revokes_is_listed(organiser: Organiser, clock: Clock) -> None:
    ann = Identity.generate()
    made = organiser.certify("movies", "ann", ann.public_key, ann.mailbox_key, lifetime=HOUR)
    check_certificate(organiser.public_key, "movies", ann.public_key, ann.mailbox_key, made, clock.now + HOUR)
    assert not organiser.revocations("movies").covers(made)
    listed = organiser.revoke("movies", "ann")
    check_revocations(organiser.public_key, "movies", listed)
    assert listed.covers(made)
    assert listed.issued_at == int(clock.now)
    assert not organiser.revocations("songs").covers(made)


def test_one_subject_has_one_identity(organiser: Organiser) -> None:
    """What keeps one person from becoming a hundred members."""
    ann, other = Identity.generate(), Identity.generate()
    first = organiser.certify("movies", "ann", ann.public_key, ann.mailbox_key, lifetime=HOUR)
    again = organiser.certify("movies", "ann", ann.public_key, ann.mailbox_key, lifetime=2 * HOUR)
    assert (again.serial, again.not_after - first.not_after) == (first.serial, HOUR)
    with pytest.raises(ParameterError, match="other keys"):
        organiser.certify("movies", "ann", other.public_key, other.mailbox_key)
    with pytest.raises(ParameterError, match="another subject"):
        organiser.certify("movies", "bob", ann.public_key, ann.mailbox_key)
    organiser.certify("songs", "ann", other.public_key, other.mailbox_key)  # another scope


def test_one_subject_has_one_role(organiser: Organiser) -> None:
    """A member that is the key holder as well is in the roster twice, and counts as one of the honest clients."""
    ann, other = Identity.generate(), Identity.generate()
    organiser.certify("movies", "ann", ann.public_key, ann.mailbox_key, "holder")
    organiser.certify("movies", "ann", ann.public_key, ann.mailbox_key, "holder")
    for keys in (ann, other):
        with pytest.raises(ParameterError, match="already has a certificate for the role holder"):
            organiser.certify("movies", "ann", keys.public_key, keys.mailbox_key)
    assert len(organiser.held("movies")) == 1
    with pytest.raises(ParameterError, match="another subject"):  # not the keys of a member for the holder, either
        organiser.certify("movies", "bob", ann.public_key, ann.mailbox_key, "member")


def test_a_revoked_subject_stays_out_until_it_is_readmitted(organiser: Organiser) -> None:
    lost, fresh = Identity.generate(), Identity.generate()
    old = organiser.certify("movies", "ann", lost.public_key, lost.mailbox_key)
    organiser.revoke("movies", "ann")
    for keys in (lost, fresh):
        for role in ("member", "holder"):
            with pytest.raises(ParameterError, match="revoked: it gets no other, for any keys, until the organiser"):
                organiser.certify("movies", "ann", keys.public_key, keys.mailbox_key, role)
    organiser.certify("songs", "ann", lost.public_key, lost.mailbox_key)  # another scope
    organiser.readmit("movies", "ann")
    new = organiser.certify("movies", "ann", fresh.public_key, fresh.mailbox_key)
    listed = organiser.revocations("movies")
    assert (listed.covers(old), listed.covers(new)) == (True, False)
    with pytest.raises(ParameterError, match="was revoked in scope"):
        organiser.readmit("movies", "ann")
    with pytest.raises(ParameterError, match="holds no certificate"):
        organiser.revoke("movies", "nobody")


def test_expired_certificates_leave_the_revocation_list(organiser: Organiser, clock: Clock) -> None:
    ann = Identity.generate()
    made = organiser.certify("movies", "ann", ann.public_key, ann.mailbox_key, lifetime=HOUR)
    organiser.revoke("movies", "ann")
    clock.now += HOUR + 1
    assert not organiser.revocations("movies").covers(made)
    with pytest.raises(CertificateError, match="expired"):
        check_certificate(organiser.public_key, "movies", ann.public_key, ann.mailbox_key, made, clock.now)


def test_a_shorter_renewal_does_not_shorten_the_listing_of_the_first(organiser: Organiser, clock: Clock) -> None:
    ann = Identity.generate()
    long = organiser.certify("movies", "ann", ann.public_key, ann.mailbox_key, lifetime=10 * HOUR)
    organiser.certify("movies", "ann", ann.public_key, ann.mailbox_key, lifetime=HOUR)
    organiser.revoke("movies", "ann")
    clock.now += 2 * HOUR
    assert organiser.revocations("movies").covers(long)


def test_nothing_is_recorded_for_what_cannot_be_certified(organiser: Organiser) -> None:
    ann = Identity.generate()
    for call in (
        lambda: organiser.certify("movies", "ann", ann.public_key, bytes(32)),
        lambda: organiser.certify("", "ann", ann.public_key, ann.mailbox_key),
        lambda: organiser.certify("movies", "ann", ann.public_key, ann.mailbox_key, lifetime=0),
    ):
        with pytest.raises(ParameterError):
            call()
    assert organiser.held("movies") == []


def test_key_and_ledger_are_for_their_owner_alone(tmp_path: Path) -> None:
    folder = tmp_path / "organiser"
    made = Organiser.create(folder)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()} == {0o600}
    assert Organiser.open(folder).public_key == made.public_key
    with pytest.raises(LocalFileError, match="never overwritten"):
        Organiser.create(folder)
    (folder / "organiser.key").chmod(0o644)
    with pytest.raises(LocalFileError, match="chmod 600"):
        Organiser.open(folder)


@pytest.mark.parametrize("body", [b"", b"[]", b'{"format": "other"}', b'{"format": "hushrec organiser 1"}'])
def test_a_damaged_key_file_is_named(tmp_path: Path, body: bytes) -> None:
    Organiser.create(tmp_path)
    (tmp_path / "organiser.key").write_bytes(body)
    with pytest.raises(LocalFileError, match="organiser.key"):
        Organiser.open(tmp_path)


def test_it_shows_its_public_key_alone(organiser: Organiser) -> None:
    secret = organiser.signing_key.private_bytes_raw()
    assert secret.hex() not in repr(organiser)
    assert "organiser" in repr(organiser).lower()
