"""The survivor sets that a client signed for the newest sum of a task, so that it signs no two that are nearly equal.

The difference of two sums over the same data is a sum over the members in which their survivor sets differ. A server
that reports a round as failed after it opened the sum, and repeats it without one client, would learn that client's
vector. Members are compared by their identity keys, which the organiser certified; the server chooses the client ids.
Sets are compared by the index of the sum, whatever the model was: the server publishes the model, and an irrelevant
change of it must not make the data count as new.

Only the sets of the newest sum are kept, at most `MOST_SETS`. An earlier sum is refused, so nothing is forgotten that
could be asked for again.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from protocols.codec import b64decode, b64encode
from protocols.crypto.domain import digest
from protocols.errors import RefusalError

__all__ = ["MOST_SETS", "SignedSets", "member_tag", "member_tags"]

MOST_SETS: Final = 16
"""Most survivor sets that a client signs for one sum."""

_TAG_BYTES: Final = 16


@dataclass(frozen=True)
class SignedSets:
    """The survivor sets that a client signed for sum `sum_index`; each is a set of `member_tag`. 0: none yet."""

    sum_index: int = 0
    sets: tuple[frozenset[bytes], ...] = ()

    def with_set(self, sum_index: int, members: frozenset[bytes], min_difference: int) -> SignedSets:
        """Return the record with one more set.

        Raises `RefusalError` for a set that differs from an earlier one of the same sum by fewer than `min_difference`
        members, unless the two are equal, for a sum before the newest one, and for too many sets of one sum.
        """
        if sum_index < self.sum_index:
            raise RefusalError(
                f"the server repeats sum {sum_index} after this client took part in sum {self.sum_index}: the "
                "difference of the two results could reveal one client's data"
            )
        if sum_index > self.sum_index:
            return SignedSets(sum_index, (members,))
        if members in self.sets:
            return self
        difference = min((len(members ^ earlier) for earlier in self.sets), default=min_difference)
        if difference < min_difference:
            raise RefusalError(
                f"the server repeats sum {sum_index} over survivors that differ by {difference} from those that this "
                f"client confirmed before; this client requires at least {min_difference}, or the same survivors: the "
                "difference of the two sums would reveal the data of the clients in which they differ"
            )
        if len(self.sets) >= MOST_SETS:
            raise RefusalError(
                f"this client confirmed {MOST_SETS} sets of survivors for sum {sum_index}, and confirms no further one"
            )
        return SignedSets(sum_index, (*self.sets, members))

    def encode(self) -> bytes:
        """Return the record as JSON."""
        return _encode(self)

    @classmethod
    def decode(cls, body: bytes) -> SignedSets:
        """Return the record in `body`; `ValueError`, `TypeError` or `KeyError` for anything that `encode` did not make.

        The last bodies are cached, since all clients of a simulated fleet store equal ones.
        """
        return _decode(body)


def member_tag(identity_key: bytes) -> bytes:
    """Return the 16 bytes that stand for a member with this identity key."""
    return digest("signed survivor", identity_key)[:_TAG_BYTES]


@lru_cache(maxsize=8)
def member_tags(identity_keys: tuple[bytes, ...], survivors: frozenset[int]) -> frozenset[bytes]:
    """Return the tags of the survivors of a roster, given as indices of `identity_keys`."""
    return frozenset(member_tag(identity_keys[index]) for index in survivors)


@lru_cache(maxsize=8)
def _encode(record: SignedSets) -> bytes:
    sets = [b64encode(b"".join(sorted(members))) for members in record.sets]
    return json.dumps({"sum_index": record.sum_index, "sets": sets}).encode()


@lru_cache(maxsize=8)
def _decode(body: bytes) -> SignedSets:
    content = json.loads(body)
    return SignedSets(int(content["sum_index"]), tuple(_split(b64decode(text)) for text in content["sets"]))


def _split(body: bytes) -> frozenset[bytes]:
    if len(body) % _TAG_BYTES:
        raise ValueError(f"a set has whole tags of {_TAG_BYTES} bytes, got {len(body)} bytes")
    return frozenset(body[start : start + _TAG_BYTES] for start in range(0, len(body), _TAG_BYTES))
