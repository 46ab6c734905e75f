"""The committee of a one-shot round: its keys, what is sealed to its members and signed, and what the server hands out.

Members publish keys ahead of the round, each made for one round and signed by a certified identity, and delete the
secret ones after the sum, so that whoever breaks into a member later opens nothing old. Members are in ascending order
of their ids; the member at place i has the Shamir point i + 1.

A share is sealed from a client, with an ephemeral key of the upload, to the member's key of the round, bound to round,
committee, client and member (`protocols.crypto.sealing`). A share opens only for the member, client, task, step, round
and model that it was made for. Who made it, the client's signature says.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from numpy.typing import NDArray

from protocols.codec import Reader, exact
from protocols.crypto.certificates import NO_CERTIFICATE, subject_of
from protocols.crypto.keys import KEY_BYTES, SEED_BYTES, SIGNATURE_BYTES, digest, domain_tag, verifies
from protocols.crypto.random import Randomness
from protocols.crypto.sealing import SealingKey, check_sealing_key, seal
from protocols.errors import CodecError, ParameterError, RefusalError
from protocols.sums.base import Buffer
from protocols.sums.oneshot.plan import KEY_PREFIX, OneshotContext, OneshotParameters, OneshotPlan
from protocols.sums.oneshot.wire import CommitteeKey, Statement

IsCommitteeMember = Callable[[CommitteeKey], bool]
"""Whether a member's identity key is accepted: by its certificate for the role "committee", or by pinned keys."""

_NO_KEY: Final = bytes(KEY_BYTES)


@dataclass(frozen=True)
class Committee:
    """The committee of one round. Create it with `make_committee`, which checks it."""

    context: OneshotContext
    members: tuple[CommitteeKey, ...]
    digest: bytes = field(repr=False)

    @property
    def points(self) -> tuple[int, ...]:
        """Shamir points of the members, in order."""
        return tuple(range(1, len(self.members) + 1))

    @cached_property
    def _places(self) -> dict[str, int]:
        return {member.member_id: place for place, member in enumerate(self.members)}

    def place(self, member_id: str) -> int:
        """Return the place of a member; `ParameterError` for a stranger."""
        try:
            return self._places[member_id]
        except KeyError:
            raise ParameterError("this member is not in the committee of the round") from None


def make_committee_key(
    identity: Ed25519PrivateKey,
    task_id: str,
    round_number: int,
    member_id: str,
    mailbox_key: bytes = _NO_KEY,
    certificate: bytes = NO_CERTIFICATE,
    random: Randomness = os.urandom,
) -> tuple[SealingKey, CommitteeKey]:
    """Return a member's new secret key for one round, and the signed public key (of that member, for that round)."""
    secret = SealingKey(random(SEED_BYTES))
    signature = identity.sign(_signed(task_id, round_number, member_id, secret.public))
    own = identity.public_key().public_bytes_raw()
    return secret, CommitteeKey(member_id, own, mailbox_key, certificate, secret.public, signature)


def check_committee_key(task_id: str, round_number: int, key: CommitteeKey) -> None:
    """Raise `CodecError` unless the key is usable and its identity signed it for this round."""
    check_sealing_key(key.round_key)
    if not verifies(key.identity_key, key.signature, _signed(task_id, round_number, key.member_id, key.round_key)):
        raise CodecError("a committee key is not signed by its member for this task and round")


def make_committee(context: OneshotContext, keys: Iterable[CommitteeKey], is_member: IsCommitteeMember) -> Committee:
    """Return the committee of `keys`, in any order. Every party makes it itself and takes no member on trust.

    Raises `RefusalError` for another number of members than the plan's, for an id, a key or a subject that occurs
    twice, for a member that `is_member` rejects, or if a member did not sign its key for this round.
    """
    members = tuple(sorted(keys, key=lambda key: key.member_id))
    if len(members) != context.plan.committee:
        raise RefusalError(f"the committee has {context.plan.committee} members, the server names {len(members)}")
    subjects = [subject_of(member.certificate) for member in members]
    for values, what in (
        ([member.member_id for member in members], "an id"),
        ([member.identity_key for member in members], "an identity key"),
        ([member.round_key for member in members], "a round key"),
        ([subject for subject in subjects if subject is not None], "a subject of the organiser"),
    ):
        if len(set(values)) < len(values):
            raise RefusalError(f"{what} occurs twice in the committee: shares of two members would go to one")
    for place, member in enumerate(members):
        if not is_member(member):
            raise RefusalError(f"member {place} of the committee has no valid proof of membership")
        try:
            check_committee_key(context.task_id, context.round_number, member)
        except CodecError as error:
            raise RefusalError(f"member {place} of the committee: {error}") from error
    whole = b"".join(member.encode() for member in members)
    return Committee(context, members, digest("oneshot committee", context.binding, len(members), whole))


def _signed(task_id: str, round_number: int, member_id: str, public: bytes) -> bytes:
    return domain_tag("oneshot committee key", task_id, round_number, member_id, public)


