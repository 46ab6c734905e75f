"""What a member of the committee must remember of a task: what it signed, and which sums it helped to open.

A sum is opened by t members that sent their summed shares, and two groups of t members have an honest member in common
as long as at most 2 t - c - 1 of the c members collude.
So it is enough that a member remembers the sets for which it sent its share. A set that it only signed, in a round that
failed before, does not stand in the way of the next one: the member sums for its newest signature only.

The sets of a sum are remembered when the task goes on with another sum, each sum's under a name of its own. So a
server that repeats a sum, because it was restored from a backup or says so, opens nothing that it could not open
before. It repeats rounds as well. A member goes back to a round in which it signed a set with a new key only
(`CommitteeRecord.reopen`): it can open nothing that was sealed for the key before, which it has deleted.

Clients are compared by their identity keys, which the organiser certified; the server chooses the client ids.
"""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Annotated, Final

from pydantic import PlainSerializer, PlainValidator

from client_sdk.api.wire import Program
from client_sdk.errors import Conflict
from client_sdk.rounds.member import Member
from client_sdk.store import Record, decoded
from client_sdk.store.client_store import ClientStore
from client_sdk.store.states import join_tags, member_tag, split_tags
from protocols.codec import b64decode, b64encode
from protocols.crypto.certificates import NO_CERTIFICATE
from protocols.crypto.sealing import SealingKey
from protocols.errors import RefusalError
from protocols.layout import Data
from protocols.sums.oneshot.committee import make_committee_key
from protocols.sums.oneshot.member import Ledger

_NAME: Final = "committee.json"


def _join(clients: frozenset[str]) -> str:
    return join_tags(frozenset(map(bytes.fromhex, clients)))


def _split(text: str) -> frozenset[str]:
    return frozenset(tag.hex() for tag in split_tags(text))


_Digest = Annotated[bytes, PlainValidator(partial(b64decode, length=32)), PlainSerializer(b64encode)]
_Sets = tuple[Annotated[frozenset[str], PlainValidator(_split), PlainSerializer(_join)], ...]


@dataclass(frozen=True)
class CommitteeRecord(Record):
    """The record of one member in one task."""

    added = frozenset({"groups"})
    round_number: int = 0
    """Newest round in which it signed; 0 for none."""
    sum_index: int = 0
    """The sum of that round."""
    released: _Sets = ()
    """Sets of client tags whose sums over the same data it helped to open, the newest last."""
    signed: _Digest | None = None
    """Digest of the survivors that it signed in that round."""
    summed: bool = False
    """Whether it has sent, or may have sent, its summed share; the newest set of `released` is then final."""
    closed: int = 0
    """Newest round that is over for this member: its key is deleted, and no key for it is made again."""
    data: Data | None = None
    """For a sum of class `repeated`, the data that it sums again."""
    again: Mapping[Data, _Sets] = field(default_factory=dict)
    """By data, such sets of earlier sums, while the newest round is of another sum."""
    kept: frozenset[int] = frozenset()
    """Other sums, whose sets are stored under names of their own (`load_sets`)."""
    groups: _Sets = ()
    """The groups of the first sum over the same rows, where that was split."""

    def ledger_of(self, round_number: int, sum_index: int, data: Data | None, stored: _Sets = ()) -> Ledger:
        """Return the ledger with which this member judges a set in a round.

        data: for a sum of class `repeated`, the data that it sums again; None for other sums. stored: the sets of a sum
        in `kept`. Raises `RefusalError` for a round before the newest one, and for a newest round with another sum.
        """
        if round_number <= self.closed or round_number < self.round_number:
            raise RefusalError(
                f"the server repeats round {round_number} (sum {sum_index}) after this member took part in round "
                f"{self.round_number} (sum {self.sum_index}) and closed round {self.closed}"
            )
        if round_number == self.round_number:
            if sum_index != self.sum_index:
                raise RefusalError(f"the server announces round {round_number} with another sum than before")
            return Ledger(self.released, self.signed, self.groups if data == "rows" else ())
        if data is not None and data != self.data:
            return self._ledger(tuple(self.again.get(data, ())), data)
        return self._ledger(self.settled if data is not None or sum_index == self.sum_index else stored, data)

    def _ledger(self, released: _Sets, data: Data | None) -> Ledger:
        """Return the ledger of a new round; groups of a first sum that was signed only are forgotten with its set."""
        return Ledger(released, groups=self.groups if data == "rows" and released else ())

    @property
    def settled(self) -> _Sets:
        """The sets of the newest sum, without one that was signed only."""
        return tuple(dict.fromkeys(self.released if self.summed else self.released[:-1]))

    def with_signature(self, round_number: int, sum_index: int, ledger: Ledger, data: Data | None) -> CommitteeRecord:
        """Return the record after `ledger` was signed in a round: to be stored before the signature is sent.

        data: as for `ledger_of`.
        """
        again = round_number == self.round_number and ledger.signed == self.signed
        others = self.again if self.data in (None, data) else {**self.again, self.data: self.settled}
        leaves = {self.sum_index} if self.data is None and self.sum_index != sum_index and self.settled else set()
        return replace(
            self,
            round_number=round_number,
            sum_index=sum_index,
            released=ledger.released,
            signed=ledger.signed,
            summed=again and self.summed,
            data=data,
            again=others,
            kept=self.kept | leaves,
            groups=ledger.groups if data == "rows" else self.groups,
        )

    def close(self, round_number: int) -> CommitteeRecord:
        """Return the record after round `round_number` is over for this member."""
        return replace(self, closed=max(self.closed, round_number))

    @property
    def used(self) -> int:
        """Newest round in which this member signed a set, or that it closed."""
        return max(self.round_number, self.closed)

    def reopen(self, round_number: int) -> CommitteeRecord:
        """Return the record after the server has lost the rounds after `round_number`.

        The keys of all rounds in which this member signed must be deleted before (`used`): so it opens none of the sets
        that it signed only.
        """
        return replace(
            self, round_number=round_number, closed=round_number, released=self.settled, signed=None, summed=True
        )


