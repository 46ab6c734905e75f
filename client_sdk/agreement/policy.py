"""A client's policy: the conditions under which it takes part, whatever the server says."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field, fields
from typing import Any, Final, TypeVar, cast, get_args

from client_sdk.agreement.terms import TaskTerms
from client_sdk.errors import PolicyRefused
from protocols.errors import ParameterError, RefusalError, to_accept
from protocols.messages import RoundView, Schedule
from protocols.plugins import load
from protocols.recipes.base import Recipe
from protocols.recipes.evaluated import Evaluated
from protocols.sums.masked.neighbourhood import Mode
from protocols.sums.registry import CLEAR, HIDING, mechanisms

R = TypeVar("R")
MOST_EPOCHS: Final = 1000
MOST_MEASUREMENTS: Final = 1_000_000
_BOUNDS: Final = {
    "min_cohort": (2, 1_000_000),
    "min_neighbours": (2, 1_000_000),
    "min_threshold": (2, 1_000_000),
    "min_ring_bits": (0, 64),
    "min_sigma": (1, 80),
    "max_model_bytes": (1, 1 << 63),
    "max_epochs": (1, MOST_EPOCHS),
    "max_measurements": (0, MOST_MEASUREMENTS),
    "max_clip_share": (0, 1),
    "snapshot_every": (0, 1_000_000),
}
"""Smallest and largest value of each number: no task satisfies a requirement above its largest value."""


@dataclass(frozen=True)
class Policy:
    """The conditions under which a client takes part. Raises `ParameterError` for values out of range."""

    min_cohort: int = 3
    """Smallest number of clients in a sum, at least 2. A sum of few clients reveals too much about each."""
    mechanisms: frozenset[str] = HIDING
    """Mechanisms that the client accepts. `plain` shows every contribution to the server, so it must be allowed
    explicitly: `Policy(mechanisms=frozenset({"ckks", "plain"}))`."""
    masked_modes: frozenset[Mode] = field(default_factory=lambda: frozenset[Mode]({"semi-malicious"}))
    """Modes of masked sums that the client accepts. `curious` trusts the server to follow the protocol, so it must be
    allowed explicitly."""
    min_neighbours: int = 2
    """Fewest neighbours of a client in a masked round."""
    min_threshold: int = 2
    """Smallest reconstruction threshold of a masked round."""
    min_ring_bits: int = 16
    """Smallest ring of the sums of masked and one-shot rounds, in bits, as the task names it. Counted pairs of
    `privirec` are exact in a narrower one, which is not compared."""
    min_corrupt: float = 0.05
    """Smallest share of a cohort, 0 to 1, whose collusion with the server a masked task must tolerate, and on whose
    noise a privacy block must not count."""
    min_sigma: int = 64
    """A masked round must reveal a vector with probability at most 2^-min_sigma."""
    min_committee: int = 3
    """Smallest committee of a one-shot task."""
    min_corrupt_members: int = 1
    """Fewest members of a committee whose collusion with the server a one-shot task must withstand."""
    trust_roster: bool = False
    """Whether to accept masked, one-shot and encrypted tasks without an organiser. Only the server then says who the
    other clients and the committee are, and it could invent all of them."""
    reveal_indices: bool = False
    """Whether to accept Top-K with own support in tasks that hide the values. The server then learns which entries this
    client sends, and so which items it touched."""
    reveal_gram: bool = False
    """Whether to accept tasks whose sums over the same data determine the item-item matrix, and with it what single
    clients have (docs/security.md), and a second task with the same data set label."""
    trust_models: bool = False
    """Whether to accept masked and one-shot tasks without a privacy block in which the server computes the model. Masks
    hide a contribution from a server that lies about who is in a sum. They do not stop one that lies about the model:
    it makes models up to which members answer with what they have, and reads that in the sums. And the sums of an
    honest server say much of the rest of a list to whoever knows part of it, the more the fewer clients there are
    (docs/security.md)."""
    max_model_bytes: int = 1 << 30
    """Largest model that the client accepts, in bytes of memory: twice the state, as downloaded and in use, 8 bytes for
    each value of a sum, and the longest item catalogue (1,298 bytes an item, at most 64 MiB and 16 bytes an item), if
    the task has one. It is checked before anything of that size is allocated."""
    max_epochs: int = 20
    """Largest number of passes over its data in a round that a task may ask of this client."""
    max_measurements: int = 100
    """How often this client measures models on its held-out rows, in a task or in all tasks with one data set label. A
    server that chooses the models learns one mean over the measuring clients each time."""
    max_clip_share: float = 0.05
    """Share of an update's values that are not zero, 0 to 1, that may be clipped. Beyond it training has failed, and
    zeros are sent (`TrainingFailed`); in `plain` tasks the values are sent (`ClipWarning`)."""
    max_epsilon: float = 10.0
    """Privacy budget of this client's data: what all tasks with a privacy block may cost together, at `budget_delta`
    (differential privacy; see docs/privacy.md). Tasks without a block have no such number, and are not counted."""
    budget_delta: float = 1e-6
    """The delta at which `max_epsilon` holds, above 0 and below 1."""
    follow: bool = False
    """Whether `Client.join` enrols this client in the task that follows one that is over, if this policy allows its
    terms, without asking. It has the same organiser and the same data set label."""
    snapshot_every: int = 10
    """This client publishes a sealed snapshot when the newest is at least so many rounds old; 0: never."""

    def __post_init__(self) -> None:
        if self.min_cohort < 2:
            raise ParameterError(
                f"min_cohort must be at least 2, got {self.min_cohort}: a sum of one client reveals its data"
            )
        for name, (least, most) in _BOUNDS.items():
            if not least <= getattr(self, name) <= most:
                raise ParameterError(f"{name} must be in {least}..{most}, got {getattr(self, name)}")
        if not 0 <= self.min_corrupt < 1:
            raise ParameterError(f"min_corrupt must be at least 0 and below 1, got {self.min_corrupt}")
        if not self.max_epsilon > 0 or not 0 < self.budget_delta < 1:
            raise ParameterError(
                f"max_epsilon must be above 0 and budget_delta between 0 and 1, got {self.max_epsilon} and "
                f"{self.budget_delta}"
            )
        _check_names("mechanisms", self.mechanisms, mechanisms())
        _check_names("masked_modes", self.masked_modes, get_args(Mode))

    def check_task(self, terms: TaskTerms, others: Iterable[Recipe] = (), *, gives_data: bool = True) -> None:
        """Raise `PolicyRefused` unless the policy allows the task.

        others: the recipes of other tasks over the same data that this client has joined. gives_data: False for a
        member of the committee, who contributes nothing.
        """
        if terms.mechanism.name not in self.mechanisms:
            allowed = ", ".join(sorted(self.mechanisms)) or "nothing"
            option = "--allow-plain" if terms.mechanism.name in CLEAR else ""
            raise PolicyRefused(
                f"task {terms.name!r} uses the mechanism {terms.mechanism.name!r}; this client's policy allows "
                f"{allowed}",
                remedy=to_accept("mechanisms=...", option),
            )
        if terms.sum_plan.layout.chosen and terms.entry.hides and not self.reveal_indices:
            raise PolicyRefused(
                f"in task {terms.name!r} the server learns which entries a client sends, and so which items it "
                "touched; this client's policy forbids that",
                remedy=to_accept("reveal_indices=True", "--reveal-indices"),
            )
        if gives_data and not self.reveal_gram:
            self._check_equations(terms, others)
        epochs = getattr(terms.recipe.parameters, "epochs", None)
        if epochs is not None and epochs > self.max_epochs:
            raise PolicyRefused(
                f"task {terms.name!r} trains {epochs} epochs in a round; this client's policy allows {self.max_epochs}",
                remedy=to_accept("max_epochs=..."),
            )
        evaluated = terms.recipe.layer(Evaluated)
        measured = 0 if evaluated is None else evaluated.points_after(terms.schedule.rounds)
        if measured > self.max_measurements:
            raise PolicyRefused(
                f"task {terms.name!r} measures its model {measured} times; this client's policy allows "
                f"{self.max_measurements}",
                remedy=to_accept("max_measurements=...", "--max-measurements"),
            )
        privacy = terms.view.privacy
        if privacy is not None and privacy.corrupt < self.min_corrupt:
            raise PolicyRefused(
                f"task {terms.name!r} counts on the noise of all but {privacy.corrupt:g} of a cohort; this client's "
                f"policy requires at least {self.min_corrupt:g}",
                remedy=to_accept("min_corrupt=..."),
            )
        if terms.schedule.min_clients < self.min_cohort:
            raise PolicyRefused(
                f"task {terms.name!r} releases sums of {terms.schedule.min_clients} clients; "
                f"this client's policy requires at least {self.min_cohort}",
                remedy=to_accept("min_cohort=...", "--min-cohort"),
            )
        try:
            if terms.sum_plan.groups > 1 and terms.view.data_set is not None:
                raise RefusalError("sums of groups, and of other tasks with its data_set, could be of few clients")
            if terms.entry.requirements is not None:
                kind, plan = cast(Any, load(terms.entry.requirements)), cast(Any, terms.sum_plan)
                self.requirements(kind, terms.schedule).check_parameters(plan.parameters)
        except RefusalError as error:
            raise PolicyRefused(f"task {terms.name!r}: {error}", remedy=error.remedy) from error
        by_server = terms.opened_by == "anyone" and terms.entry.hides
        if gives_data and by_server and terms.view.privacy is None and not self.trust_models:
            raise PolicyRefused(
                f"in task {terms.name!r} the server computes the model, and the sums have no noise: a server that lies "
                "about the model can learn which items clients have, and whoever knows some of a client's items can "
                "learn much of the rest from the sums; this client's policy forbids that",
                remedy=to_accept("trust_models=True", "--trust-models"),
            )

    def _check_equations(self, terms: TaskTerms, others: Iterable[Recipe]) -> None:
        from protocols.exposure import check_equations  # it loads PriviRec, which only some tasks need

        try:
            groups = terms.sum_plan.groups
            check_equations(terms.recipe, terms.schedule, others, groups=groups, consents=False)
        except ParameterError as error:
            remedy = to_accept("reveal_gram=True", "--reveal-gram")
            raise PolicyRefused(
                f"task {terms.name!r}: {error}; this client's policy forbids that", remedy=remedy
            ) from error

    def check_round(self, view: RoundView) -> None:
        """Raise `PolicyRefused` unless the policy allows the round."""
        if view.cohort < self.min_cohort:
            raise PolicyRefused(
                f"round {view.number} has {view.cohort} clients; "
                f"this client's policy requires at least {self.min_cohort}",
                remedy=to_accept("min_cohort=...", "--min-cohort"),
            )

    def requirements(self, kind: type[R], schedule: Schedule) -> R:
        """Return what a round of a task with this schedule must satisfy, as its mechanism checks it.

        kind: the mechanism's dataclass (`MechanismEntry.requirements`). Its fields of the names of this policy's have
        this policy's values, others keep their defaults. No sum is over fewer clients than the larger of `min_cohort`
        and the schedule's `min_clients`.
        """
        own = {each.name for each in fields(self)}
        asked = {each.name: getattr(self, each.name) for each in fields(cast(Any, kind)) if each.name in own}
        return kind(**{**asked, "min_cohort": max(self.min_cohort, schedule.min_clients)})

    def min_difference(self, schedule: Schedule) -> int:
        """Return the smallest number of clients by which two sums over the same data may differ, unless by none.

        It is the larger of `min_cohort` and the schedule's `min_difference` (where that is null, its `min_clients`).
        """
        return max(self.min_cohort, schedule.min_difference or schedule.min_clients)


def _check_names(what: str, given: Collection[str], known: Iterable[str]) -> None:
    """Raise `ParameterError` for a name that does not exist, and for text where a set of names belongs."""
    unknown = [given] if isinstance(given, str) else sorted(set(given) - set(known))
    if unknown:
        raise ParameterError(
            f"{what} must be a set of names from: {', '.join(sorted(known))}; unknown: {', '.join(map(repr, unknown))}"
        )
