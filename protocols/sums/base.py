"""The interface of every sum mechanism: a plan, and the functions that turn vectors into contributions and sums.

    plan      (parameters, layout, contributions)      -> SumPlan        lengths, budget, predicted error
    seal      (plan, route, blocks, keys)              -> bytes          client: what goes on the wire
    check     (plan, route, body)                      -> None           server: may it enter the sum?
    fold      (plan, partial, contributions)           -> bytes          server: a batch added to a partial sum
    merge     (plan, partials)                         -> bytes          server: partial sums of disjoint batches added
    release   (plan, partial)                          -> bytes          server: the aggregate as it is handed out
    open      (plan, aggregate, contributions, keys)   -> float64 vector client: the sum itself

Every mechanism has all of these but `seal` (`Mechanism`). `seal` is for those in which a contribution is one message
(`OneMessage`). The others have `encode` of their plan in its place: clients add masks to what it returns, and
contribute within a round of several messages, in a module of the mechanism's own.

All are pure functions; lengths come from the plan, never from the wire. `fold` and `merge` are exact: a partial sum is
the same, bit for bit, whatever the order, the batches and the number of workers.
"""

from __future__ import annotations

import hmac
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property, lru_cache
from typing import Any, ClassVar, Final, Literal, Protocol, Self, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from protocols.crypto.keys import Keyring
from protocols.errors import ContributionError, KeyringError, ParameterError
from protocols.layout import Floats, Route, VectorLayout

Buffer = bytes | bytearray | memoryview
OpenedBy = Literal["anyone", "members"]
Blocks = Sequence[NDArray[np.float64]]
"""One float64 vector for each block of a route."""
TakeAhead = Callable[[int], Sequence[Any]]
"""n -> at most n pieces of the next message, which were made in idle time (`OneMessage.pieces`)."""


COUNT_BYTES: Final = 8
"""Every partial sum starts with the number of its contributions, a little-endian uint64."""


class SumPlan(ABC):
    """How vectors of one layout are summed over at most `max_contributions` contributions: all lengths and the error.

    Plans are subclasses, frozen and hashable. Each party computes them from the task's parameters, never takes them
    from the wire.
    """

    layout: VectorLayout
    """Of the aggregate."""
    max_contributions: int
    """At least 1, or `ParameterError`; a fold beyond it raises `BudgetError`."""
    mechanism: ClassVar[str]
    """Name of the mechanism that made the plan."""
    opened_by: ClassVar[OpenedBy] = "anyone"
    """Who can open the aggregate: anyone, or every member (ckks, paillier)."""

    def __post_init__(self) -> None:
        if self.max_contributions < 1:
            raise ParameterError(f"max_contributions must be at least 1, got {self.max_contributions}")

    @classmethod
    def of(cls, plan: SumPlan) -> Self:
        """Return `plan` if it is of this class; `ParameterError` for a plan of another mechanism."""
        if not isinstance(plan, cls):
            raise ParameterError(f"this plan belongs to {plan.mechanism!r}, not to {cls.mechanism!r}")
        return plan

    @property
    @abstractmethod
    def predicted_error(self) -> float:
        """Bound on |opened sum - true sum|, in the unit of the widest segment, for a full cohort."""

    @property
    @abstractmethod
    def aggregate_bytes(self) -> int:
        """Length of a released aggregate in bytes."""

    @property
    def partial_bytes(self) -> int:
        """Length of a partial sum in bytes: the contribution count, then by default the fields of an aggregate."""
        return COUNT_BYTES + self.aggregate_bytes

    @abstractmethod
    def contribution_bytes(self, route: Route) -> int:
        """Return the exact length in bytes of a contribution along `route`."""

    def encode(self, route: Route, blocks: Blocks) -> NDArray[Any]:
        """Return the ring elements (layout.length,) of a contribution along `route`, before masks are added.

        blocks: one float64 vector for each block of the route. Errors as in `protocols.sums.ring.encode_vector`;
        `ParameterError` where a contribution is one message.
        """
        raise ParameterError(f"a {self.mechanism} contribution is one message")

    def describe(self) -> dict[str, Any]:
        """Return facts for people, JSON-ready; plans add security bits, bytes per value and what else is theirs."""
        return {
            "mechanism": self.mechanism,
            "max_contributions": self.max_contributions,
            "aggregate_bytes": self.aggregate_bytes,
            "predicted_error": self.predicted_error,
        }

    @property
    def segment_scales(self) -> Mapping[str, float]:
        """Steps per 1.0 of the fixed-point form, by `block/segment`; empty if values are sent as floats."""
        return {}

    @property
    def key_parameters(self) -> Mapping[str, Any]:
        """Parameters with which the plan of any layout has the keys of this one; empty if every plan has."""
        return {}

    @property
    def folds_slowly(self) -> bool:
        """Whether adding a contribution takes much longer than reading it, so that the server adds contributions soon
        after they arrive, in small batches."""
        return False

    @property
    def groups(self) -> int:
        """Groups of a cohort that have a sum each, 1 without groups (`protocols.sums.groups`)."""
        return 1

    @property
    def committee(self) -> int:
        """Members of a round's committee, 0 for none."""
        return 0

    @property
    def ticket_bytes(self) -> int:
        """Length of what is before the contribution in an upload and is not summed."""
        return 0

    def other_bytes(self, clients: int, id_bytes: int) -> tuple[int, int]:
        """Return the bytes up and down of a round besides contribution, sum and model, for one client when none drops
        out.

        clients: in the round. id_bytes: length of a client's id.
        """
        return 0, 0

    @property
    def confirms(self) -> bool:
        """Whether clients confirm the set of survivors before the sum opens."""
        return False

    @property
    def repeated(self) -> bool:
        """Whether clients also keep to one roster, because all sums of the task are over the same data and the server
        may lie about the survivors."""
        return False

    def quorum(self, cohort: int) -> int:
        """Return the fewest clients over which those of a cohort confirm a sum; 0 where they confirm none."""
        return 0

    def answers_needed(self, contributions: int) -> int:
        """Return how many answers to the unmask request open a sum; after that many, nobody's answer is missing."""
        return contributions

    def check_cohort(self, clients: int) -> None:
        """Raise `ParameterError` if a round of so many clients cannot work."""
        if clients < 1:
            raise ParameterError("a round has at least 1 client")

    def trust(self, cohort: int) -> list[str]:
        """Return, for a task's members, who can open a contribution or a sum. cohort: clients in a round.

        Raises `ParameterError` if no round of such a cohort can work.
        """
        if self.opened_by == "anyone":
            return ["The server sees every contribution in the clear."]
        return ["Members share one secret key: any member together with the server can open every contribution."]

    def require_count(self, contributions: int) -> None:
        """Raise `ParameterError` unless a sum of so many contributions is within the plan."""
        if not 0 <= contributions <= self.max_contributions:
            raise ParameterError(f"the plan allows {self.max_contributions} contributions, got {contributions}")

    def require_length(self, route: Route, body: Buffer) -> memoryview:
        """Return the bytes of a contribution; `ContributionError` for another length than the plan's."""
        view, expected = memoryview(body).cast("B"), self.contribution_bytes(route)
        if view.nbytes != expected:
            raise ContributionError(f"a contribution along this route is {expected} bytes, got {view.nbytes}")
        return view


