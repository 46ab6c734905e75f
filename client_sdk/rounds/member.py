"""One client of one task: who it is, what it agreed to, and the keyring that it shares with the other members.

The keyring goes through the server, which must not learn it. The key holder creates it, checks each member's
certificate, and stores one sealed and signed envelope per member on the server. A member opens its envelope with its
X25519 key, after checking the holder's signature and certificate.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial

from client_sdk.agreement.policy import Policy
from client_sdk.agreement.terms import TaskTerms
from client_sdk.api.calls import ApiCalls
from client_sdk.api.wire import Program
from client_sdk.errors import Conflict, PolicyRefused
from client_sdk.rounds.certificates import MembershipCheck
from client_sdk.store.client_store import ClientStore
from client_sdk.store.identity import Identity, Membership
from protocols.crypto.certificates import NO_CERTIFICATE
from protocols.crypto.envelope import EnvelopeSender, open_envelope, seal_envelope
from protocols.crypto.keys import Keyring, decode_keyring, encode_keyring
from protocols.errors import KeyringError, ParameterError
from protocols.sums.base import Keyed, NamesPublicKey

Stop = Callable[[], bool]
"""Returns whether to stop taking part; called before each poll."""


@dataclass(frozen=True)
class Member:
    """One client of one task: a contributor, the key holder, or a member of the committee.

    calls: the API with the client's token, signed by its identity. terms: of the task, as this client agreed to them.
    store: what it keeps. policy: what it agrees to. check: who else is a member.
    """

    calls: ApiCalls
    terms: TaskTerms
    membership: Membership
    identity: Identity
    store: ClientStore
    policy: Policy
    check: MembershipCheck = field(repr=False)

    @property
    def task_id(self) -> str:
        """The task's id."""
        return self.terms.task_id

    @property
    def client_id(self) -> str:
        """The client's id in the task."""
        return self.membership.client_id


def require_known_people(member: Member) -> None:
    """Raise `PolicyRefused` if only the server says who takes part, and the policy does not trust it with that."""
    if member.check.pin is None and not member.policy.trust_roster:
        raise PolicyRefused(
            f"task {member.terms.name!r} has no organiser, so only the server says who the other clients, the key "
            "holder and the committee are; allow it with Policy(trust_roster=True) or --trust-roster, or ask for a "
            "task with an organiser and join with its certificate (certificate=..., --issuer)"
        )


# --- the keyring of an encrypted task ---------------------------------------------------------------------------------


def create_keyring(terms: TaskTerms) -> Keyring:
    """Generate the keyring of a task from its plan; `ParameterError` when the mechanism needs none."""
    if not isinstance(terms.mechanism, Keyed):
        raise ParameterError(f"task {terms.name!r} uses the mechanism {terms.mechanism.name!r}, which needs no keyring")
    return terms.mechanism.generate_keyring(terms.sum_plan)


def check_keyring(terms: TaskTerms, keyring: Keyring) -> Keyring:
    """Return `keyring`; raise `KeyringError` unless it is for the task's mechanism and parameters."""
    if keyring.mechanism != terms.mechanism.name:
        raise KeyringError(
            f"the keyring is for the mechanism {keyring.mechanism!r}, not for that of task {terms.name!r}"
        )
    expected = getattr(terms.sum_plan, "parameter_id", keyring.parameter_id)
    if keyring.parameter_id != expected:
        raise KeyringError(f"the keyring was created for parameters other than those of task {terms.name!r}")
    return keyring


def receive_keyring(member: Member, wait: float = 0.0) -> Program[Keyring | None]:
    """Fetch this member's envelope and return the keyring in it; None if there is no envelope within `wait` seconds.

    Raises `CertificateError` unless whoever signed it is certified as a key holder, `EnvelopeError` when it does not
    open with this identity, `KeyringError` when it is for other parameters.
    """
    envelope = yield from member.calls.envelope(member.task_id, wait)
    if envelope is None:
        return None
    check_sender = partial(member.check.require, roles=("holder",))
    body = open_envelope(envelope, member.identity.mailbox, member.task_id, check_sender)
    return check_keyring(member.terms, decode_keyring(body))


def envelope_sender(member: Member) -> EnvelopeSender:
    """Who a key holder's envelopes are signed by."""
    certificate = member.membership.certificate or NO_CERTIFICATE
    return EnvelopeSender(member.identity.signing_key, member.identity.mailbox_key, certificate)


def publish_key(member: Member, keyring: Keyring) -> Program[None]:
    """Publish the public key that contributions are folded under, if the mechanism has one. Repeating it is safe.

    Raises `Conflict` when the task has another public key: this keyring then cannot be used for the task.
    """
    if isinstance(member.terms.mechanism, NamesPublicKey):
        yield from member.calls.put_public_key(member.task_id, keyring.public_key)


def enter_rounds(member: Member, keyring: Keyring) -> Program[None]:
    """Store an envelope for the key holder itself, so that it is asked in rounds like any member.

    A holder that only serves keys does not, so no round waits for it.
    """
    yield from publish_key(member, keyring)
    mailbox = member.identity.mailbox_key
    envelope = seal_envelope(encode_keyring(keyring), mailbox, member.task_id, envelope_sender(member))
    with suppress(Conflict):  # the envelope was stored before
        yield from member.calls.put_envelope(member.task_id, member.client_id, envelope)
