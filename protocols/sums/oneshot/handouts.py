"""What the server hands out in a one-shot round, as bytes: the committee's keys, statements, shares, confirmations."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from protocols.codec import Reader, exact
from protocols.errors import CodecError
from protocols.sums.base import Buffer
from protocols.sums.oneshot.committee import Committee
from protocols.sums.oneshot.messages import CommitteeKey, Statement
from protocols.sums.oneshot.parameters import OneshotParameters
from protocols.sums.oneshot.plan import SIGNATURE_BYTES, OneshotPlan

__all__ = ["join_confirmations", "join_keys", "split_confirmations", "split_keys", "split_shares", "split_statements"]

_LENGTH: Final = struct.Struct("<H")
_NO_SIGNATURE: Final = bytes(SIGNATURE_BYTES)
_MOST_MEMBERS: Final = OneshotParameters.model_fields["committee"].metadata[1].le


def join_keys(keys: Iterable[bytes]) -> bytes:
    """Return the encoded keys of a committee, each after its length (uint16, little-endian)."""
    return b"".join(_LENGTH.pack(len(key)) + key for key in keys)


def split_keys(body: Buffer) -> list[CommitteeKey]:
    """Inverse of `join_keys`; `CodecError` for any other form, and for more keys than a committee can have."""
    reader, keys = Reader(body), list[CommitteeKey]()
    while not reader.is_empty:
        if len(keys) == _MOST_MEMBERS:
            raise CodecError(f"a committee has at most {_MOST_MEMBERS} members")
        (length,) = _LENGTH.unpack(reader.fixed(_LENGTH.size))
        keys.append(CommitteeKey.decode(reader.fixed(length)))
    return keys


def split_statements(plan: OneshotPlan, body: Buffer, most: int) -> list[Statement]:
    """Return the statements that stand one after the other in `body`; `CodecError` for another form or over `most`."""
    reader, found = Reader(body), list[Statement]()
    while not reader.is_empty:
        if len(found) == most:
            raise CodecError(f"the round asks {most} clients, and there are more statements")
        found.append(Statement.read(plan, reader))
    return found


def split_shares(plan: OneshotPlan, body: Buffer, count: int) -> list[bytes]:
    """Return `count` sealed shares that stand one after the other; `CodecError` for another length."""
    view = exact(body, count * plan.sealed_bytes, "the sealed shares")
    return [bytes(view[start : start + plan.sealed_bytes]) for start in range(0, view.nbytes, plan.sealed_bytes)]


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
