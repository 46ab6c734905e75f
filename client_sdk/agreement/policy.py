"""What this client agrees to, whatever the server says."""

from __future__ import annotations

from dataclasses import dataclass, field

from client_sdk.agreement.terms import TaskTerms
from client_sdk.errors import PolicyRefused
from protocols.errors import ParameterError
from protocols.messages import RoundView
from protocols.sums.masked.parameters import Mode
from protocols.sums.masked.policy import ClientPolicy

__all__ = ["Policy"]


@dataclass(frozen=True)
class Policy:
    """A client's own conditions.

    min_cohort: a sum of fewer clients says too much about each of them.
    mechanisms: `plain` shows every contribution to the server, so it must be allowed by name:
    `Policy(mechanisms=frozenset({"ckks", "plain"}))`.
    masked_modes: `curious` trusts the server to follow the protocol of masked sums, so it must be allowed by name.
    min_neighbours, min_threshold, min_ring_bits: below these a masked round is refused, whatever the server says.
    trust_roster: without a membership secret nobody but the server says who the other clients are, and it could
    invent them all; semi-malicious masked tasks are then refused unless this is set.
    reveal_indices: Top-K with own support tells the server which entries this client sends, and so which items it
    touched, however the values are hidden; so it must be allowed by name where the sum hides them.
    max_clip_share: share of an update's values that may be clipped before progress is told with a warning.
    snapshot_every: this client offers a sealed snapshot after rounds whose number is a multiple of it; 0: never.
    """

    min_cohort: int = 3
    mechanisms: frozenset[str] = field(default_factory=lambda: frozenset({"ckks", "masked", "paillier"}))
    masked_modes: frozenset[Mode] = field(default_factory=lambda: frozenset[Mode]({"semi-malicious"}))
    min_neighbours: int = 2
    min_threshold: int = 2
    min_ring_bits: int = 16
    trust_roster: bool = False
    reveal_indices: bool = False
    max_clip_share: float = 0.01
    snapshot_every: int = 10

    def __post_init__(self) -> None:
        if self.min_cohort < 2:
            raise ParameterError(f"min_cohort must be at least 2: a sum of one is that one; got {self.min_cohort}")
        if self.snapshot_every < 0 or not 0 <= self.max_clip_share <= 1:
            raise ParameterError("snapshot_every must not be negative, and max_clip_share lies in 0..1")

    def check_task(self, terms: TaskTerms) -> None:
        """Raise `PolicyRefused` unless this client may take part in the task at all."""
        if terms.mechanism.name not in self.mechanisms:
            allowed = ", ".join(sorted(self.mechanisms)) or "nothing"
            raise PolicyRefused(
                f"task {terms.name!r} sums with {terms.mechanism.name!r}; this client's policy allows {allowed} "
                f"(Policy(mechanisms=...) changes that)"
            )
        if terms.sum_plan.layout.chosen and terms.mechanism.name != "plain" and not self.reveal_indices:
            raise PolicyRefused(
                f"in task {terms.name!r} every client tells the server which entries it sends, and so which items it "
                "touched; this client's policy forbids that (Policy(reveal_indices=True) changes that)"
            )
        if terms.schedule.min_clients < self.min_cohort:
            raise PolicyRefused(
                f"task {terms.name!r} releases sums of {terms.schedule.min_clients} clients; "
                f"this client's policy wants at least {self.min_cohort}"
            )

    def check_round(self, view: RoundView) -> None:
        """Raise `PolicyRefused` unless this client may contribute to the round."""
        if view.cohort < self.min_cohort:
            raise PolicyRefused(
                f"round {view.number} asks {view.cohort} clients; this client's policy wants at least {self.min_cohort}"
            )

    def for_masked_rounds(self) -> ClientPolicy:
        """The part of it that a masked round checks at each of its stages."""
        return ClientPolicy(
            self.min_cohort, self.min_neighbours, self.min_threshold, self.min_ring_bits, self.masked_modes
        )

    def too_much_clipped(self, clipped: int, values: int) -> bool:
        """Whether `clipped` of `values` uploaded values is worth a warning."""
        return clipped > self.max_clip_share * values
