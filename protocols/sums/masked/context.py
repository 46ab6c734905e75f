"""The public facts of a masked round, to which all keys, masks and signatures of the round are bound."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Final

from protocols.crypto.domain import SEED_BYTES, digest
from protocols.errors import ParameterError
from protocols.sums.masked.parameters import MIN_CLIENTS
from protocols.sums.masked.plan import MaskedPlan

__all__ = ["DIGEST_BYTES", "RoundContext", "model_digest"]

DIGEST_BYTES: Final = 32


@dataclass(frozen=True)
class RoundContext:
    """One round of one task, as one party sees it.

    round_seed: 32 public bytes that order the neighbour graph. model_digest: digest of the task's parameters and the
    broadcast (`model_digest`), which THIS party computed itself and did not take from the wire: a client with another
    model makes keys and masks that do not match any other client's. cohort: number of clients asked, the largest size
    of a roster. Raises `ParameterError` for values outside their ranges.
    """

    task_id: str
    round_number: int
    round_seed: bytes
    plan: MaskedPlan
    model_digest: bytes
    cohort: int

    def __post_init__(self) -> None:
        if len(self.round_seed) != SEED_BYTES or len(self.model_digest) != DIGEST_BYTES:
            raise ParameterError("a round seed and a model digest have 32 bytes each")
        if self.round_number < 1 or not MIN_CLIENTS <= self.cohort <= self.plan.max_contributions:
            raise ParameterError(
                f"rounds are counted from 1 and ask {MIN_CLIENTS} to {self.plan.max_contributions} clients, "
                f"got round {self.round_number} with {self.cohort}"
            )

    def binding(self) -> bytes:
        """Return 32 bytes that are equal for two parties only if all fields are; part of every signature and mask."""
        return self._binding

    @cached_property
    def _binding(self) -> bytes:
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
