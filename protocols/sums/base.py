"""What every sum mechanism offers: a plan, and the moves by which vectors become a contribution and a sum.

    plan      (parameters, layout, contributions)      -> SumPlan        lengths, budget, predicted error
    seal      (plan, route, blocks, keys)              -> bytes          client: what goes on the wire
    check     (plan, route, body)                      -> None           server: may it enter the sum?
    fold      (plan, partial, contributions)           -> bytes          server: a batch added to a partial sum
    merge     (plan, partials)                         -> bytes          server: partial sums of disjoint batches added
    release   (plan, partial)                          -> bytes          server: the aggregate as it is handed out
    open      (plan, aggregate, contributions, keys)   -> float64 vector client: the sum itself

All are pure functions; lengths come from the plan, never from the wire. `fold` and `merge` are exact: a partial sum is
the same, bit for bit, whatever the order, the batches and the number of workers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Literal, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from protocols.crypto.keyring import Keyring
from protocols.layout import Route, VectorLayout

__all__ = ["Buffer", "Mechanism", "NamesPublicKey", "OpenedBy", "SumPlan", "WorksAhead"]

Buffer = bytes | bytearray | memoryview
OpenedBy = Literal["anyone", "members", "holder"]


@runtime_checkable
class SumPlan(Protocol):
    """How one layout is summed over at most `max_contributions` contributions: every length and the error.

    Plans are frozen, hashable and rebuilt by each party from the task's parameters, never taken from the wire.
    """

    @property
    def mechanism(self) -> str:
        """Name of the mechanism that made the plan."""

    @property
    def layout(self) -> VectorLayout:
        """Layout of the aggregate."""

    @property
    def max_contributions(self) -> int:
        """The budget holds for this many contributions; a fold beyond it is refused."""

    @property
    def opened_by(self) -> OpenedBy:
        """Who can open the aggregate: anyone (plain), every member, or only the key holder (public-key mode)."""

    @property
    def predicted_error(self) -> float:
        """Bound on |opened sum - true sum|, in the unit of the widest segment, for a full cohort."""

    @property
    def partial_bytes(self) -> int:
        """Length of a partial sum."""

    @property
    def aggregate_bytes(self) -> int:
        """Length of a released aggregate."""

    def contribution_bytes(self, route: Route) -> int:
        """Exact length of a contribution along `route`."""

    def describe(self) -> dict[str, Any]:
        """JSON-ready facts for people: named set, security bits, bytes a value, predicted error."""


class Mechanism(Protocol):
    """One way to sum. Implementations are stateless singletons, looked up in `protocols.sums.registry`."""

    @property
    def name(self) -> str:
        """The word tasks use: `plain`, `ckks`."""

    @property
    def needs_keyring(self) -> bool:
        """Whether clients need keys from the mailbox before they can contribute."""

    @property
    def interactive(self) -> bool:
        """Whether a round takes several messages of each client, so that contributions are not made by `seal` alone."""

    def plan(self, parameters: Mapping[str, Any], layout: VectorLayout, max_contributions: int) -> SumPlan:
        """Lay out the sum; `ParameterError` or `BudgetError` says what does not fit and what would."""

    def generate_keyring(self, plan: SumPlan) -> Keyring:
        """Fresh keys for a task (the key holder's copy); `ParameterError` where the mechanism has none."""

    def seal(
        self, plan: SumPlan, route: Route, blocks: Sequence[NDArray[np.float64]], keyring: Keyring | None
    ) -> bytes:
        """A contribution of exactly `plan.contribution_bytes(route)` bytes.

        `blocks` holds one float64 vector per route entry, every |value| within its segment's clip (`BudgetError`
        otherwise: clip first with `protocols.layout.clip_to_bounds`, which counts).
        """

    def check(self, plan: SumPlan, route: Route, body: Buffer) -> None:
        """Raise `ContributionError` unless `body` may be folded: exact length, residues in range, values finite."""

    def fold(self, plan: SumPlan, partial: Buffer | None, contributions: Iterable[tuple[Route, Buffer]]) -> bytes:
        """A new partial sum: `partial` (None for an empty one) plus every checked contribution.

        Memory is O(aggregate), one contribution at a time is taken from the iterable. The partial carries the number
        of contributions so far; `BudgetError` when it would pass `plan.max_contributions`.
        """

    def merge(self, plan: SumPlan, partials: Iterable[Buffer]) -> bytes:
        """The partial sum of all that `partials` hold: bit for bit what one fold of all their contributions gives.

        Memory is O(aggregate), one partial at a time is taken from the iterable. Counts add up; `BudgetError` when they
        pass `plan.max_contributions`, `CodecError` for a partial of another form.
        """

    def release(self, plan: SumPlan, partial: Buffer) -> bytes:
        """The aggregate as clients download it, `plan.aggregate_bytes` long."""

    def open(
        self, plan: SumPlan, aggregate: Buffer, contributions: int, keyring: Keyring | None
    ) -> NDArray[np.float64]:
        """The sum as float64 of shape (layout.length,); counts are rounded to whole numbers.

        `contributions` is how many were folded. Raises `CodecError` for a malformed aggregate, `KeyringError` when the
        keyring is missing, public only, or of another key.
        """


@runtime_checkable
class WorksAhead(Protocol):
    """A mechanism that can do a part of sealing before there is anything to seal."""

    def working_ahead(self, plan: SumPlan, keyring: Keyring) -> AbstractContextManager[None]:
        """To be entered while a client waits for its turn: idle time is used, and what is sealed inside costs less."""


@runtime_checkable
class NamesPublicKey(Protocol):
    """A mechanism whose folding side needs the holder's public key, which nobody has yet when the task is made.

    The holder publishes it once, before anybody contributes; from then on the task's plan is made from parameters that
    name it, and a contribution under any other key is refused on arrival.
    """

    def name_public_key(self, parameters: Mapping[str, Any], public_key: bytes) -> dict[str, Any]:
        """The task's parameters with `Keyring.public_key` in them; `ParameterError` for another form or another key."""
