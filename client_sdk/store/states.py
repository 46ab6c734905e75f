"""What a client keeps of a task beside its keys: its arrays, the model, which data it has given, and what they cost."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import AfterValidator, PlainSerializer, PlainValidator

from client_sdk.store.stores import Record
from protocols.crypto.aggregate_chain import AggregateChain
from protocols.crypto.keys import digest
from protocols.errors import RefusalError
from protocols.privacy.noise import ORDERS, Curve, epsilon_of
from protocols.recipes.base import ModelState

ClientState = Mapping[str, NDArray[Any]]
"""Arrays by name, such as the user factor or a residual, as the client's half of the recipe needs them."""


# --- A model state that a client has reached, with the chain of the aggregates that led to it ------------------------


@dataclass(frozen=True)
class FollowedState:
    """A model state. chain: of the aggregates up to its round; None in tasks whose sums anyone can open.

    from_snapshot: whether another member's snapshot is the source of the chain, or of its beginning. stored_at: when it
    was stored on this device, seconds since the epoch; None before.
    """

    state: ModelState
    chain: AggregateChain | None = None
    from_snapshot: bool = False
    stored_at: float | None = field(default=None, compare=False)


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
    """counted: task id and index of the sum of class `once` that has the data; None if none has.

    confirmed: series, and digest in hex of the `member_tag`s of the clients, of each sum that this client agreed to,
    released or not; each pair once. measured: how many contributions it sent to measurements, those of failed rounds
    included.
    """

    counted: tuple[str, int] | None = None
    confirmed: tuple[tuple[str, str], ...] = ()
    measured: int = 0

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


def _curve(numbers: object) -> Curve:
    curve = np.array(numbers, np.float64)
    if curve.shape != (len(ORDERS),) or not (curve >= 0).all():
        raise ValueError("no curve of Renyi divergences")
    return curve


def _known_orders(orders: tuple[int, ...]) -> tuple[int, ...]:
    if orders != ORDERS:
        raise ValueError("other Renyi orders")
    return orders


_StoredCurve = Annotated[Curve, PlainValidator(_curve), PlainSerializer(np.ndarray.tolist, return_type=list[float])]


@dataclass(frozen=True)
class Spending(Record):
    """What one task costs this client's data.

    sums: contributions sent. most_sums: that the task allows. spent: curve of what was sent; reserved: of all that the
    task allows. over: whether the task has ended, so that nothing more will be sent. orders: of the divergences.
    """

    task_name: str
    most_sums: int
    reserved: _StoredCurve
    sums: int = 0
    spent: _StoredCurve = field(default_factory=lambda: np.zeros(len(ORDERS)))
    over: bool = False
    orders: Annotated[tuple[int, ...], AfterValidator(_known_orders)] = ORDERS

    @property
    def counted(self) -> Curve:
        """The curve that counts towards the budget: of what was sent, and while the task goes on of what may be."""
        return self.spent if self.over else np.maximum(self.spent, self.reserved)

    def why_not(self) -> str | None:
        """Return why this client must not contribute another time; None if it may."""
        if self.sums < self.most_sums:
            return None
        return f"this client's data are in {self.sums} sums of the task, as many as its privacy block pays for"

    def with_sum(self, curve: Curve) -> Spending:
        """Return the record after another contribution."""
        return replace(self, sums=self.sums + 1, spent=self.spent + curve)


def total_epsilon(records: Iterable[Spending], delta: float, spent_only: bool = False) -> float:
    """Return what tasks cost together at `delta`; spent_only: without what they have reserved."""
    curves = [record.spent if spent_only else record.counted for record in records]
    return epsilon_of(np.sum(curves, axis=0), delta) if curves else 0.0
