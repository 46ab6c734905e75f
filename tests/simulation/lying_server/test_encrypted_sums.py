"""A server that lies about encrypted sums: two aggregates, an aggregate again, an envelope again.

The server never holds a secret key, so no lie shows it a vector. With a member that gives it its keyring it opens every
contribution: a documented limit, which the tests here show.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Final

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from numpy.typing import NDArray

from client_sdk.rounds.certificates import MembershipCheck
from protocols.codec import b64encode
from protocols.crypto import envelope as envelopes
from protocols.crypto.certificates import certify
from protocols.crypto.envelope import EnvelopeSender, open_envelope, seal_envelope
from protocols.crypto.keys import Keyring, encode_keyring
from protocols.errors import CertificateError, EnvelopeError, KeyringError
from protocols.layout import TRAINED, Block, Segment, VectorLayout, whole_route
from protocols.messages import OrganiserPin
from protocols.sums.registry import mechanism
from tests.protocols.sums.paillier.cases import keyring_of

_LAYOUT: Final = VectorLayout((Block("b", (Segment("v", 8, 1.0),)),), sum_class=TRAINED)
BOTH = pytest.mark.parametrize("name", ["ckks", "paillier"])
DEFENDED = pytest.mark.parametrize("defended", [True, False], ids=["defended", "defence taken out"])


@dataclass(frozen=True)
class Task:
    """Three members' contributions to one round, and what they are encrypted with."""

    name: str
    plan: Any
    keyring: Keyring
    vectors: list[NDArray[np.float64]]
    bodies: list[bytes]

    def aggregate(self, *members: int) -> bytes:
        """Return the sum over some members, as the server releases it."""
        of, route = mechanism(self.name), whole_route(_LAYOUT)
        partial = of.fold(self.plan, None, ((route, self.bodies[member]) for member in members))
        return bytes(of.release(self.plan, partial))

    def opened(self, aggregate: bytes, count: int, keyring: Keyring) -> NDArray[np.float64]:
        """Return the opened sum. Raises `KeyringError` without the secret key."""
        return np.asarray(mechanism(self.name).open(self.plan, aggregate, count, keyring))

    def is_over(self, total: NDArray[np.float64], *members: int) -> bool:
        """Whether a total is the sum over these members."""
        error = self.plan.predicted_error + 1e-6
        return bool(np.allclose(total, np.sum([self.vectors[one] for one in members], axis=0), atol=error))


@cache
def task(name: str) -> Task:
    of = mechanism(name)
    plan = of.plan({"key_bits": 2048} if name == "paillier" else {}, _LAYOUT, 4)
    keyring = keyring_of(of, plan)
    assert keyring is not None
    vectors = [np.random.default_rng(member).uniform(-1, 1, 8) for member in range(3)]
    route = whole_route(_LAYOUT)
    bodies = [bytes(of.seal(plan, route, _LAYOUT.split(vector), keyring)) for vector in vectors]
    return Task(name, plan, keyring, vectors, bodies)


@BOTH
def test_two_aggregates_show_the_server_nothing(name: str) -> None:
    """Different sums to different members: the server cannot open either. A member's keyring opens both: the limit."""
    given = task(name)
    whole, less = given.aggregate(0, 1, 2), given.aggregate(0, 1)
    servers = replace(given.keyring, secret_key=b"")
    for aggregate, count in ((whole, 3), (less, 2), (given.aggregate(2), 1)):
        with pytest.raises(KeyringError):
            given.opened(aggregate, count, servers)
    difference = given.opened(whole, 3, given.keyring) - given.opened(less, 2, given.keyring)
    assert np.allclose(difference, given.vectors[2], atol=2 * given.plan.predicted_error + 1e-6)


@BOTH
def test_an_aggregate_again_is_the_same_sum(name: str) -> None:
    """The server hands out the aggregate of an earlier round: clients open that sum, and the server still nothing."""
    given = task(name)
    again = given.aggregate(0, 1, 2)
    assert given.is_over(given.opened(again, 3, given.keyring), 0, 1, 2)
    with pytest.raises(KeyringError):
        given.opened(again, 3, replace(given.keyring, secret_key=b""))


# --- envelopes --------------------------------------------------------------------------------------------------------


def certified(organiser: Ed25519PrivateKey, role: Any) -> tuple[EnvelopeSender, X25519PrivateKey]:
    """Return a sender of envelopes with a certificate for this role, and its mailbox."""
    signing, mailbox = Ed25519PrivateKey.generate(), X25519PrivateKey.generate()
    public = mailbox.public_key().public_bytes_raw()
    made = certify(organiser, "s", signing.public_key().public_bytes_raw(), public, role=role, serial=1, not_after=9)
    return EnvelopeSender(signing, public, made.encode()), mailbox


@DEFENDED
@pytest.mark.parametrize("lie", ["another task's", "another member's"])
def test_an_envelope_again(lie: str, defended: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server hands out an envelope that the holder made for another task, or for another member.

    Without the signed statement, the first one would open: the member would encrypt with the keys of that task.
    """
    organiser = Ed25519PrivateKey.generate()
    holder, _ = certified(organiser, "holder")
    member, other = X25519PrivateKey.generate(), X25519PrivateKey.generate()
    body = encode_keyring(task("paillier").keyring)
    for_whom = other if lie == "another member's" else member
    old = seal_envelope(body, for_whom.public_key().public_bytes_raw(), "t_1", holder)
    if not defended:
        real, tag = envelopes.derive_key, envelopes.domain_tag
        monkeypatch.setattr(envelopes, "derive_key", lambda secret, purpose, *_: real(secret, purpose))
        monkeypatch.setattr(envelopes, "domain_tag", lambda purpose, *_: tag(purpose))
        old = seal_envelope(body, for_whom.public_key().public_bytes_raw(), "t_1", holder)
    try:
        accepted = open_envelope(old, member, "t_2", lambda *_: None) == body
    except EnvelopeError:
        accepted = False
    assert accepted is (not defended and lie == "another task's")


@DEFENDED
def test_an_envelope_of_a_member_that_helps_the_server(defended: bool) -> None:
    """A certified member seals keys that the server knows: only the role of key holder counts."""
    organiser = Ed25519PrivateKey.generate()
    helper, _ = certified(organiser, "member")
    member = X25519PrivateKey.generate()
    key = organiser.public_key().public_bytes_raw()
    check = MembershipCheck(OrganiserPin(key=b64encode(key), scope="s"), clock=lambda: 0.0)
    roles: Any = ("holder",) if defended else ("holder", "member")
    sealed = seal_envelope(b"the server's keys", member.public_key().public_bytes_raw(), "t_1", helper)
    try:
        accepted = open_envelope(sealed, member, "t_1", lambda *sender: check.require(*sender, roles)) != b""
    except CertificateError:
        accepted = False
    assert accepted is not defended
