"""Distribution of the task's keyring through the server, which must not learn it.

The key holder creates the keyring, checks each member's certificate, and stores one sealed and signed envelope per
member on the server. A member opens its envelope with its X25519 key, after checking the holder's signature and
certificate.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey

from client_sdk.agreement.terms import TaskTerms
from client_sdk.api.calls import ApiCalls
from client_sdk.api.wire import Program
from client_sdk.errors import Conflict
from client_sdk.rounds.certificates import MembershipCheck
from client_sdk.rounds.events import (
    KeyringDelivered,
    KeyringRefused,
    Progress,
    TaskEnded,
    Waiting,
)
from client_sdk.rounds.loop import (
    NothingNew,
    RoundChange,
    RoundChanged,
    await_start,
    follow_rounds,
    until_stopped,
)
from client_sdk.store.client_store import ClientStore, Membership
from client_sdk.store.identity import Identity
from protocols.codec import b64decode
from protocols.crypto.certificates import NO_CERTIFICATE
from protocols.crypto.envelope import EnvelopeSender, open_envelope, seal_envelope
from protocols.crypto.keyring import Keyring, decode_keyring, encode_keyring
from protocols.errors import CertificateError, CodecError, KeyringError, ParameterError
from protocols.messages import Member
from protocols.sums.base import NamesPublicKey

__all__ = [
    "Deliveries",
    "KeyService",
    "check_keyring",
    "create_keyring",
    "enter_rounds",
    "envelope_sender",
    "publish_key",
    "receive_keyring",
]


def create_keyring(terms: TaskTerms) -> Keyring:
    """Generate the keyring of a task from its plan; `ParameterError` when the mechanism needs none."""
    if not terms.mechanism.needs_keyring:
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


def receive_keyring(
    calls: ApiCalls, terms: TaskTerms, identity: Identity, membership_check: MembershipCheck, wait: float = 0.0
) -> Program[Keyring | None]:
    """Fetch this member's envelope and return the keyring in it; None if there is no envelope within `wait` seconds.

    Raises `CertificateError` unless whoever signed it is certified as a key holder, `EnvelopeError` when it does not
    open with this identity, `KeyringError` when it is for other parameters.
    """

    def check_sender(identity_key: bytes, mailbox_key: bytes, certificate: bytes) -> None:
        membership_check.require(identity_key, mailbox_key, certificate, ("holder",))

    envelope = yield from calls.envelope(terms.task_id, wait)
    if envelope is None:
        return None
    body = open_envelope(envelope, identity.mailbox, terms.task_id, check_sender)
    return check_keyring(terms, decode_keyring(body))


def envelope_sender(identity: Identity, membership: Membership) -> EnvelopeSender:
    """Who a key holder's envelopes are signed by."""
    return EnvelopeSender(identity.signing_key, identity.mailbox_key, membership.certificate or NO_CERTIFICATE)


def publish_key(calls: ApiCalls, terms: TaskTerms, keyring: Keyring) -> Program[None]:
    """Publish the public key that contributions are folded under, if the mechanism has one. Repeating it is safe.

    Raises `Conflict` when the task has another public key: this keyring then cannot be used for the task.
    """
    if isinstance(terms.mechanism, NamesPublicKey):
        yield from calls.put_public_key(terms.task_id, keyring.public_key)


def enter_rounds(
    calls: ApiCalls, terms: TaskTerms, identity: Identity, membership: Membership, keyring: Keyring
) -> Program[None]:
    """Store an envelope for the key holder itself, so that it is asked in rounds like any member.

    A holder that only serves keys does not, so no round waits for it. Raises `KeyringError` without the membership
    secret.
    """
    yield from publish_key(calls, terms, keyring)
    body = encode_keyring(keyring)
    envelope = seal_envelope(body, identity.mailbox_key, terms.task_id, envelope_sender(identity, membership))
    try:
        yield from calls.put_envelope(terms.task_id, membership.client_id, envelope)
    except Conflict:
        return  # the envelope was stored before


@dataclass(frozen=True)
class Deliveries:
    """Client ids of the members that received an envelope, and of those refused for an invalid certificate."""

    keyed: tuple[str, ...]
    refused: tuple[str, ...]


