"""What a client keeps of a task beside its keys.

Its arrays, the model, the survivor sets that it signed, which of its data it has given, and what they have cost.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Annotated, Any, Final, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import AfterValidator, PlainSerializer, PlainValidator

from client_sdk.store import Record
from protocols.codec import b64decode, b64encode
from protocols.crypto.aggregate_chain import AggregateChain
from protocols.crypto.keys import digest
from protocols.errors import AlreadySummed, RefusalError
from protocols.privacy.noise import ORDERS, RenyiCurve, epsilon_of
from protocols.recipes.base import ModelState

ClientState = Mapping[str, NDArray[Any]]
"""Arrays by name, such as the user factor or a residual, as the client side of the recipe needs them."""


# --- A model state that a client has reached, with the chain of the aggregates that led to it ------------------------


@dataclass(frozen=True)
class FollowedState:
    """A model state."""

    state: ModelState
    chain: AggregateChain | None = None
    """Of the aggregates up to its round; None in tasks that have no chain."""
    from_snapshot: bool = False
    """Whether another member's snapshot is the source of the chain, or of its beginning."""
    unattested: bool = False
    """Whether a part of the chain before the last round is the server's word so far: aggregates of several rounds at
    once, or a snapshot."""
    stored_at: float | None = field(default=None, compare=False)
    """When it was stored on this device, seconds since the epoch; None before."""


# --- the survivor set that a client signed last in a task, so that the same data are not summed over other sets -------
# The difference of two sums over the same data is a sum over the members in which their survivor sets differ. A
# server that reports a round as failed after it opened the sum, and repeats it without one client, would learn that
# client's vector. It is not enough that two sets differ by many: the sums over P, Q and P + Q + {u} give the vector
# of u, and no client sees all three sets. So a client signs one set for the same data, as often as it is asked.
#
# *Why one set is enough.* A sum is opened only if the signers of its set X, more than half of X, agree. A client
# signs one set, so the signers of different sets are different. In a combination of sums with coefficients c_X, each
# signer of X that cancels is in other sets with coefficients of at least |c_X| together. Added up over all signers
# this would be more than all other members of the sets can give, unless two or more signers do not cancel, of one set
# or of two. (Signers are honest here; the threshold makes up for members that help the server.)
#
# *Which sums.* The client also remembers in which other sums it signed a set, and takes no part in these again. So it
# signs one set for each sum, in whatever order the server asks for them: a server that was restored from a backup
# repeats sums, and a lying server can say that it was.
#
# *Recipes with a frozen cohort* sum the same data in every sum of the task, over a cohort that shrinks. For these a
# client also signs a set that is contained in its last one and smaller by at least `min_difference`, as the server's
# rule demands (`protocols.privacy.differencing`). It remembers the set across all sums, in any order: the server
# publishes the model, and could repeat a sum under the next index. This is enough if any two sums with a member in
# common were signed by one honest client: all sums of a member's data then form a chain, whose steps are
# `min_difference` members or more. So the client also stores the first roster in which it contributed (`universe`),
# takes part in rosters of these members only, and signs a set only if more than half of the largest possible cohort
# had to sign it (`protocols.sums.masked.neighbourhood.quorum`). Two sums with a member in common are then over parts of
# that member's `universe`, and more than half of it signed each.
#
# *The first such sum in groups* (`VectorLayout.in_groups`) releases the sum of each group. With the sums of the chain
# the clients of group g are in cells, by when they leave. In a linear combination of all sums the coefficient of a cell
# is a_g + b_k: of the group, and of the sums that have the cell. Choose a so that b is 0 for those who stay to the last
# sum: if a_g is not 0, all of group g that stay are in the combination; if all a_g are 0, it is over whole steps of the
# chain. So none is over fewer clients than stay in some group, or than a step has: a client signs no set in which fewer
# of some group are left than a sum needs. Groups move when the roster does, and two such sums of the same clients would
# together be of few of them: it signs a set for one, and only before all others. Signatures are counted of all members,
# not of a group's, so that any two of all these sets have an honest signer in common.
#
# Members are compared by their identity keys, which the organiser certified; the server chooses the client ids. Sets
# are compared whatever the model was: an irrelevant change of it must not make the data count as new.

_TAG_BYTES: Final = 16


def member_tag(identity_key: bytes) -> bytes:
    """Return the 16 bytes that stand for a member with this identity key."""
    return digest("signed survivor", identity_key)[:_TAG_BYTES]


# The last sets and records are cached, since all clients of a simulated fleet have equal ones.


