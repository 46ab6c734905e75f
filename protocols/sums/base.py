"""The interface of every sum mechanism: a plan, and the functions that turn vectors into contributions and sums.

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
from typing import Any, Final, Literal, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from protocols.crypto.keyring import Keyring
from protocols.errors import ParameterError
from protocols.layout import Route, VectorLayout

__all__ = [
    "Buffer",
    "ChecksByParts",
    "FoldsSlowly",
    "Mechanism",
    "NamesPublicKey",
    "OpenedBy",
    "OpensByParts",
    "SharesKeys",
    "SumPlan",
    "WorksAhead",
    "folds_slowly",
    "plan_sum",
    "refuse_public_mode",
]

Buffer = bytes | bytearray | memoryview
OpenedBy = Literal["anyone", "members"]


@runtime_checkable
class SumPlan(Protocol):
    """How vectors of one layout are summed over at most `max_contributions` contributions: all lengths and the error.

    Plans are frozen and hashable. Each party computes them from the task's parameters, never takes them from the wire.
    """

    @property
    def mechanism(self) -> str:
        """Name of the mechanism that made the plan."""

    @property
    def layout(self) -> VectorLayout:
        """Layout of the aggregate."""

    @property
    def max_contributions(self) -> int:
        """Most contributions that the plan allows; a fold beyond it raises `BudgetError`."""

    @property
    def opened_by(self) -> OpenedBy:
        """Who can open the aggregate: anyone, or every member (ckks, paillier)."""

    @property
    def predicted_error(self) -> float:
        """Bound on |opened sum - true sum|, in the unit of the widest segment, for a full cohort."""

    @property
    def segment_scales(self) -> Mapping[str, float]:
        """Steps per 1.0 of the fixed-point form, by `block/segment`; empty if values are sent as floats."""

    @property
    def partial_bytes(self) -> int:
        """Length of a partial sum in bytes."""

    @property
    def aggregate_bytes(self) -> int:
        """Length of a released aggregate in bytes."""

    def contribution_bytes(self, route: Route) -> int:
        """Return the exact length in bytes of a contribution along `route`."""

    def describe(self) -> dict[str, Any]:
        """Return facts for people, JSON-ready: named set, security bits, bytes per value, predicted error."""


class Mechanism(Protocol):
    """A sum mechanism. Implementations are stateless singletons, found by name in `protocols.sums.registry`."""

    @property
    def name(self) -> str:
        """The name by which tasks choose the mechanism, such as `plain` or `ckks`."""

    @property
    def needs_keyring(self) -> bool:
        """Whether clients need the task's keyring before they can contribute."""

    @property
    def interactive(self) -> bool:
        """Whether a round needs several messages from each client, so that `seal` alone cannot make a contribution."""

    def plan(self, parameters: Mapping[str, Any], layout: VectorLayout, max_contributions: int) -> SumPlan:
        """Return the plan of a sum; `ParameterError` or `BudgetError` says what does not fit and what would."""

    def generate_keyring(self, plan: SumPlan) -> Keyring:
        """Return new keys for a task; `ParameterError` if the mechanism has no keys."""

    def seal(
        self, plan: SumPlan, route: Route, blocks: Sequence[NDArray[np.float64]], keyring: Keyring | None
    ) -> bytes:
        """Return a contribution of exactly `plan.contribution_bytes(route)` bytes.

        blocks: one float64 vector per route entry. Raises `BudgetError` if a value exceeds its segment's clip; clip
        first with `protocols.layout.clip_to_bounds`, which counts the clipped values.
        """

    def check(self, plan: SumPlan, route: Route, body: Buffer) -> None:
        """Raise `ContributionError` unless `body` may be folded: exact length, residues in range, values finite."""

    def fold(self, plan: SumPlan, partial: Buffer | None, contributions: Iterable[tuple[Route, Buffer]]) -> bytes:
        """Return a new partial sum: `partial` (None for an empty one) plus every checked contribution.

        Memory is O(aggregate). Contributions are taken from the iterable one at a time, and a body may be overwritten
        when the next one is taken: keep no view of it. The partial holds the number of contributions so far; raises
        `BudgetError` if it would exceed `plan.max_contributions`.
        """

    def merge(self, plan: SumPlan, partials: Iterable[Buffer]) -> bytes:
        """Return the sum of partial sums, bit for bit the same as one fold of all their contributions.

        Memory is O(aggregate); partials are taken from the iterable one at a time. Raises `BudgetError` if their counts
        exceed `plan.max_contributions`, `CodecError` for a malformed partial.
        """

    def release(self, plan: SumPlan, partial: Buffer) -> bytes:
        """Return the aggregate as clients download it, `plan.aggregate_bytes` bytes."""

    def open(
        self, plan: SumPlan, aggregate: Buffer, contributions: int, keyring: Keyring | None
    ) -> NDArray[np.float64]:
        """Return the sum, float64 (layout.length,); counts are rounded to whole numbers.

        contributions: how many were folded. Raises `CodecError` for a malformed aggregate, `KeyringError` if the
        keyring is missing or belongs to another key.
        """


