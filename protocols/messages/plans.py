"""The plan of a sum as the API states it, one message for each mechanism. Clients compare it with their own."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import ConfigDict, Field

from protocols.messages.base import Message

__all__ = [
    "PLANS",
    "CkksPlanView",
    "MaskedPlanView",
    "NeighbourhoodView",
    "OneshotPlanView",
    "OtherPlanView",
    "PaillierPlanView",
    "PlainPlanView",
]

BySegment = Annotated[dict[str, float], Field(description="By `block/segment`.")]
_MOST: Final = "Most contributions that a sum may have: the task's `cohort_size`."
_WORST: Final = "Bound on |opened sum - true sum|, in the unit of the widest segment."


class PlanView(Message):
    """What every plan states."""

    security_bits: int = Field(ge=0, description="Classical security of a contribution; 0 for plain sums.")
    max_contributions: int = Field(ge=1, description=_MOST)
    bytes_per_value: float | None = Field(default=None, gt=0, description="Bytes of a contribution for each value.")
    aggregate_bytes: int = Field(ge=1, description="Length of a released aggregate.")
    predicted_error: float = Field(ge=0, description=_WORST)


class OtherPlanView(PlanView):
    """What the plan of a mechanism of another package states at least."""

    model_config = ConfigDict(extra="allow")

    mechanism: str


class SegmentedPlanView(PlanView):
    """What plans with a fixed-point form state."""

    segment_scales: BySegment = Field(description="Steps per 1.0, by `block/segment`.")
    segment_errors: BySegment = Field(description="Bound on the error in the segment's own unit, by `block/segment`.")


class PlainPlanView(PlanView):
    """Values are sent as float32."""

    mechanism: Literal["plain"]


class NeighbourhoodView(Message):
    """Neighbours and threshold of a masked round of a full cohort."""

    clients: int
    degree: int = Field(description="k: neighbours of each client.")
    threshold: int = Field(description="t: shares that reconstruct a secret.")
    corrupt: float
    dropout: float
    mode: Literal["curious", "semi-malicious"]
    sigma: int
    eta: int
    log2_disconnected: float | None
    log2_too_many_corrupt: float | None
    log2_too_few_survivors: float | None


class MaskedPlanView(SegmentedPlanView):
    """Ring elements of `bits` bits under pairwise masks."""

    mechanism: Literal["masked"]
    bits: int
    mode: Literal["curious", "semi-malicious"]
    corrupt: float
    dropout: float
    sigma: int
    eta: int
    neighbourhood: NeighbourhoodView | None = Field(description="Of a full cohort; null if none exists.")


class OneshotPlanView(SegmentedPlanView):
    """Values in the coefficients of ring-LWE samples."""

    mechanism: Literal["oneshot"]
    bits: int
    committee: int
    corrupt: int
    threshold: int = Field(description="t: members that open a sum.")
    degree: int = Field(description="N: degree of the ring.")
    primes: list[int] = Field(description="Factors of the modulus q, descending.")
    log2_q: int
    values_per_coefficient: int
    ticket_bytes: int = Field(description="Bytes before the contribution in an upload.")
    upload_bytes: int


class CkksPlanView(SegmentedPlanView):
    """Complex slots of CKKS ciphertexts."""

    mechanism: Literal["ckks"]
    set: Literal["compact", "standard", "precise"]
    wire: Literal["seeded", "expanded"]
    ring_degree: int
    modulus_bits: int
    scale_bits: int = Field(description="log2 of the scale of values divided by their clip.")
    ciphertexts: int
    bytes_per_value_seeded: float
    bytes_per_value_expanded: float


class PaillierPlanView(SegmentedPlanView):
    """Slots of Paillier plaintexts."""

    mechanism: Literal["paillier"]
    key_bits: int
    value_bits: int
    slot_bits: dict[str, int] = Field(description="Width of a slot, by `block/segment`.")
    ciphertexts: int
    values_per_ciphertext: float
    names_public_key: bool


PLANS: Final[dict[str, type[PlanView]]] = {
    "ckks": CkksPlanView,
    "masked": MaskedPlanView,
    "oneshot": OneshotPlanView,
    "paillier": PaillierPlanView,
    "plain": PlainPlanView,
}
"""Mechanism -> the form of its plan."""