@lru_cache(maxsize=8)
def member_tags(identity_keys: tuple[bytes, ...], survivors: frozenset[int]) -> frozenset[bytes]:
    """Return the tags of the survivors of a roster, given as indices of `identity_keys`."""
    return frozenset(member_tag(identity_keys[index]) for index in survivors)


@lru_cache(maxsize=8)
def join_tags(tags: frozenset[bytes]) -> str:
    """Return a set of `member_tag`s as text, base64url."""
    return b64encode(b"".join(sorted(tags)))


def split_tags(text: str) -> frozenset[bytes]:
    """Return the set that `join_tags` wrote; `ValueError` for anything else."""
    body = b64decode(text)
    if len(body) % _TAG_BYTES:
        raise ValueError(f"a set has whole tags of {_TAG_BYTES} bytes, got {len(body)} bytes")
    return frozenset(body[start : start + _TAG_BYTES] for start in range(0, len(body), _TAG_BYTES))


_Tags = Annotated[frozenset[bytes], PlainValidator(split_tags), PlainSerializer(join_tags)]


@dataclass(frozen=True)
class SignedSets(Record):
    """The survivor set that a client signed last, as a set of `member_tag`, for sum `sum_index`; empty: none yet."""

    added = frozenset({"groups"})
    sum_index: int = 0
    members: _Tags = frozenset()
    universe: _Tags = frozenset()
    """If all sums of the task are over the same data, the first roster in which this client contributed."""
    earlier: frozenset[int] = frozenset()
    """The other sums for which it signed a set, and takes no part in any more; empty if all are over the same data."""
    groups: tuple[_Tags, ...] = ()
    """If all sums are over the same data, the survivors in each group of the first, where that was split."""

    def with_roster(self, roster: frozenset[bytes]) -> SignedSets:
        """Return the record after this client contributes within `roster` to a task that sums the same data again.

        Raises `RefusalError` for a member that is not in the first such roster.
        """
        if not self.universe:
            return replace(self, universe=roster)
        strangers = len(roster - self.universe)
        if strangers:
            raise RefusalError(
                f"the server sums the same data again with {strangers} members that were not in the first roster: the "
                "sums together could reveal one client's data"
            )
        return self

    def require_open(self, sum_index: int, in_groups: bool = False) -> None:
        """Raise `AlreadySummed` for a sum that this client signed a set for, other than the newest such sum.

        in_groups: whether it is split, and all sums are over the same data: then after any set.
        """
        if sum_index in self.earlier or (in_groups and self.members):
            raise AlreadySummed(sum_index)

    def closed(self) -> SignedSets:
        """Return the record after the server has lost its newest rounds: no sum is repeated over the same set now."""
        return replace(self, earlier=self.earlier | ({self.sum_index} if self.members else set()))

    def with_set(
        self,
        sum_index: int,
        members: frozenset[bytes],
        min_difference: int,
        same_data: bool = False,
        groups: tuple[frozenset[bytes], ...] = (),
        least: int = 1,
    ) -> SignedSets:
        """Return the record after `members` is signed for sum `sum_index`.

        same_data: whether all sums of the task are over the same data. groups: the members of each group, where such a
        sum is split; () for one that is whole. least: fewest clients of a sum. Raises `AlreadySummed`, and
        `RefusalError` for another set for the same data; with `same_data`, unless it is contained in the last one and
        smaller by at least `min_difference`; for a sum in groups after another one over the same data, and for a set
        that has fewer than `least` of some group of that sum.
        """
        self.require_open(sum_index, in_groups=bool(groups))
        left = min((len(group & members) for group in self.groups), default=least)
        if left < least:
            raise RefusalError(
                f"of a group of the first sum over these data {left} clients are left, and this client requires at "
                f"least {least}: the sums together could reveal the data of a few"
            )
        if members != self.members and self.members and (sum_index == self.sum_index or same_data):
            self._check_another(sum_index, members, min_difference, same_data)
        before = {self.sum_index} if self.members and sum_index != self.sum_index and not same_data else set()
        return replace(
            self, sum_index=sum_index, members=members, earlier=self.earlier | before, groups=groups or self.groups
        )

    def _check_another(self, sum_index: int, members: frozenset[bytes], min_difference: int, same_data: bool) -> None:
        difference = len(self.members ^ members)
        if same_data and members < self.members and difference >= min_difference:
            return
        rule = f"the same survivors{f', or at least {min_difference} fewer of them' if same_data else ''}"
        raise RefusalError(
            f"the server sums the same data again, in sum {sum_index}, over survivors that differ by {difference} from "
            f"those that this client confirmed before; this client requires {rule}: the sums together could reveal one "
            "client's data"
        )

    @classmethod
    @lru_cache(maxsize=8)
    def decode(cls, body: bytes) -> Self:
        """See `Record.decode`."""
        return super().decode(body)