@runtime_checkable
class SharesKeys(Protocol):
    """A mechanism whose keys fit some plans only, so that all sums of a task must be planned alike."""

    def with_keys_of(self, parameters: Mapping[str, Any], plan: SumPlan) -> dict[str, Any]:
        """Return the task's parameters, changed so that the plan of any layout has the keys of `plan`."""


def plan_sum(
    mechanism: Mechanism,
    parameters: Mapping[str, Any],
    layout: VectorLayout,
    max_contributions: int,
    main: VectorLayout | None = None,
) -> SumPlan:
    """Return the plan of a sum. main: the layout of the task's main sum, with which it shares keys; None for any keys.

    Raises what `Mechanism.plan` raises.
    """
    if main is not None and main != layout and isinstance(mechanism, SharesKeys):
        parameters = mechanism.with_keys_of(parameters, mechanism.plan(parameters, main, max_contributions))
    return mechanism.plan(parameters, layout, max_contributions)


_NO_PUBLIC_MODE: Final = (
    "mode 'public' of ckks and paillier was removed: a malicious member learns a round's CKKS key, and the server "
    "learns from the key holder's answers what a client contributed (24 questions: 24 items); use the mechanism "
    "oneshot, in which a committee opens each sum, at 4.0 bytes a value instead of 14"
)


def refuse_public_mode(parameters: Mapping[str, Any]) -> None:
    """Raise `ParameterError` if a task of CKKS or Paillier asks that only a key holder can open sums.

    `docs/ckks.md` describes the attacks.
    """
    if parameters.get("mode") == "public":
        raise ParameterError(_NO_PUBLIC_MODE)


@runtime_checkable
class FoldsSlowly(Protocol):
    """A plan that can need much longer to add a contribution than to read it, as for ciphertexts with seeds."""

    @property
    def folds_slowly(self) -> bool:
        """Whether adding takes long, so that the server adds contributions soon after they arrive, in small batches."""


def folds_slowly(plan: SumPlan) -> bool:
    """Return whether contributions of this plan should be added soon after they arrive; see `FoldsSlowly`."""
    return isinstance(plan, FoldsSlowly) and plan.folds_slowly


@runtime_checkable
class ChecksByParts(Protocol):
    """A mechanism that can check a contribution in consecutive parts, so that all of it need not be in memory."""

    def check_part(self, plan: SumPlan, route: Route, start: int, part: Buffer) -> None:
        """Raise `ContributionError` unless these bytes of a contribution, from byte `start` on, may be folded.

        All parts together check what `Mechanism.check` checks, if the length is that of the plan. start: a multiple of
        16, and so is the length of every part but the last.
        """


@runtime_checkable
class OpensByParts(Protocol):
    """A mechanism whose aggregates anyone can open in parts, so that all of the sum need not be in memory."""

    def open_part(
        self, plan: SumPlan, aggregate: Buffer, contributions: int, start: int, stop: int
    ) -> NDArray[np.float64]:
        """Return values `start` to `stop` of what `Mechanism.open` returns; raises as that does, for these values."""


@runtime_checkable
class WorksAhead(Protocol):
    """A mechanism that can precompute a part of sealing before the values are known."""

    def working_ahead(self, plan: SumPlan, keyring: Keyring) -> AbstractContextManager[None]:
        """Return a context in which a client waits: it precomputes in idle time, which makes `seal` cheaper inside."""


@runtime_checkable
class NamesPublicKey(Protocol):
    """A mechanism whose server needs the holder's public key, which does not exist yet when the task is created.

    The holder publishes it once, before any client contributes. From then on the task's parameters name it, and a
    contribution under another key is refused when it arrives.
    """

    def name_public_key(self, parameters: Mapping[str, Any], public_key: bytes) -> dict[str, Any]:
        """Return the task's parameters with `Keyring.public_key` added.

        Raises `ParameterError` for a malformed key, or if the parameters name another key already.
        """
