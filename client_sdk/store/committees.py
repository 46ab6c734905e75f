"""The committees to which a client has sent shares for the same data, so that no other one opens a second sum of them.

A member of a committee refuses a sum that, with earlier ones over the same data, reveals a sum over too few clients. It
knows the sums that it helped to open. The groups of t members that open two sums have at least 2 t - c - d members in
common, where the second committee has d members that the first one has not. More than `corrupt` of them means an honest
one, which knows both sums. So a client accepts at most 2 t - c - corrupt - 1 new members for the same data.

Members are compared by their identity keys, which the organiser certified; the server chooses the ids.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace

from client_sdk.errors import LocalFileError
from client_sdk.store.client_store import ClientStore
from client_sdk.store.signed_sets import member_tag
from protocols.errors import AlreadySummed, RefusalError
from protocols.layout import Data
from protocols.sums.oneshot.committee import Committee

__all__ = [
    "SeenCommittees",
    "close_seen",
    "load_seen",
    "remember_committee",
]


@dataclass(frozen=True)
class SeenCommittees:
    """The committees, each a set of tags of identity keys, that a client accepted for sum `sum_index`; none at first.

    Where all sums of a task are over the same data, those of all its sums. earlier: the other sums to which it sent its
    data, and sends none any more: it does not remember their committees.
    """

    sum_index: int = 0
    committees: tuple[frozenset[str], ...] = ()
    earlier: frozenset[int] = frozenset()

    def with_committee(self, sum_index: int, members: frozenset[str], most_new: int, same_data: bool) -> SeenCommittees:
        """Return the record after `members` is accepted for sum `sum_index`.

        most_new: how many of them may be missing in an earlier committee for the same data. same_data: whether all sums
        of the task are over the same data. Raises `RefusalError` for more, and `AlreadySummed`.
        """
        if sum_index in self.earlier:
            raise AlreadySummed(sum_index)
        earlier = self.committees if same_data or sum_index == self.sum_index else ()
        replaced = max((len(members - each) for each in earlier), default=0)
        if replaced > most_new:
            raise RefusalError(
                f"{replaced} members of the committee were not in it when this client sent the same data before; this "
                f"client accepts {most_new}: the members would not know the earlier sum, and the two together could "
                "reveal one client's data"
            )
        left = {self.sum_index} if self.committees and sum_index != self.sum_index and not same_data else set()
        return SeenCommittees(sum_index, tuple(dict.fromkeys((*earlier, members))), self.earlier | left)

    def closed(self) -> SeenCommittees:
        """Return the record after the server has lost its newest rounds: the client sends its data to no sum twice."""
        return replace(self, earlier=self.earlier | ({self.sum_index} if self.committees else set()))

    def encode(self) -> bytes:
        """Return the record as JSON."""
        committees = [sorted(members) for members in self.committees]
        return json.dumps([self.sum_index, committees, sorted(self.earlier)]).encode()

    @classmethod
    def decode(cls, body: bytes) -> SeenCommittees:
        """Return the record in `body`; `ValueError` or `TypeError` for anything that `encode` did not make."""
        sum_index, committees, earlier = json.loads(body)
        seen = tuple(frozenset(map(str, members)) for members in committees)
        return cls(int(sum_index), seen, frozenset(map(int, earlier)))


def load_seen(client_store: ClientStore, task_id: str, data: Data | None = None) -> SeenCommittees:
    """Return the record of one task; `LocalFileError` when it is damaged.

    data: for sums of class `repeated`, the data that are summed again; None for other sums.
    """
    body = client_store.read(task_id, _name(data))
    try:
        return SeenCommittees() if body is None else SeenCommittees.decode(body)
    except (ValueError, TypeError) as error:
        raise LocalFileError(f"the stored committees of task {task_id} are damaged") from error


def _name(data: Data | None) -> str:
    return "committees.json" if data is None else f"committees.{data}.json"


def remember_committee(client_store: ClientStore, committee: Committee) -> None:
    """Store that this client sends its data of the round to `committee`; see `SeenCommittees.with_committee`."""
    context, parameters = committee.context, committee.context.plan.parameters
    most_new = 2 * parameters.threshold - parameters.committee - parameters.corrupt - 1
    sum_class = context.plan.layout.sum_class
    data = sum_class.data if sum_class.repeated else None
    seen = load_seen(client_store, context.task_id, data)
    members = frozenset(member_tag(member.identity_key).hex() for member in committee.members)
    after = seen.with_committee(context.step, members, most_new, same_data=data is not None)
    if after != seen:
        client_store.write(context.task_id, _name(data), after.encode())


def close_seen(client_store: ClientStore, task_id: str) -> None:
    """Store that this client sends its data to none of the sums again to which it sent them; see `closed`."""
    seen = load_seen(client_store, task_id)
    if seen.closed() != seen:
        client_store.write(task_id, _name(None), seen.closed().encode())
