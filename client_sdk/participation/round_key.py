"""The keys of single rounds: the holder makes and publishes them, members fetch and verify them.

In a task with round keys (`protocols.sums.base.KeyedByRound`) the task's keyring holds a state key only. The holder
keeps the secret key of a round until the round is over.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from client_sdk.agreement.terms import TaskTerms
from client_sdk.api.calls import ApiCalls
from client_sdk.api.effects import Program, work
from client_sdk.errors import Conflict, NotFound
from client_sdk.local_state.client_store import ClientStore
from client_sdk.local_state.round_keys import RoundKeyPair
from client_sdk.participation.certificates import MembershipCheck
from protocols.crypto.envelope import EnvelopeSender
from protocols.crypto.keyring import Keyring
from protocols.crypto.round_key import RoundKeyPurpose, open_round_key, round_key_document_bytes, sign_round_key
from protocols.errors import CertificateError, CodecError, RoundKeyError
from protocols.messages import RoundView

__all__ = ["RoundKeyring", "drop_round_keys", "fetch_round_keyring", "publish_round_keys", "uses_round_keys"]

_NO_PARAMETERS: Final = b""


@dataclass(frozen=True)
class RoundKeyring:
    """The keyring to seal a contribution with. digest: SHA-256 (hex) of the round's key document; None without one."""

    keyring: Keyring | None
    digest: str | None


def uses_round_keys(terms: TaskTerms) -> bool:
    """Return whether each round of the task has keys of its own."""
    return terms.round_key_bytes is not None


def fetch_round_keyring(
    calls: ApiCalls,
    terms: TaskTerms,
    client_store: ClientStore,
    membership_check: MembershipCheck,
    keyring: Keyring | None,
    view: RoundView,
) -> Program[RoundKeyring]:
    """Return the keyring with the public key of round `view`, which the pinned key holder signed.

    The task's keyring itself where it serves all rounds. Raises `RoundKeyError` for a missing key and for one that the
    task's key holder did not sign for this round.
    """
    length, pinned = terms.round_key_bytes, client_store.holder_key(terms.task_id)
    if length is None or keyring is None:
        return RoundKeyring(keyring, None)

    def check_sender(identity_key: bytes, mailbox_key: bytes, certificate: bytes) -> None:
        if pinned is None or not hmac.compare_digest(identity_key, pinned):
            raise RoundKeyError(
                f"the public key of round {view.number} is signed by another client than the key holder that gave this "
                "client its keyring: the server may have exchanged it"
            )
        try:
            membership_check.require(identity_key, mailbox_key, certificate, ("holder",))
        except (CertificateError, CodecError) as error:
            raise RoundKeyError(f"the key holder of round {view.number} is not certified: {error}") from error

    try:
        document = yield from calls.round_key(
            terms.task_id, view.number, round_key_document_bytes(length), view.key_digest
        )
    except NotFound as error:
        raise RoundKeyError(f"the server has no public key of round {view.number}") from error
    public_key = open_round_key(_purpose(terms, view.number), document, length, check_sender)
    return RoundKeyring(keyring.for_round(public_key), hashlib.sha256(document).hexdigest())


def publish_round_keys(
    calls: ApiCalls, terms: TaskTerms, client_store: ClientStore, sender: EnvelopeSender, numbers: Iterable[int]
) -> Program[None]:
    """Make, store and publish the keys of the rounds `numbers`. Stored keys are published again, which is safe.

    A key pair is stored before its public key is published, so that a restart loses no round.
    """
    for number in numbers:
        keys = client_store.round_keys(terms.task_id)
        pair = keys.pairs.get(number)
        if pair is None:
            made = yield from work(lambda: terms.mechanism.generate_keyring(terms.sum_plan))
            pair = RoundKeyPair(made.public_key, made.secret_key)
            client_store.keep_round_keys(terms.task_id, keys.with_pair(number, pair))
        document = sign_round_key(_purpose(terms, number), pair.public_key, sender)
        try:
            yield from calls.put_round_key(terms.task_id, number, document)
        except Conflict:
            continue  # published before, the round is over, or another key stands: then the sum will be refused


def drop_round_keys(client_store: ClientStore, task_id: str, upto: int) -> None:
    """Delete the secret keys of the rounds up to number `upto`, which are over."""
    stored = client_store.round_keys(task_id)
    left = stored.after(upto)
    if left.pairs.keys() != stored.pairs.keys():
        client_store.keep_round_keys(task_id, left)


def _purpose(terms: TaskTerms, number: int) -> RoundKeyPurpose:
    parameter_id: bytes = getattr(terms.sum_plan, "parameter_id", _NO_PARAMETERS)
    return RoundKeyPurpose(terms.task_id, number, terms.mechanism.name, parameter_id)