# --- what a client gave of its data to sums of class `once` and `repeated` of one data set ----------------------------
# A data set is one task, or all tasks with one label. The record is the client's own: it holds whatever the server
# says, over restarts, and it is written before anything is sent.
#
# *Counted.* The data enter at most one sum of class `once`. A sum that failed may have been opened all the same, so it
# counts: the client may send its data again to the same sum only.
#
# *Confirmed.* The sets of survivors that this client agreed to, by series: all sums of one class in one task. Within a
# series `SignedSets` sees to one set, or a chain. Two series have no quorum in common that would keep their sets in a
# chain, and no client sees the sums that it is not in: with P counted in one task and Q in another, a sum over P, Q and
# one more client in a third gives that client's data away, although the members of P and of Q know two sets each that
# differ by many. So the data enter sums of another series only over exactly the same clients.


@dataclass(frozen=True)
class GivenData(Record):
    """The sums that have this client's data of one kind."""

    counted: tuple[str, int] | None = None
    """Task id and index of the sum of class `once` that has the data; None if none has."""
    confirmed: tuple[tuple[str, str], ...] = ()
    """Series, and digest in hex of the `member_tag`s of the clients, of each sum that this client agreed to, released
    or not; each pair once."""
    measured: int = 0
    """Contributions sent to measurements, those of failed rounds included."""

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

    def with_confirmed(self, series: str, members: frozenset[bytes]) -> GivenData:
        """Return the record after this client agrees to a sum over `members`.

        series: the task and the class of the sum. Raises `RefusalError` if its data are in a sum of another series over
        other clients.
        """
        own = (series, digest("given data", *sorted(members)).hex())
        if any(known[0] != series and known[1] != own[1] for known in self.confirmed):
            raise RefusalError(
                "this client's data are in sums of another task with the same data set, over other clients: the sums "
                "together could reveal the data of one client"
            )
        return self if own in self.confirmed else replace(self, confirmed=(*self.confirmed, own))


# --- what a client's data have spent of its privacy budget, in one task and in all of them ----------------------------
# A budget is kept for an identity, whose data are the same in all tasks, whatever a server calls them. A task reserves
# what it may cost when the client joins it, and costs what was sent once it is over. The costs of tasks add up as Renyi
# divergences. Records are written before anything is sent: a contribution whose answer is lost, and one to a round that
# fails, may have been opened all the same, and counts.


def _curve(numbers: object) -> RenyiCurve:
    curve = np.array(numbers, np.float64)
    if curve.shape != (len(ORDERS),) or not (curve >= 0).all():
        raise ValueError("no curve of Renyi divergences")
    return curve


def _known_orders(orders: tuple[int, ...]) -> tuple[int, ...]:
    if orders != ORDERS:
        raise ValueError("other Renyi orders")
    return orders


_StoredCurve = Annotated[
    RenyiCurve, PlainValidator(_curve), PlainSerializer(np.ndarray.tolist, return_type=list[float])
]


@dataclass(frozen=True)
class Spending(Record):
    """What one task costs this client's data."""

    task_name: str
    most_sums: int
    """Those that the task allows."""
    reserved: _StoredCurve
    """Of all that the task allows."""
    sums: int = 0
    """Contributions sent."""
    spent: _StoredCurve = field(default_factory=lambda: np.zeros(len(ORDERS)))
    """Curve of what was sent."""
    over: bool = False
    """Whether the task has ended, so that nothing more will be sent."""
    orders: Annotated[tuple[int, ...], AfterValidator(_known_orders)] = ORDERS
    """Of the divergences."""

    @property
    def counted(self) -> RenyiCurve:
        """The curve that counts towards the budget: of what was sent, and while the task goes on of what may be."""
        return self.spent if self.over else np.maximum(self.spent, self.reserved)

    def why_not(self) -> str | None:
        """Return why this client must not contribute another time; None if it may."""
        if self.sums < self.most_sums:
            return None
        return f"this client's data are in {self.sums} sums of the task, as many as its privacy block pays for"

    def with_sum(self, curve: RenyiCurve) -> Spending:
        """Return the record after another contribution."""
        return replace(self, sums=self.sums + 1, spent=self.spent + curve)


def total_epsilon(records: Iterable[Spending], delta: float, spent_only: bool = False) -> float:
    """Return what tasks cost together at `delta`; spent_only: without what they have reserved."""
    curves = [record.spent if spent_only else record.counted for record in records]
    return epsilon_of(np.sum(curves, axis=0), delta) if curves else 0.0
