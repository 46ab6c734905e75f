"""The plan and the mechanism of a masked sum, and what a round of it is bound to.

A masked contribution is always the whole aggregate vector, whatever its route (docs/adr/0004-blocks-and-routes.md):
blocks outside the route are masked zeros, and a block with two targets appears twice. The segments share the ring
Z_{2^bits} and have a scale each (`protocols.sums.ring`).

The mechanism adds ring elements modulo 2^bits, one contribution at a time. Clients agree on masks within a round: they
contribute through `protocols.sums.masked.client`, and the server removes the masks from the folded sum (`correct`)
before it releases it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Final, TypeVar

import numpy as np

from protocols.codec import b64length, exact
from protocols.crypto.keys import DIGEST_BYTES, SEED_BYTES, digest
from protocols.errors import ContributionError, ParameterError
from protocols.layout import Route, VectorLayout
from protocols.parameter_text import validated
from protocols.sums.base import COUNT_BYTES, Blocks, Buffer, SumPlan
from protocols.sums.group_sums import split_groups
from protocols.sums.groups import MIN_CLIENTS, require_groups, trust_of_groups
from protocols.sums.masked import wire
from protocols.sums.masked.neighbourhood import MOST_CLIENTS, Mode, Neighbourhood, choose_neighbourhood, quorum
from protocols.sums.masked.parameters import FEWEST_BITS, MaskedParameters, upload_bytes
from protocols.sums.ring import RingMechanism, RingPlan, encode_vector, require_fit
from protocols.sums.wire import (
    GROUP,
    RAW_BITS,
    PartialSum,
    Ring,
    pack,
    packed_bytes,
    read_count,
    refuse_chosen,
    ring_dtype,
    unpack,
)

_SECURITY_BITS: Final = 128
"""Security of AES-128 and X25519."""


@dataclass(frozen=True)
class MaskedPlan(RingPlan):
    """The plan of a masked sum; all parties compute the same from the task's parameters."""

    parameters: MaskedParameters
    mechanism: ClassVar[str] = "masked"

    @property
    def bits(self) -> int:
        """Those of the parameters; in a narrow layout as many as its counts need, if these are fewer."""
        if not self.layout.narrow:
            return self.parameters.bits
        return min(self.parameters.bits, max(FEWEST_BITS, self.most_in_sum.bit_length() + 1))

    @property
    def spare(self) -> int:
        return 0 if self.layout.narrow else self.parameters.spare

    @property
    def mode(self) -> Mode:
        """Behaviour of the server that the sum withstands."""
        return self.parameters.mode

    @property
    def confirms(self) -> bool:
        """Whether clients sign the set of survivors before the sum opens: in mode semi-malicious."""
        return self.mode == "semi-malicious"

    @property
    def repeated(self) -> bool:
        return self.layout.sum_class.repeated and self.confirms

    @property
    def dtype(self) -> np.dtype[Any]:
        """dtype of ring elements: uint16, uint32 or uint64."""
        return ring_dtype(self.bits)

    def neighbourhood(self, clients: int) -> Neighbourhood:
        """Return neighbours and threshold for a roster of `clients`; `ParameterError` if no values fit.

        With groups a client's neighbours are in its own.
        """
        own = self.parameters
        return choose_neighbourhood(clients, own.corrupt, own.dropout, own.mode, own.sigma, own.eta, self.groups)

    def quorum(self, members: int) -> int:
        """Return the signatures of one set of survivors that a client of a roster of `members` needs, its own included.

        With groups these are signatures of its own group's members.

        If the same data are summed again, over members that may leave, they are counted of all that may ever be summed,
        with groups, too: a group of one roster is not one of the next, so that two sets of a part of the members need
        not have an honest one in common.
        """
        most = max(members, self.max_contributions) if self.repeated else members
        return quorum(self.parameters.corrupt, most, self.signing_groups)

    @property
    def signing_groups(self) -> int:
        """Parts of a roster whose members' signatures are counted: its groups; 1 if the same data are summed again."""
        return 1 if self.repeated else self.groups

    def check_cohort(self, clients: int) -> None:
        """Raise `ParameterError` if a roster of so many clients has no neighbourhood, or too many signatures."""
        self.parameters.require_signers(clients)
        self.neighbourhood(clients)

    def trust(self, cohort: int) -> list[str]:
        found = self.neighbourhood(cohort)
        k, t = found.degree, found.threshold
        trust = (
            "The server is not trusted about dropouts, keys and the model: clients check them, and leave the round."
            if self.confirms
            else "The server is trusted to follow the protocol: one that lies about who dropped out can open "
            "contributions."
        )
        whole = f"cohort of {cohort}" if self.groups == 1 else f"group of {cohort // self.groups}"
        lines = [
            f"{trust} Sums are in the clear once they are released.",
            f"In a full {whole} each client shares its secrets among {k} neighbours. {t} of them can open "
            f"its contribution together with the server. A round fails when fewer than {t} neighbours of a client "
            f"stay; about {self.parameters.dropout:.0%} of the clients may drop out.",
        ]
        lines += trust_of_groups(self.groups, self.tau, self.layout)
        if self.repeated:
            lines.append(
                f"All sums are over the same data: clients confirm none over fewer than {self.quorum(cohort)} of "
                f"{cohort} clients, so that the server cannot compute anything over few clients from several sums. "
                "When fewer are left, the task fails."
            )
        return lines

    @property
    def partial_bytes(self) -> int:
        """Length of a partial sum in bytes: the contribution count, then raw ring elements; of every group in turn."""
        return self.groups * (COUNT_BYTES + self.layout.length * self.dtype.itemsize)

    def contribution_bytes(self, route: Route) -> int:
        self.layout.check_route(route)
        return packed_bytes(self.layout.length, self.bits)

    def encode(self, route: Route, blocks: Blocks) -> Ring:
        elements = np.zeros(self.layout.length, self.dtype)
        encode_vector(self.layout, self.places, route, blocks, elements)
        return elements

    def other_bytes(self, clients: int, id_bytes: int) -> tuple[int, int]:
        own = self.neighbourhood(clients)
        stages = upload_bytes(own, self.layout.length, self.bits)
        down = wire.roster_bytes(clients, id_bytes, own.degree)
        down += wire.inbox_bytes(clients, own.degree, (own.degree + 1) // 2)
        shown = wire.set_bytes(clients), wire.confirmations_bytes(clients) if self.confirms else 0
        return sum(stages.values()) - stages["contribute"], down + sum(map(b64length, shown))

    def describe(self) -> dict[str, Any]:
        return {
            "mechanism": self.mechanism,
            **self.parameters.model_dump(),
            "security_bits": _SECURITY_BITS,
            "garbage_passes": self.garbage_passes,
            "max_contributions": self.max_contributions,
            "neighbourhood": self.neighbourhood(self.max_contributions).describe(),
            "bytes_per_value": self.aggregate_bytes / self.layout.length,
            "aggregate_bytes": self.aggregate_bytes,
            "predicted_error": self.predicted_error,
            "segment_scales": self.segment_scales,
            "segment_errors": self.segment_errors,
        }


def make_plan(parameters: Mapping[str, Any], layout: VectorLayout, max_contributions: int) -> MaskedPlan:
    """Return the plan of a task.

    Whether a cohort has a neighbourhood is checked when a task is created or joined (`MaskedPlan.neighbourhood`).
    Raises `ParameterError` for invalid parameters, `BudgetError` if the sums do not fit the ring.
    """
    checked = validated("masked parameters", MaskedParameters, parameters)
    refuse_chosen(layout, "masked")
    plan = MaskedPlan(checked, layout, max_contributions)
    if checked.groups > 1:
        require_groups(layout, max_contributions, checked.groups)
    fitting = range(plan.bits - plan.spare, 65 - plan.spare)
    require_fit(layout, plan.most_in_sum, fitting, range(MIN_CLIENTS, MOST_CLIENTS + 1))
    return plan


@dataclass(frozen=True)
class RoundContext:
    """One round of one task, as one party sees it.

    Raises `ParameterError` for values outside their ranges.
    """

    task_id: str
    round_number: int
    round_seed: bytes
    """32 public bytes that order the neighbour graph."""
    plan: MaskedPlan
    model_digest: bytes
    """Digest of the task's parameters and the broadcast (`model_digest`), which THIS party computed itself and did not
    take from the wire: a client with another model makes keys and masks that do not match any other client's."""
    cohort: int
    """Number of clients asked, the largest size of a roster."""

    def __post_init__(self) -> None:
        if len(self.round_seed) != SEED_BYTES or len(self.model_digest) != DIGEST_BYTES:
            raise ParameterError("a round seed and a model digest have 32 bytes each")
        if self.round_number < 1 or not MIN_CLIENTS <= self.cohort <= self.plan.max_contributions:
            raise ParameterError(
                f"rounds are counted from 1 and ask {MIN_CLIENTS} to {self.plan.max_contributions} clients, "
                f"got round {self.round_number} with {self.cohort}"
            )

    @cached_property
    def binding(self) -> bytes:
        """32 bytes that are equal for two parties only if all fields are; part of every signature and mask."""
        return digest(
            "masked round",
            self.task_id,
            self.round_number,
            self.round_seed,
            self.model_digest,
            self.cohort,
            self.plan.bits,
            self.plan.layout.length,
        )


def model_digest(parameters: bytes, broadcast: bytes) -> bytes:
    """Return the digest (32 bytes) of a task's parameters, in a canonical form, and of a round's broadcast."""
    return digest("masked model", parameters, broadcast)


T = TypeVar("T")

_PIECE: Final = 1024 * GROUP
"""Elements unpacked and added at a time, for widths that are packed on the wire."""


class MaskedMechanism(RingMechanism):
    """Sums of ring elements under pairwise masks, which cancel in the sum, and self masks, which unmasking removes."""

    name: ClassVar[str] = "masked"
    plan_class: ClassVar[type[RingPlan]] = MaskedPlan

    def plan(self, parameters: Mapping[str, Any], layout: VectorLayout, max_contributions: int) -> MaskedPlan:
        return make_plan(parameters, layout, max_contributions)

    def check(self, plan: SumPlan, route: Route, body: Buffer) -> None:
        """Raise `ContributionError` unless the length is exact and the unused bits of the last byte are zero.

        Any ring elements are valid, since masked elements are uniform.
        """
        own = MaskedPlan.of(plan)
        view = own.require_length(route, body)
        used = own.layout.length * own.bits % 8
        if used and view[-1] >> used:
            raise ContributionError("the unused bits of the last byte are not zero")

    def _added(self, plan: RingPlan, partials: Iterable[Buffer], more: Iterable[tuple[Route, Buffer]] = ()) -> bytes:
        own = MaskedPlan.of(plan)
        total = _total(own, partials)
        for route, contribution in more:
            total.count_more(1)
            _add(own, total.sums, exact(contribution, own.contribution_bytes(route), "a contribution along this route"))
        return _encode(own, total)

    def correct(
        self, plan: SumPlan, partial: Buffer | None, add_to: Callable[[Ring, int], T]
    ) -> tuple[bytes, tuple[T, ...]]:
        """Return the partial sum plus what `add_to` adds to its elements in place, and what `add_to` returns by group.

        partial: None gives a partial sum of no contributions, to be merged with others. add_to: gets the elements
        (layout.length,) of the ring's dtype and the index of their group, 0 without groups, and keeps no view of them.
        The correction of unmasking is never a vector of its own.
        """
        own, corrected, found = MaskedPlan.of(plan), list[bytes](), list[T]()
        for group, part in enumerate(split_groups(own, partial)):
            total = _total(own.of_group, () if part is None else (part,))
            found.append(add_to(total.sums, group))
            corrected.append(_encode(own.of_group, total))
        return b"".join(corrected), tuple(found)

    def release(self, plan: SumPlan, partial: Buffer) -> bytes:
        """Return the corrected sums as packed ring elements, without the count; with groups each after its count."""
        own = MaskedPlan.of(plan)
        if own.groups > 1:
            return self._released_groups(own, partial, lambda part: self.release(own.of_group, part))
        sums = np.frombuffer(read_count(own, partial)[1], own.dtype.newbyteorder("<"))
        return pack(sums.astype(own.dtype, copy=False), own.bits)


def _total(plan: MaskedPlan, partials: Iterable[Buffer]) -> PartialSum[Any]:
    total = PartialSum(plan, plan.dtype)
    for partial in partials:
        np.add(total.sums, total.take(partial), out=total.sums)
    return total


def _encode(plan: MaskedPlan, total: PartialSum[Any]) -> bytes:
    """Return the partial sum, its elements modulo 2^bits."""
    if plan.bits not in RAW_BITS:
        np.bitwise_and(total.sums, plan.dtype.type((1 << plan.bits) - 1), out=total.sums)
    return total.encode()


def _add(plan: MaskedPlan, sums: Ring, contribution: memoryview) -> None:
    """Add a contribution to `sums`: raw elements directly, packed elements unpacked piece by piece."""
    piece = sums.size if plan.bits in RAW_BITS else _PIECE
    for first in range(0, sums.size, piece):
        part = sums[first : first + piece]
        start = first * plan.bits // 8
        part += unpack(contribution[start : start + packed_bytes(part.size, plan.bits)], plan.bits, part.size)


MASKED: Final = MaskedMechanism()
"""The mechanism; stateless."""
