"""A client's policy: the conditions under which it takes part, whatever the server says."""

from __future__ import annotations

from dataclasses import dataclass, field

from client_sdk.agreement.terms import TaskTerms
from client_sdk.errors import PolicyRefused
from protocols.errors import ParameterError
from protocols.messages import RoundView, Schedule
from protocols.sums.masked.parameters import Mode
from protocols.sums.masked.policy import ClientPolicy

__all__ = ["Policy"]


@dataclass(frozen=True)
class Policy:
    """The conditions under which a client takes part. Raises `ParameterError` for values out of range.

    min_cohort: smallest number of clients in a sum, at least 2. A sum of few clients reveals too much about each.
    mechanisms: mechanisms that the client accepts. `plain` shows every contribution to the server, so it must be
    allowed explicitly: `Policy(mechanisms=frozenset({"ckks", "plain"}))`.
    masked_modes: modes of masked sums that the client accepts. `curious` trusts the server to follow the protocol, so
    it must be allowed explicitly.
    min_neighbours, min_threshold, min_ring_bits: smallest parameters of a masked round that the client accepts.
    min_corrupt: smallest share of a cohort, 0 to 1, whose collusion with the server a masked task must tolerate.
    min_sigma: a masked round must reveal a vector with probability at most 2^-min_sigma.
    trust_roster: whether to accept masked and encrypted tasks without an organiser. Only the server then says who the
    other clients are, and it could invent all of them.
    reveal_indices: whether to accept Top-K with own support in tasks that hide the values. The server then learns which
    entries this client sends, and so which items it touched.
    max_clip_share: share of an update's values, 0 to 1, that may be clipped before `ClipWarning` is reported.
    snapshot_every: this client publishes a sealed snapshot when the newest is at least so many rounds old; 0: never.
    """

    min_cohort: int = 3
    mechanisms: frozenset[str] = field(default_factory=lambda: frozenset({"ckks", "masked", "paillier"}))
    masked_modes: frozenset[Mode] = field(default_factory=lambda: frozenset[Mode]({"semi-malicious"}))
    min_neighbours: int = 2
    min_threshold: int = 2
    min_ring_bits: int = 16
    min_corrupt: float = 0.05
    min_sigma: int = 40
    trust_roster: bool = False
    reveal_indices: bool = False
    max_clip_share: float = 0.01
    snapshot_every: int = 10

    def __post_init__(self) -> None:
        if self.min_cohort < 2:
            raise ParameterError(
                f"min_cohort must be at least 2, got {self.min_cohort}: a sum of one client reveals its data"
            )
        if self.snapshot_every < 0 or not 0 <= self.max_clip_share <= 1:
            raise ParameterError("snapshot_every must not be negative, and max_clip_share must be in 0..1")
        if not 0 <= self.min_corrupt < 1 or self.min_sigma < 1:
            raise ParameterError("min_corrupt must be at least 0 and below 1, and min_sigma at least 1")

    def check_task(self, terms: TaskTerms) -> None:
        """Raise `PolicyRefused` unless the policy allows the task."""
        if terms.mechanism.name not in self.mechanisms:
            allowed = ", ".join(sorted(self.mechanisms)) or "nothing"
            raise PolicyRefused(
                f"task {terms.name!r} uses the mechanism {terms.mechanism.name!r}; this client's policy allows "
                f"{allowed} (change it with Policy(mechanisms=...))"
            )
        if terms.sum_plan.layout.chosen and terms.mechanism.name != "plain" and not self.reveal_indices:
            raise PolicyRefused(
                f"in task {terms.name!r} the server learns which entries a client sends, and so which items it "
                "touched; this client's policy forbids that (allow it with Policy(reveal_indices=True))"
            )
        if terms.schedule.min_clients < self.min_cohort:
            raise PolicyRefused(
                f"task {terms.name!r} releases sums of {terms.schedule.min_clients} clients; "
                f"this client's policy requires at least {self.min_cohort}"
            )

    def check_round(self, view: RoundView) -> None:
        """Raise `PolicyRefused` unless the policy allows the round."""
        if view.cohort < self.min_cohort:
            raise PolicyRefused(
                f"round {view.number} has {view.cohort} clients; "
                f"this client's policy requires at least {self.min_cohort}"
            )

    def for_masked_rounds(self, schedule: Schedule) -> ClientPolicy:
        """Return the requirements of a task with this schedule that are checked in each stage of a masked round.

        No sum is over fewer clients than the larger of `min_cohort` and the schedule's `min_clients`.
        """
        floor = max(self.min_cohort, schedule.min_clients)
        return ClientPolicy(
            floor,
            self.min_neighbours,
            self.min_threshold,
            self.min_ring_bits,
            self.masked_modes,
            self.min_corrupt,
            self.min_sigma,
        )

    def min_difference(self, schedule: Schedule) -> int:
        """Return the smallest number of clients by which two sums over the same data may differ, unless by none.

        It is the larger of `min_cohort` and the schedule's `min_difference` (where that is null, its `min_clients`).
        """
        return max(self.min_cohort, schedule.min_difference or schedule.min_clients)

    def too_much_clipped(self, clipped: int, values: int) -> bool:
        """Return whether `clipped` of `values` uploaded values exceed `max_clip_share`."""
        return clipped > self.max_clip_share * values