def client_tag(identity_key: bytes) -> str:
    """Return what stands for the client with this identity key in a record."""
    return member_tag(identity_key).hex()


def load_record(client_store: ClientStore, task_id: str) -> CommitteeRecord:
    """Return this member's record of one task; `LocalFileError` when it is damaged."""
    found = decoded(client_store.read(task_id, _NAME), CommitteeRecord.decode, f"committee record of task {task_id} is")
    return found or CommitteeRecord()


def store_record(client_store: ClientStore, task_id: str, record: CommitteeRecord) -> None:
    """Store this member's record of one task, replacing the one before, with the sets of a sum that it leaves."""
    before = load_record(client_store, task_id)
    if before.data is None and before.sum_index in record.kept and before.sum_index != record.sum_index:
        sets = json.dumps([_join(clients) for clients in before.settled])
        client_store.write(task_id, _sets_name(before.sum_index), sets.encode())
    client_store.write(task_id, _NAME, record.encode())


def load_sets(client_store: ClientStore, task_id: str, record: CommitteeRecord, sum_index: int) -> _Sets:
    """Return the sets of a sum that the record keeps under a name of its own; () for another sum.

    Raises `LocalFileError` when they are damaged or missing.
    """
    if sum_index not in record.kept or sum_index == record.sum_index:
        return ()
    body = client_store.read(task_id, _sets_name(sum_index)) or b""
    what = f"committee record of sum {sum_index} of task {task_id} is"
    return decoded(body, lambda body: tuple(map(_split, json.loads(body))), what) or ()


def _sets_name(sum_index: int) -> str:
    return f"committee.sum-{sum_index}.json"


# --- A member's keys for single rounds: made and published ahead, stored with mode 0600, deleted after the sum -------

_KEYS_NAME: Final = "committee_keys.bin"
_MAGIC: Final = b"hushrec committee keys 1\n"
_ROW: Final = struct.Struct("<I32s")
"""Number of a round, and its secret key."""


def publish_keys(member: Member, numbers: Iterable[int]) -> Program[list[int]]:
    """Make, store and publish this member's keys of the rounds `numbers`; return those that the server accepted.

    A secret key is stored before its public key is sent, so that a restart loses no round. Stored keys are published
    again with the same bytes, which is safe.
    """
    accepted = []
    for number in numbers:
        key = _signed_key(member, number)
        with suppress(Conflict):  # the round has opened, or another key stands: then this member cannot serve it
            yield from member.calls.put_committee_key(member.task_id, number, member.client_id, key)
            accepted.append(number)
    return accepted


def secret_key(client_store: ClientStore, task_id: str, number: int) -> SealingKey | None:
    """Return this member's secret key of a round; None if it never had one here, or has deleted it."""
    secret = _load(client_store, task_id).get(number)
    return None if secret is None else SealingKey(secret)


def close_keys(client_store: ClientStore, task_id: str, upto: int) -> None:
    """Delete the secret keys of the rounds up to number `upto`."""
    stored = _load(client_store, task_id)
    left = {number: secret for number, secret in stored.items() if number > upto}
    if left != stored:
        _keep(client_store, task_id, left)


def _signed_key(member: Member, number: int) -> bytes:
    """Return the signed public key of a round, encoded; from the stored secret key if there is one."""
    task_id, identity = member.task_id, member.identity
    certificate = member.membership.certificate or NO_CERTIFICATE
    keys = _load(member.store, task_id)
    stored = keys.get(number)

    def randomness(size: int) -> bytes:
        return os.urandom(size) if stored is None else stored

    owner = (member.client_id, identity.mailbox_key, certificate)
    secret, key = make_committee_key(identity.signing_key, task_id, number, *owner, randomness)
    if stored is None:
        _keep(member.store, task_id, {**keys, number: secret.seed})
    return key.encode()


def _keep(client_store: ClientStore, task_id: str, keys: Mapping[int, bytes]) -> None:
    rows = b"".join(_ROW.pack(number, secret) for number, secret in sorted(keys.items()))
    client_store.write(task_id, _KEYS_NAME, _MAGIC + rows)


def _load(client_store: ClientStore, task_id: str) -> dict[int, bytes]:
    """Return the stored secret keys by round number."""
    stored = decoded(client_store.read(task_id, _KEYS_NAME), _decode_keys, f"committee keys of task {task_id} are")
    return stored or {}


def _decode_keys(body: bytes) -> dict[int, bytes]:
    if not body.startswith(_MAGIC):
        raise ValueError("no committee keys")
    return dict(_ROW.iter_unpack(body[len(_MAGIC) :]))