@dataclass
class KeyService:
    """The programs of the key holder.

    refused: client ids of members with invalid proofs; each is reported once and never receives the keyring.
    """

    calls: ApiCalls
    terms: TaskTerms
    client_store: ClientStore
    sender: EnvelopeSender
    membership_check: MembershipCheck
    refused: set[str] = field(default_factory=set)

    def keyring(self) -> Keyring:
        """Return the stored keyring of the task; `KeyringError` when `create` was not called before."""
        keyring = self.client_store.keyring(self.terms.task_id)
        if keyring is None:
            raise KeyringError(f"no keyring of task {self.terms.name!r} is stored here: create it first")
        return keyring

    def create(self) -> Keyring:
        """Generate and store the keyring, and return it; returns the stored one if there is one.

        Raises `KeyringError` when the stored keyring is for other parameters.
        """
        kept = self.client_store.keyring(self.terms.task_id)
        if kept is not None:
            return check_keyring(self.terms, kept)
        keyring = create_keyring(self.terms)
        self.client_store.keep_keyring(self.terms.task_id, keyring)
        return keyring

    def deliver(self, progress: Progress | None = None, wait: float = 0.0) -> Program[Deliveries]:
        """Seal the keyring for every member that has no envelope, after checking the member's certificate.

        progress: receives `KeyringDelivered` and `KeyringRefused`. wait: seconds to wait for such a member.
        """
        keyring = check_keyring(self.terms, self.keyring())
        body = encode_keyring(keyring)
        keyed, refused = [], []
        after: str | None = None
        while True:
            page = yield from self.calls.members(self.terms.task_id, after, unkeyed=True, wait=wait)
            if page.members:
                yield from publish_key(self.calls, self.terms, keyring)
            for member in page.members:
                if not self._is_certified(member):
                    if member.client_id not in self.refused:
                        refused.append(member.client_id)
                    continue
                envelope = seal_envelope(body, b64decode(member.mailbox_key), self.terms.task_id, self.sender)
                try:
                    yield from self.calls.put_envelope(self.terms.task_id, member.client_id, envelope)
                except Conflict:
                    continue  # the member has an envelope from an earlier run of this holder
                keyed.append(member.client_id)
                if progress:
                    progress(KeyringDelivered(member.client_id))
            after, wait = page.next, 0.0
            if after is None:
                break
        self.refused.update(refused)
        if progress:
            for client_id in refused:
                progress(KeyringRefused(client_id))
        return Deliveries(tuple(keyed), tuple(refused))

    def _is_certified(self, member: Member) -> bool:
        identity_key, mailbox_key = b64decode(member.identity_key, 32), b64decode(member.mailbox_key, 32)
        certificate = NO_CERTIFICATE if member.certificate is None else b64decode(member.certificate)
        try:
            self.membership_check.require(identity_key, mailbox_key, certificate, ("member", "holder"))
            X25519PrivateKey.generate().exchange(X25519PublicKey.from_public_bytes(mailbox_key))
        except (CertificateError, CodecError, ValueError):  # a key of low order can be sealed to by nobody
            return False
        return True

    def serve(
        self,
        progress: Progress | None = None,
        stop: Callable[[], bool] | None = None,
        poll_seconds: float = 5.0,
        patience: float | None = None,
    ) -> Program[None]:
        """Deliver the keyring to members until the task ends or `stop()` returns True; creates the keyring if needed.

        poll_seconds: of one long poll. An unreachable server is waited for, at most `patience` seconds at a time when
        it is given (`GaveUp`).
        """
        serving = self._serve_until_closed(progress, stop, poll_seconds)
        yield from until_stopped(serving, patience, progress, stop)

    def _serve_until_closed(
        self, progress: Progress | None, stop: Callable[[], bool] | None, poll_seconds: float
    ) -> Program[None]:
        change: RoundChange | None = None
        waiting: Waiting | None = None
        started = False  # whether round 1 has opened
        self.create()
        while not (stop and stop()):
            if not (isinstance(change, RoundChanged) and change.is_over):  # the task may have ended with it
                yield from self.deliver(progress, 0.0 if started else poll_seconds)
            wait = poll_seconds if started else 0.0
            change = yield from follow_rounds(self.calls, self.terms.task_id, change, wait)
            match change:
                case TaskEnded():
                    if progress:
                        progress(change)
                    return
                case RoundChanged():
                    started = True
                case NothingNew(task, etag=None):
                    waiting = yield from await_start(task, self.terms.mechanism.needs_keyring, waiting, progress)
