"""The keyring that the members of an encrypted task share: made by the key holder, received by every other member.

The keyring goes through the server, which must not learn it. The key holder creates it, checks each member's
certificate, and stores one sealed and signed envelope per member on the server. A member opens its envelope with
its mailbox's key, after checking the holder's signature and certificate.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from functools import partial

from client_sdk.agreement.terms import TaskTerms
from client_sdk.api.wire import Pause, Program
from client_sdk.errors import Conflict
from client_sdk.rounds.events import Progress, Waiting
from client_sdk.rounds.member import Member, Stop, require_known_people
from protocols.crypto.certificates import NO_CERTIFICATE
from protocols.crypto.envelope import EnvelopeSender, open_envelope, seal_envelope
from protocols.crypto.keys import Keyring, decode_keyring, encode_keyring
from protocols.errors import KeyringError, ParameterError

_LOG = logging.getLogger(__name__)


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


def obtain_keyring(member: Member, progress: Progress, stop: Stop | None, wait: float) -> Program[Keyring | None]:
    """Return the stored keyring, or wait for the member's envelope and store what is in it; None if `stop()` was True.

    wait: seconds of one long poll. The key holder enters the rounds with it. Raises `KeyringError` for a key holder
    that has not created it, `PolicyRefused` without an organiser that the policy requires, and what `receive_keyring`
    raises.
    """
    holds = member.membership.role == "holder"
    kept = member.store.keyring(member.task_id)
    if kept is None:
        if holds:
            raise KeyringError(f"this client is the key holder of task {member.terms.name!r}: create the keyring first")
        require_known_people(member)
        kept = yield from _awaited(member, progress, stop, wait)
        if kept is None:
            return None
        member.store.keep_keyring(member.task_id, kept)
    if holds:
        yield from enter_rounds(member, kept)
    return kept


def _awaited(member: Member, progress: Progress, stop: Stop | None, wait: float) -> Program[Keyring | None]:
    """Return the keyring in this member's envelope once there is one; None if `stop()` returned True first."""
    kept = yield from receive_keyring(member, 0.0)
    if kept is not None:
        return kept
    waiting = Waiting("the keyring, which the task's key holder creates and seals")
    _LOG.warning("task %s: this client waits for %s", member.terms.name, waiting.what)
    progress(waiting)
    while kept is None and not (stop and stop()):
        yield Pause(0.05)
        kept = yield from receive_keyring(member, wait)
    return kept


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
    if member.terms.mechanism.names_public_key:
        yield from member.calls.put_public_key(member.task_id, keyring.public_key)


def enter_rounds(member: Member, keyring: Keyring) -> Program[None]:
    """Store an envelope for the key holder itself, so that it is asked in rounds like any member.

    A holder that only serves keys does not, so no round waits for it.
    """
    yield from publish_key(member, keyring)
    mailbox = member.identity.mailbox.public
    envelope = seal_envelope(encode_keyring(keyring), mailbox, member.task_id, envelope_sender(member))
    with suppress(Conflict):  # the envelope was stored before
        yield from member.calls.put_envelope(member.task_id, member.client_id, envelope)