class FixedPointPlan(SumPlan):
    """A plan whose values have a fixed-point form."""

    @property
    @abstractmethod
    def precision(self) -> Mapping[str, tuple[float, float]]:
        """Steps per 1.0, and the bound on the error in the segment's own unit, by `block/segment`; 0.0 for counts."""

    @property
    def segment_scales(self) -> dict[str, float]:
        return {name: scale for name, (scale, _) in self.precision.items()}

    @property
    def segment_errors(self) -> dict[str, float]:
        """Bound on the error by `block/segment`, in the segment's own unit."""
        return {name: error for name, (_, error) in self.precision.items()}

    @property
    def predicted_error(self) -> float:
        """The largest of the segments' error bounds."""
        return max(self.segment_errors.values())

    def describe(self) -> dict[str, Any]:
        scales = {"segment_scales": self.segment_scales, "segment_errors": self.segment_errors}
        return {**super().describe(), **scales}


class CiphertextPlan(FixedPointPlan):
    """A plan whose blocks are whole ciphertexts, under keys that the members share."""

    opened_by: ClassVar[OpenedBy] = "members"

    @property
    @abstractmethod
    def parameter_id(self) -> bytes:
        """32 bytes that identify the parameters of the keys."""

    @property
    @abstractmethod
    def block_ciphertexts(self) -> tuple[int, ...]:
        """Number of ciphertexts of each block of the aggregate."""

    @cached_property
    def ciphertexts(self) -> int:
        """Number of ciphertexts of the aggregate."""
        return sum(self.block_ciphertexts)

    def route_ciphertexts(self, route: Route) -> int:
        """Return the number of ciphertexts of a contribution along `route`: the first ones of the aggregate."""
        return _route_ciphertexts(self, route)

    def require_keyring(self, keyring: Keyring | None) -> Keyring:
        """Return the keyring; `KeyringError` if it is missing, or made for another mechanism or other parameters."""
        if keyring is None:
            raise KeyringError(f"a sum over {self.mechanism!r} needs the task's keyring")
        if keyring.mechanism != self.mechanism:
            raise KeyringError(f"this keyring belongs to {keyring.mechanism!r}, not to {self.mechanism!r}")
        if not hmac.compare_digest(keyring.parameter_id, self.parameter_id):
            raise KeyringError("this keyring was made for another ring degree, modulus or key size")
        return keyring


@lru_cache(maxsize=4096)  # most contributions take one of few routes
def _route_ciphertexts(plan: CiphertextPlan, route: Route) -> int:
    plan.layout.check_route(route)
    return plan.layout.chosen * plan.block_ciphertexts[0] or sum(plan.block_ciphertexts[:route])


