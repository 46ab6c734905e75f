"""What a client gave of its data to sums of class `once` and `repeated` of one data set (`protocols.sum_classes`).

A data set is one task, or all tasks with one label. The record is the client's own: it holds whatever the server says,
over restarts, and it is written before anything is sent.

*Counted.* The data enter at most one sum of class `once`. A sum that failed may have been opened all the same, so it
counts: the client may send its data again to the same sum only.

*Confirmed.* The sets of survivors that this client agreed to, in sums of either class. Within one task and one sum
`SignedSets` is stricter: one set, or a chain. Across sums of different tasks there is no chain: the quorum of one task
does not bind another. There the client applies the server's own rule to the sums that it knows, which are all sums with
its data: no linear combination of them may be over fewer than `min_difference` clients
(`protocols.privacy.differencing`). Sums of other tasks that it is not in cancel nothing of its data.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import Final

from protocols.codec import b64decode, b64encode
from protocols.errors import RefusalError
from protocols.privacy.differencing import Allowed, judge

__all__ = ["GivenData"]

_TAG_BYTES: Final = 16
_NO_SEED: Final = bytes(32)
"""The verdict alone is used, not whom the server would leave out."""


@dataclass(frozen=True)
class GivenData:
    """counted: task id and index of the sum of class `once` that has the data; None if none has.

    confirmed: sets of `member_tag` of the sums, released or not, that this client agreed to; each set once.
    """

    counted: tuple[str, int] | None = None
    confirmed: tuple[frozenset[bytes], ...] = ()

    def why_not_counted(self, task_id: str, sum_index: int) -> str | None:
        """Return why this client must abstain from a sum of class `once`; None if it may contribute."""
        if self.counted in (None, (task_id, sum_index)):
            return None
        task, index = self.counted
        where = "" if task == task_id else f" of task {task}"
        return f"this client's data are in sum {index}{where}, and it is counted once"

    def with_counted(self, task_id: str, sum_index: int) -> GivenData:
        """Return the record after the data were sent to a sum; `RefusalError` if another one has them."""
        why = self.why_not_counted(task_id, sum_index)
        if why is not None:
            raise RefusalError(why)
        return replace(self, counted=(task_id, sum_index))

    def with_confirmed(self, members: frozenset[bytes], min_difference: int) -> GivenData:
        """Return the record after this client agrees to a sum over `members`.

        Raises `RefusalError` if that sum and those that it agreed to before, added and subtracted, would give a sum
        over fewer than `min_difference` clients, or if that cannot be computed.
        """
        if members in self.confirmed:
            return self
        earlier = [[tag.hex() for tag in known] for known in self.confirmed]
        verdict = judge(earlier, {tag.hex() for tag in members}, min_difference, _NO_SEED)
        if not isinstance(verdict, Allowed):
            raise RefusalError(
                "the server sums the same data again, over survivors that differ too little from those of earlier sums "
                f"of this data set: together they could reveal the data of fewer than {min_difference} clients"
            )
        return replace(self, confirmed=(*self.confirmed, members))

    def encode(self) -> bytes:
        """Return the record as JSON."""
        confirmed = [b64encode(b"".join(sorted(members))) for members in self.confirmed]
        return json.dumps({"counted": self.counted, "confirmed": confirmed}).encode()

    @classmethod
    def decode(cls, body: bytes) -> GivenData:
        """Return the record in `body`; `ValueError`, `TypeError` or `KeyError` for anything `encode` did not make."""
        content = json.loads(body)
        counted = content["counted"]
        if counted is not None:
            task, index = counted
            counted = str(task), int(index)
        return cls(counted, tuple(_split(b64decode(str(members))) for members in content["confirmed"]))


def _split(body: bytes) -> frozenset[bytes]:
    if len(body) % _TAG_BYTES:
        raise ValueError(f"a set has whole tags of {_TAG_BYTES} bytes, got {len(body)} bytes")
    return frozenset(body[start : start + _TAG_BYTES] for start in range(0, len(body), _TAG_BYTES))