_NO_SIGNATURE: Final = bytes(SIGNATURE_BYTES)
_MOST_MEMBERS: Final = OneshotParameters.model_fields["committee"].metadata[1].le


def join_keys(keys: Iterable[bytes]) -> bytes:
    """Return the encoded keys of a committee, each after its length (uint16, little-endian)."""
    return b"".join(KEY_PREFIX.pack(len(key)) + key for key in keys)


def split_keys(body: Buffer) -> list[CommitteeKey]:
    """Inverse of `join_keys`; `CodecError` for any other form, and for more keys than a committee can have."""
    reader, keys = Reader(body), list[CommitteeKey]()
    while not reader.is_empty:
        if len(keys) == _MOST_MEMBERS:
            raise CodecError(f"a committee has at most {_MOST_MEMBERS} members")
        (length,) = KEY_PREFIX.unpack(reader.fixed(KEY_PREFIX.size))
        keys.append(CommitteeKey.decode(reader.fixed(length)))
    return keys


class Statements(Iterable[Statement]):
    """Encoded statements, decoded when they are read: the clients of a round are many, and their bytes few."""

    def __init__(self, plan: OneshotPlan, body: Buffer, starts: Sequence[int]) -> None:
        self._plan, self._body, self._starts = plan, memoryview(body), starts

    def __len__(self) -> int:
        return len(self._starts) - 1

    def __getitem__(self, index: int) -> Statement:
        start, stop = self._starts[index], self._starts[index + 1]
        return Statement.read(self._plan, Reader(self._body[start:stop]))

    def __iter__(self) -> Iterator[Statement]:
        return map(self.__getitem__, range(len(self)))


def split_statements(plan: OneshotPlan, body: Buffer, most: int) -> Statements:
    """Return the statements that stand one after the other in `body`; `CodecError` for another form or over `most`."""
    reader, starts = Reader(body), [0]
    length = reader.left
    while not reader.is_empty:
        if len(starts) > most:
            raise CodecError(f"the round asks {most} clients, and there are more statements")
        Statement.read(plan, reader)
        starts.append(length - reader.left)
    return Statements(plan, body, starts)


def join_confirmations(members: Sequence[str], confirmed: Mapping[str, bytes]) -> bytes:
    """Return a signature for each member, in order of the ids, zeros for members that did not confirm."""
    return b"".join(confirmed.get(member, _NO_SIGNATURE) for member in sorted(members))


def split_confirmations(committee: Committee, body: Buffer) -> dict[str, bytes]:
    """Return member id -> signature of those that confirmed; `CodecError` for another length."""
    view = exact(body, len(committee.members) * SIGNATURE_BYTES, "the confirmations")
    signatures = {
        member.member_id: bytes(view[place * SIGNATURE_BYTES : (place + 1) * SIGNATURE_BYTES])
        for place, member in enumerate(committee.members)
    }
    return {member: signature for member, signature in signatures.items() if signature != _NO_SIGNATURE}


_SHARE: Final = "oneshot share"


def seal_share(
    share: NDArray[np.uint32], secret: X25519PrivateKey, committee: Committee, place: int, client_id: str
) -> bytes:
    """Return the share sealed for the member at `place`, `plan.sealed_bytes` bytes; `secret`: the ephemeral key."""
    receiver, plain = committee.members[place].round_key, share.astype("<u4").tobytes()
    return seal(secret, receiver, plain, _SHARE, *_bound(committee, place, client_id))


def open_share(
    sealed: bytes, secret: SealingKey, committee: Committee, place: int, client_id: str, ephemeral: bytes
) -> NDArray[np.uint32] | None:
    """Return the share, uint32 (N,), or None if it does not open or is no share; `secret`: the member's round key."""
    plan = committee.context.plan
    try:
        plain = secret.open(ephemeral, sealed, _SHARE, *_bound(committee, place, client_id))
        share = np.frombuffer(plain, "<u4")
    except (CodecError, ValueError):
        return None
    fits = share.size == plan.ring.degree and int(share.max()) < plan.ring.primes[0]
    return share.astype(np.uint32, copy=False) if fits else None


def _bound(committee: Committee, place: int, client_id: str) -> tuple[bytes, str, str]:
    return committee.digest, committee.members[place].member_id, client_id


def signed_upload(
    committee: Committee, client_id: str, ephemeral_key: bytes, contribution: bytes, shares: Iterable[bytes]
) -> bytes:
    """Return the bytes that a client signs: the round, the committee, and what it sends.

    contribution, shares: SHA-256 digests of the contribution and of each sealed share (`body_digest`).
    """
    return domain_tag("oneshot upload", committee.digest, client_id, ephemeral_key, contribution, *shares)


def signed_survivors(committee: Committee, survivors: bytes) -> bytes:
    """Return the bytes that a member signs to confirm the set of survivors with digest `survivors`."""
    return domain_tag("oneshot survivors", committee.digest, survivors)


def signed_sum(committee: Committee, survivors: bytes, member_id: str, share: bytes) -> bytes:
    """Return the bytes that a member signs with its summed share."""
    return domain_tag("oneshot summed share", committee.digest, survivors, member_id, share)
