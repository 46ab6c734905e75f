"""A member's keys for single rounds: made and published ahead, stored with mode 0600, deleted after the sum."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Final

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from client_sdk.api.committee_calls import CommitteeCalls
from client_sdk.api.effects import Program
from client_sdk.errors import Conflict, LocalFileError
from client_sdk.local_state.client_store import ClientStore, Membership
from client_sdk.local_state.identity import Identity
from protocols.crypto.certificates import NO_CERTIFICATE
from protocols.sums.oneshot.committee import make_committee_key

__all__ = ["close_keys", "publish_keys", "secret_key"]

_NAME: Final = "committee_keys.bin"
_MAGIC: Final = b"hushrec committee keys 1\n"
_NUMBER: Final = 4
_SECRET: Final = 32


def publish_keys(
    calls: CommitteeCalls,
    client_store: ClientStore,
    membership: Membership,
    identity: Identity,
    numbers: Iterable[int],
) -> Program[list[int]]:
    """Make, store and publish this member's keys of the rounds `numbers`; return those that the server accepted.

    A secret key is stored before its public key is sent, so that a restart loses no round. Stored keys are published
    again with the same bytes, which is safe.
    """
    accepted = []
    for number in numbers:
        key = _signed_key(client_store, membership, identity, number)
        try:
            yield from calls.put_committee_key(membership.task_id, number, membership.client_id, key)
        except Conflict:  # the round has opened, or another key stands: then this member cannot serve it
            continue
        accepted.append(number)
    return accepted


def secret_key(client_store: ClientStore, task_id: str, number: int) -> X25519PrivateKey | None:
    """Return this member's secret key of a round; None if it never had one here, or has deleted it."""
    secret = _load(client_store, task_id).get(number)
    return None if secret is None else X25519PrivateKey.from_private_bytes(secret)


def close_keys(client_store: ClientStore, task_id: str, upto: int) -> None:
    """Delete the secret keys of the rounds up to number `upto`."""
    stored = _load(client_store, task_id)
    left = {number: secret for number, secret in stored.items() if number > upto}
    if left != stored:
        _keep(client_store, task_id, left)


def _signed_key(client_store: ClientStore, membership: Membership, identity: Identity, number: int) -> bytes:
    """Return the signed public key of a round, encoded; from the stored secret key if there is one."""
    task_id = membership.task_id
    keys = _load(client_store, task_id)
    stored = keys.get(number)

    def randomness(size: int) -> bytes:
        return os.urandom(size) if stored is None else stored

    secret, key = make_committee_key(
        identity.signing_key,
        task_id,
        number,
        membership.client_id,
        identity.mailbox_key,
        membership.certificate or NO_CERTIFICATE,
        randomness,
    )
    if stored is None:
        _keep(client_store, task_id, {**keys, number: secret.private_bytes_raw()})
    return key.encode()


def _keep(client_store: ClientStore, task_id: str, keys: Mapping[int, bytes]) -> None:
    rows = (number.to_bytes(_NUMBER, "little") + secret for number, secret in sorted(keys.items()))
    client_store.write(task_id, _NAME, _MAGIC + b"".join(rows))


def _load(client_store: ClientStore, task_id: str) -> dict[int, bytes]:
    """Return the stored secret keys by round number."""
    body = client_store.read(task_id, _NAME)
    if body is None:
        return {}
    rows = memoryview(body)[len(_MAGIC) :]
    if not body.startswith(_MAGIC) or len(rows) % (_NUMBER + _SECRET):
        raise LocalFileError(f"the stored committee keys of task {task_id} are damaged")
    starts = range(0, len(rows), _NUMBER + _SECRET)
    return {
        int.from_bytes(rows[at : at + _NUMBER], "little"): bytes(rows[at + _NUMBER : at + _NUMBER + _SECRET])
        for at in starts
    }
