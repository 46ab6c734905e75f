"""Getting the shared keys to the members through a server that must not have them.

The key holder makes the keyring, checks each member's certificate, and leaves one sealed and signed envelope a member
in the server's mailbox. A member opens its own with its X25519 key, after it has checked the holder's signature and
certificate. In public-key mode the envelopes hold no secret key.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey

from client_sdk.agreement.terms import TaskTerms
from client_sdk.api.calls import ApiCalls
from client_sdk.api.effects import Program
from client_sdk.errors import Conflict
from client_sdk.local_state.identity import Identity
from client_sdk.local_state.store import ClientStore, Membership
from client_sdk.model.catch_up import ModelFollower
from client_sdk.participation.certificates import MembershipCheck
from client_sdk.participation.events import (
    KeyringDelivered,
    KeyringRefused,
    Progress,
    SnapshotPublished,
    TaskEnded,
    Waiting,
)
from client_sdk.participation.follow_rounds import NothingNew, RoundChange, RoundChanged, await_start, follow_rounds
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
    "members_copy",
    "publish_key",
    "receive_keyring",
]


def create_keyring(terms: TaskTerms) -> Keyring:
    """Fresh keys for a task, from the plan computed here; `ParameterError` where the mechanism needs none."""
    if not terms.mechanism.needs_keyring:
        raise ParameterError(f"task {terms.name!r} sums with {terms.mechanism.name!r}, which needs no keyring")
    return terms.mechanism.generate_keyring(terms.sum_plan)


def check_keyring(terms: TaskTerms, keyring: Keyring) -> Keyring:
    """`keyring` if it is for this task's mechanism and parameters, `KeyringError` otherwise."""
    if keyring.mechanism != terms.mechanism.name:
        raise KeyringError(f"the keyring is for {keyring.mechanism!r}, task {terms.name!r} sums with another mechanism")
    expected = getattr(terms.sum_plan, "parameter_id", keyring.parameter_id)
    if keyring.parameter_id != expected:
        raise KeyringError(f"the keyring was made for other parameters than those of task {terms.name!r}")
    return keyring


def receive_keyring(
    calls: ApiCalls, terms: TaskTerms, identity: Identity, membership_check: MembershipCheck, wait: float = 0.0
) -> Program[Keyring | None]:
    """This member's keyring from its envelope; None while there is none.

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


def members_copy(terms: TaskTerms, keyring: Keyring) -> Keyring:
    """What a member is given: the whole keyring, or, in public-key mode, all but the secret key."""
    return keyring.without_secret_key() if terms.opened_by == "holder" else keyring


def publish_key(calls: ApiCalls, terms: TaskTerms, keyring: Keyring) -> Program[None]:
    """Name the public key that contributions are folded under, where the mechanism has one; again is harmless.

    `Conflict` when this task was given another: whoever did it, this keyring is of no use there.
    """
    if isinstance(terms.mechanism, NamesPublicKey):
        yield from calls.put_public_key(terms.task_id, keyring.public_key)


def enter_rounds(
    calls: ApiCalls, terms: TaskTerms, identity: Identity, membership: Membership, keyring: Keyring
) -> Program[None]:
    """Have the key holder asked in rounds like any member: it leaves itself an envelope.

    A holder that only serves keys never does, so no round waits for it.
    """
    yield from publish_key(calls, terms, keyring)
    body = encode_keyring(members_copy(terms, keyring))
    envelope = seal_envelope(body, identity.mailbox_key, terms.task_id, envelope_sender(identity, membership))
    try:
        yield from calls.put_envelope(terms.task_id, membership.client_id, envelope)
    except Conflict:
        return  # it did so before


@dataclass(frozen=True)
class Deliveries:
    """One round of the mailbox: client ids that were given an envelope, and those refused for a false certificate."""

    keyed: tuple[str, ...]
    refused: tuple[str, ...]


@dataclass
class KeyService:
    """The key holder's work, as programs. `refused` members are told once and never keyed."""

    calls: ApiCalls
    terms: TaskTerms
    client_store: ClientStore
    sender: EnvelopeSender
    membership_check: MembershipCheck
    refused: set[str] = field(default_factory=set)
    _follower: ModelFollower | None = field(default=None, repr=False)
    _published: int = 0

    def keyring(self) -> Keyring:
        """The task's keyring; `KeyringError` before `create`."""
        keyring = self.client_store.keyring(self.terms.task_id)
        if keyring is None:
            raise KeyringError(f"no keyring of task {self.terms.name!r} is kept here: create it first")
        return keyring

    def create(self) -> Keyring:
        """Make the keyring and keep it before anyone is given a copy; one that is kept already stays."""
        kept = self.client_store.keyring(self.terms.task_id)
        if kept is not None:
            return check_keyring(self.terms, kept)
        keyring = create_keyring(self.terms)
        self.client_store.keep_keyring(self.terms.task_id, keyring)
        return keyring

    def deliver(self, progress: Progress | None = None, wait: float = 0.0) -> Program[Deliveries]:
        """Seal the keyring for every member that has no envelope yet, after its certificate was checked."""
        keyring = check_keyring(self.terms, self.keyring())
        body = encode_keyring(members_copy(self.terms, keyring))
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
                    continue  # an envelope got there in the meantime (an earlier run of this holder)
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

    def follower(self) -> ModelFollower:
        """The holder's copy of the model."""
        if self._follower is None:
            self._follower = ModelFollower(self.calls, self.terms, keyring=self.keyring(), opens=True)
        return self._follower

    def publish_newest(self, upto: int) -> Program[int | None]:
        """Open what was completed up to round `upto`, and publish the state; its round when it was news."""
        follower = self.follower()
        state = (yield from follower.follow(upto)).state
        if state.round_number in (0, self._published):
            return None
        latest = yield from self.calls.latest_snapshot(self.terms.task_id)
        fresh = latest is None or latest.round < state.round_number
        if not (fresh and (yield from follower.publish(state))):
            follower.forget()  # an earlier run of this holder was first: its state counts, noise and all
            fresh = False
        self._published = state.round_number
        return self._published if fresh else None

    def serve(
        self, progress: Progress | None = None, stop: Callable[[], bool] | None = None, poll_seconds: float = 5.0
    ) -> Program[None]:
        """Key members, and in public-key mode open each completed round for them, until the task ends or `stop()`."""
        change: RoundChange | None = None
        waiting: Waiting | None = None
        started = False  # whether round 1 has opened
        self.create()
        while not (stop and stop()):
            if not (isinstance(change, RoundChanged) and change.is_over):  # its task may have ended and take no keys
                yield from self.deliver(progress, 0.0 if started else poll_seconds)
            wait = poll_seconds if started else 0.0
            change = yield from follow_rounds(self.calls, self.terms.task_id, change, wait)
            match change:
                case TaskEnded():
                    if progress:
                        progress(change)
                    return
                case RoundChanged(view):
                    started = True
                    yield from self._open(view.number - (view.state != "complete"), progress)
                case NothingNew(task, etag=None):
                    waiting = yield from await_start(task, self.terms.mechanism.needs_keyring, waiting, progress)

    def _open(self, upto: int, progress: Progress | None) -> Program[None]:
        if self.terms.opened_by != "holder" or upto < 1:
            return
        published = yield from self.publish_newest(upto)
        if published is not None and progress:
            progress(SnapshotPublished(published))
