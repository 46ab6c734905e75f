"""The key holder of an encrypted task: it creates the keyring, checks every member, and sends it to those that pass."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext, suppress

from client_sdk.api.calls import RoundChanged
from client_sdk.api.wire import Program
from client_sdk.errors import Conflict
from client_sdk.rounds.events import KeyringDelivered, KeyringRefused, Progress, ignore_event
from client_sdk.rounds.keys import check_keyring, create_keyring, envelope_sender, publish_key
from client_sdk.rounds.loop import CANNOT_GO_ON, Role
from client_sdk.rounds.member import Member
from client_sdk.rounds.polling import RoundChange, is_over
from protocols import messages
from protocols.codec import b64decode
from protocols.crypto.certificates import NO_CERTIFICATE
from protocols.crypto.envelope import seal_envelope
from protocols.crypto.keys import Keyring, encode_keyring
from protocols.crypto.sealing import check_sealing_key, key_name
from protocols.errors import CertificateError, CodecError, KeyringError, ParameterError


class KeyHolder(Role):
    """The client that creates the keyring, and sends it to every member. It may contribute as well, in another thread.

    refused: client ids of members with invalid proofs; each is reported once and never receives the keyring. Raises
    `ParameterError` unless the client is the task's key holder.
    """

    def __init__(self, member: Member, progress: Progress = ignore_event) -> None:
        super().__init__(member, progress)
        membership = member.membership
        if membership.role != "holder":
            raise ParameterError(f"this client is a member of task {membership.task_name!r}, not its key holder")
        self.refused: set[str] = set()
        self._started = False  # whether round 1 has opened

    def exclusively(self) -> AbstractContextManager[None]:
        """Allow others: the key holder may contribute at the same time, in another process."""
        return nullcontext()

    def create(self) -> Keyring:
        """Generate and store the keyring, and return it; returns the stored one if there is one.

        Raises `KeyringError` when the stored keyring is for other parameters.
        """
        member = self.member
        kept = member.store.keyring(member.task_id)
        if kept is not None:
            return check_keyring(member.terms, kept)
        keyring = create_keyring(member.terms)
        member.store.keep_keyring(member.task_id, keyring)
        return keyring

    def before_poll(self, change: RoundChange | None, poll_seconds: float) -> Program[float]:
        """Deliver the keyring, unless the task may have ended with the newest round."""
        if not (isinstance(change, RoundChanged) and is_over(change.view)):
            yield from self.deliver(0.0 if self._started else poll_seconds)
        return poll_seconds if self._started else 0.0

    def on_round(self, change: RoundChanged) -> Program[None]:
        """Note that rounds have begun: from now on, new members are looked for between polls of the rounds."""
        del change
        self._started = True
        yield from ()

    def on_restored(self, number: int) -> str:
        """Go on sealing the keyring for new members, who can do nothing with it."""
        del number
        return CANNOT_GO_ON

    def deliver(self, wait: float = 0.0) -> Program[list[str]]:
        """Seal the keyring for every member that has no envelope, after checking the member's certificate.

        Reports `KeyringDelivered` and `KeyringRefused`. wait: seconds to wait for such a member. Returns the client ids
        of the members that received an envelope. Raises `KeyringError` when `create` was not called before.
        """
        member = self.member
        kept = member.store.keyring(member.task_id)
        if kept is None:
            raise KeyringError(f"no keyring of task {member.terms.name!r} is stored here: create it first")
        keyring = check_keyring(member.terms, kept)
        body, sender = encode_keyring(keyring), envelope_sender(member)
        keyed: list[str] = []
        after: str | None = None
        while True:
            page = yield from member.calls.members(member.task_id, after, unkeyed=True, wait=wait)
            if page.members:
                yield from publish_key(member, keyring)
            for other in page.members:
                sealing_key = self._certified_key(other)
                if sealing_key is None:
                    if other.client_id not in self.refused:
                        self.progress(KeyringRefused(other.client_id))
                    self.refused.add(other.client_id)
                    continue
                envelope = seal_envelope(body, sealing_key, member.task_id, sender)
                with suppress(Conflict):  # the member has an envelope from an earlier run of this holder
                    yield from member.calls.put_envelope(member.task_id, other.client_id, envelope)
                    keyed.append(other.client_id)
                    self.progress(KeyringDelivered(other.client_id))
            after, wait = page.next, 0.0
            if after is None:
                return keyed

    def _certified_key(self, other: messages.Member) -> bytes | None:
        """Return the public key of a member's mailbox; None unless the organiser certified it and it can be used."""
        identity_key, mailbox_key = b64decode(other.identity_key, 32), b64decode(other.mailbox_key, 32)
        certificate = NO_CERTIFICATE if other.certificate is None else b64decode(other.certificate)
        sealing_key = b64decode(other.sealing_key or "")
        try:
            self.member.check.require(identity_key, mailbox_key, certificate, ("member", "holder"))
            check_sealing_key(sealing_key)
        except (CertificateError, CodecError):  # nobody can seal to a key of low order
            return None
        return sealing_key if key_name(sealing_key) == mailbox_key else None
