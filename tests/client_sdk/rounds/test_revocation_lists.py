"""Revocation lists at the client: stored, and never older than before, also after a restart."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from client_sdk import Identity
from client_sdk.api.calls import ApiCalls
from client_sdk.api.wire import Program
from client_sdk.errors import LocalFileError
from client_sdk.rounds.certificates import MembershipCheck
from client_sdk.store.client_store import ClientStore
from client_sdk.store.stores import DirectoryStore
from protocols.codec import b64encode
from protocols.crypto.certificates import certify, revoke
from protocols.errors import CertificateError
from protocols.messages import OrganiserPin

ORGANISER = Ed25519PrivateKey.generate()
PIN = OrganiserPin(key=b64encode(ORGANISER.public_key().public_bytes_raw()), scope="movies")
NOW = 1_800_000_000


class Server:
    """Returns one revocation list, or none."""

    def __init__(self, body: bytes | None) -> None:
        self._body = body

    def revocations(self, _task_id: str) -> Program[bytes | None]:
        """Return the list."""
        return self._body
        yield


def started(store: ClientStore, body: bytes | None, task_id: str = "t_1") -> MembershipCheck:
    """The membership check of a client that has just started, with the list of a server."""
    check = MembershipCheck(PIN, clock=lambda: float(NOW))
    program = check.refresh(cast(ApiCalls, Server(body)), store, task_id)
    with pytest.raises(StopIteration):
        next(program)
    return check


def listed(issued_at: int, *serials: int) -> bytes:
    return revoke(ORGANISER, "movies", serials, issued_at).encode()


def accepts(check: MembershipCheck, who: Identity, serial: int) -> bool:
    made = certify(ORGANISER, "movies", who.public_key, who.mailbox_key, role="member", serial=serial, not_after=NOW)
    try:
        check.require(who.public_key, who.mailbox_key, made.encode(), ("member",))
    except CertificateError:
        return False
    return True


@pytest.fixture
def store(tmp_path: Path) -> ClientStore:
    return ClientStore(DirectoryStore(tmp_path), "ab12", "https://recs.example")


def test_attack_a_restarted_client_gets_an_older_revocation_list(store: ClientStore) -> None:
    """The server wants its revoked colluder back in the roster of a client that has seen the newest list."""
    colluder, honest = Identity.generate(), Identity.generate()
    assert accepts(started(store, None), colluder, 7)
    check = started(store, listed(NOW, 7))
    assert (accepts(check, colluder, 7), accepts(check, honest, 8)) == (False, True)
    for body, what in ((listed(NOW - 1), "an older"), (listed(NOW, 8), "an older"), (None, "no")):
        for server in (store, ClientStore(store.store, store.owner, "https://other.example")):
            with pytest.raises(CertificateError, match=f"returned {what} revocation list of scope 'movies'.*operator"):
                started(server, body, "t_2")
    assert not accepts(started(store, listed(NOW, 7)), colluder, 7)
    assert not accepts(started(store, listed(NOW + 1, 7, 8)), honest, 8)


def test_lists_of_other_organisers_and_damaged_files(store: ClientStore, tmp_path: Path) -> None:
    started(store, listed(NOW))
    with pytest.raises(CertificateError, match="not signed"):
        started(store, revoke(Ed25519PrivateKey.generate(), "movies", [], NOW + 1).encode())
    assert store.memberships() == []  # the list is no task
    other: Any = OrganiserPin(key=PIN.key, scope="songs")
    assert store.revocations(other) is None
    (path,) = tmp_path.rglob("revocations.bin")
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(LocalFileError, match="damaged"):
        started(store, listed(NOW))