class Mechanism(ABC):
    """A sum mechanism: what is true of all. Stateless singletons, found by name in `protocols.sums.registry`."""

    name: ClassVar[str]
    """By which tasks choose it, such as `plain` or `ckks`."""
    interactive: ClassVar[bool]
    """Whether a round needs several messages from each client; otherwise the mechanism is a `OneMessage`."""
    needs_keyring: ClassVar[bool] = False
    """Whether members share keys that a key holder makes once per task."""
    names_public_key: ClassVar[bool] = False
    """Whether the server needs the holder's public key, which does not exist yet when the task is created.

    The holder publishes it once, before any client contributes. From then on the task's parameters name it, and a
    contribution under another key is refused when it arrives.
    """

    @abstractmethod
    def plan(self, parameters: Mapping[str, Any], layout: VectorLayout, max_contributions: int) -> SumPlan:
        """Return the plan of a sum; `ParameterError` or `BudgetError` says what does not fit and what would."""

    @abstractmethod
    def check(self, plan: SumPlan, route: Route, body: Buffer) -> None:
        """Raise `ContributionError` unless `body` may be folded: exact length, residues in range, values finite."""

    @abstractmethod
    def fold(self, plan: SumPlan, partial: Buffer | None, contributions: Iterable[tuple[Route, Buffer]]) -> bytes:
        """Return a new partial sum: `partial` (None for an empty one) plus every checked contribution.

        Memory is O(aggregate). Contributions are taken from the iterable one at a time, and a body may be overwritten
        when the next one is taken: keep no view of it. The partial holds the number of contributions so far; raises
        `BudgetError` if it would exceed `plan.max_contributions`.
        """

    @abstractmethod
    def merge(self, plan: SumPlan, partials: Iterable[Buffer]) -> bytes:
        """Return the sum of partial sums, bit for bit the same as one fold of all their contributions.

        Memory is O(aggregate); partials are taken from the iterable one at a time. Raises `BudgetError` if their counts
        exceed `plan.max_contributions`, `CodecError` for a malformed partial.
        """

    @abstractmethod
    def release(self, plan: SumPlan, partial: Buffer) -> bytes:
        """Return the aggregate as clients download it, `plan.aggregate_bytes` bytes."""

    @abstractmethod
    def open(self, plan: SumPlan, aggregate: Buffer, contributions: int, keyring: Keyring | None) -> Floats:
        """Return the sum, float64 (layout.length,); counts are rounded to whole numbers.

        contributions: how many were folded. Raises `CodecError` for a malformed aggregate, `KeyringError` if the
        keyring is missing or belongs to another key.
        """

    def generate_keyring(self, plan: SumPlan) -> Keyring:
        """Return new keys for a task; `ParameterError` if the plan has keys already, and where members share none."""
        raise ParameterError(f"mechanism {self.name!r} needs no keyring")

    def name_public_key(self, parameters: Mapping[str, Any], public_key: bytes) -> dict[str, Any]:
        """Return the task's parameters with `Keyring.public_key` added, where `names_public_key`.

        Raises `ParameterError` for a malformed key, or if the parameters name another key already.
        """
        raise ParameterError(f"mechanism {self.name!r} names no public key")


class OneMessage(Mechanism):
    """A mechanism in which a client's contribution is one message that it makes alone.

    A part of it may not depend on the values, so that a waiting client can compute it. That part is in pieces. A piece
    is secret, and belongs to one contribution: it is never stored or used twice.
    """

    interactive: ClassVar[bool] = False

    @abstractmethod
    def seal(self, plan: SumPlan, route: Route, blocks: Blocks, keyring: Keyring | None) -> bytes:
        """Return a contribution of exactly `plan.contribution_bytes(route)` bytes.

        blocks: one float64 vector for each block of the route. Raises `BudgetError` if a value exceeds its segment's
        clip; clip first with `protocols.layout.clip_to_bounds`, which counts the clipped values.
        """

    def pieces(self, plan: SumPlan) -> int:
        """Return how many pieces a contribution uses at most: by default 0, nothing can be computed ahead."""
        return 0

    def make_piece(self, plan: SumPlan, keyring: Keyring) -> Any:
        """Return a new piece."""
        raise ParameterError(f"mechanism {self.name!r} makes no part of a contribution ahead")

    def seal_ahead(
        self, plan: SumPlan, route: Route, blocks: Blocks, keyring: Keyring | None, take: TakeAhead
    ) -> bytes:
        """Return a contribution as `seal` does. take(n): at most n pieces; missing ones are made."""
        return self.seal(plan, route, blocks, keyring)


def one_message(mechanism: Mechanism) -> OneMessage:
    """Return a mechanism in which a contribution is one message; `ParameterError` for the others."""
    if not isinstance(mechanism, OneMessage):
        raise ParameterError(
            f"{mechanism.name} contributions are made within a round: see protocols.sums.{mechanism.name}.client"
        )
    return mechanism


def new_keyring(mechanism: Mechanism, plan: SumPlan) -> Keyring | None:
    """Return new keys for a task, None if the mechanism has none."""
    return mechanism.generate_keyring(plan) if mechanism.needs_keyring else None


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

    def open_part(self, plan: SumPlan, aggregate: Buffer, contributions: int, start: int, stop: int) -> Floats:
        """Return values `start` to `stop` of what `Mechanism.open` returns; raises as that does, for these values."""
