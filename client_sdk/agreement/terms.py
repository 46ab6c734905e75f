"""The terms of a task: recipe, mechanism and plan, computed by the client from the task's parameters."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Final

from client_sdk.errors import ContractBroken, PolicyRefused
from protocols.catalogue import catalogue_memory
from protocols.codec import b64decode, b64encode
from protocols.contribution import TaskSum, plan_of_task
from protocols.crypto.envelope import sealed_bytes
from protocols.errors import ParameterError, to_accept
from protocols.layout import VectorLayout, check_levels
from protocols.messages import MechanismChoice, OrganiserPin, RecipeChoice, RoundView, Schedule, TaskView
from protocols.messages.base import HexDigest, Key32, Message
from protocols.messages.privacy import Privacy
from protocols.messages.rounds import Evaluation
from protocols.recipes.base import ItemParameters, ModelState, Recipe, RoundSpec, main_layout
from protocols.recipes.bounds import Reach
from protocols.recipes.evaluated import with_evaluation
from protocols.recipes.private import sums_needed, with_privacy
from protocols.recipes.registry import recipe as make_recipe
from protocols.recipes.registry import recipes
from protocols.sums.base import Mechanism, OpenedBy, SumPlan
from protocols.sums.registry import MechanismEntry, mechanism_entry, mechanisms
from protocols.sums.registry import mechanism as find_mechanism
from protocols.task_terms import check_combination, states_chain

_VALUE_BYTES: Final = 8
"""A value of a sum is a float64."""


def model_bytes(recipe: Recipe) -> int:
    """Return the bytes that a client of this recipe holds at once: a state, its snapshot and the values of one sum.

    It is computed from the task's parameters and allocates nothing of that size.
    """
    return 2 * recipe.longest_state_bytes() + _VALUE_BYTES * recipe.longest_vector()


def _check_size(recipe: Recipe, view: TaskView, max_bytes: int | None) -> None:
    """Raise `PolicyRefused` for more than `max_bytes` of `model_bytes` and of what the item catalogue may take."""
    needed, what = model_bytes(recipe), "its model"
    if view.catalogue_digest is not None and isinstance(recipe.parameters, ItemParameters):
        needed, what = needed + catalogue_memory(recipe.parameters.items), "its model and its item catalogue"
    if max_bytes is not None and needed > max_bytes:
        raise PolicyRefused(
            f"task {view.name!r} needs {needed:,} bytes of memory for {what}; this client's policy allows "
            f"{max_bytes:,}",
            remedy=to_accept("max_model_bytes=...", "--max-model-bytes"),
        )


class AgreedTerms(Message):
    """The terms that a task must not change after a client has joined it. The client stores them when it joins."""

    recipe: RecipeChoice
    mechanism: MechanismChoice
    schedule: Schedule
    seed: Key32
    organiser: OrganiserPin | None = None
    evaluation: Evaluation | None = None
    data_set: str | None = None
    catalogue_digest: HexDigest | None = None
    privacy: Privacy | None = None
    receipt_key: Key32 | None = None

    @classmethod
    def of(cls, view: TaskView) -> AgreedTerms:
        """Return the terms that `view` states."""
        return cls(**{name: getattr(view, name) for name in cls.model_fields})

    def require(self, view: TaskView) -> None:
        """Raise `ContractBroken` when `view` states other terms: a server must not weaken a task that has members."""
        now = AgreedTerms.of(view)
        changed = [name for name in type(self).model_fields if getattr(self, name) != getattr(now, name)]
        if changed:
            detail = f"the task's {' and '.join(changed)} changed after this client joined it, which is not allowed"
            raise broken_terms(view.task_id, detail)


def broken_terms(task_id: str, detail: str, *rest: str | int) -> ContractBroken:
    """Return the error of an answer about a task, or what `rest` names in it, that contradicts the terms."""
    return ContractBroken("GET", "/".join(["/v1/tasks", task_id, *map(str, rest)]), 200, detail)


@dataclass(frozen=True)
class TaskTerms:
    """The terms of one task."""

    task_id: str
    name: str
    seed: bytes
    """32 public bytes that determine the initial state and the seed of every round."""
    schedule: Schedule
    recipe: Recipe
    mechanism: Mechanism
    entry: MechanismEntry
    """That of the mechanism."""
    view: TaskView
    """The task as the server stated it when this client joined."""
    _plans: dict[VectorLayout, SumPlan] = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def of(cls, view: TaskView, max_bytes: int | None = None) -> TaskTerms:
        """Return the terms of the task that `view` states.

        max_bytes: most for `model_bytes` and the item catalogue, checked before anything of that size is allocated;
        `PolicyRefused` beyond. Raises `ParameterError` for an unknown recipe or mechanism, or another version of it
        than this client's, and for two that do not fit each other, and `ContractBroken` when the server states another
        `opened_by` than the parameters imply.
        """
        terms = cls._planned(view, max_bytes)
        if terms.opened_by != view.opened_by:
            raise broken_terms(
                view.task_id,
                f"the server says that {view.opened_by} can open the sum, but the parameters imply {terms.opened_by}",
            )
        return terms

    @classmethod
    def stored(cls, task_id: str, name: str, agreed: AgreedTerms, max_bytes: int | None = None) -> TaskTerms:
        """Return the terms of a task as this client agreed to them, without asking the server; see `of`.

        Their `view` has no numbers of members and rounds.
        """
        view = TaskView(
            task_id=task_id,
            name=name,
            state="open",
            plan={},
            opened_by="anyone",
            members=0,
            keyed_members=0,
            able_members=[],
            completed_rounds=0,
            failed_rounds=0,
            **{field: getattr(agreed, field) for field in AgreedTerms.model_fields},
        )
        terms = cls._planned(view, max_bytes)
        return replace(terms, view=view.model_copy(update={"opened_by": terms.opened_by}))

    @classmethod
    def _planned(cls, view: TaskView, max_bytes: int | None) -> TaskTerms:
        for kind, name, known in (
            ("recipe", view.recipe.name, recipes()),
            ("mechanism", view.mechanism.name, mechanisms()),
        ):
            if name not in known:
                raise ParameterError(
                    f"task {view.name!r} has the {kind} {name!r}, which is not installed here: install its package, or "
                    f"join a task of one of {', '.join(known)}"
                )
        noisy, schedule = view.privacy is not None, view.schedule
        made = make_recipe(view.recipe.name, view.recipe.parameters, view.recipe.version, noisy)
        _check_size(made, view, max_bytes)  # before anything, as `with_evaluation`, asks the recipe for a layout
        measured = with_evaluation(made, view.evaluation, schedule.rounds)
        recipe = with_privacy(measured, view.privacy, schedule.rounds, schedule.cohort_size, schedule.min_clients)
        _check_size(recipe, view, max_bytes)
        check_combination(recipe, view.mechanism.name)
        entry = mechanism_entry(view.mechanism.name, view.mechanism.version)
        mechanism, seed = find_mechanism(entry.name), b64decode(view.seed, 32)
        return cls(view.task_id, view.name, seed, view.schedule, recipe, mechanism, entry, view)

    @cached_property
    def sum_plan(self) -> SumPlan:
        """The plan of the recipe's main sum."""
        return self.sum_plan_at(self.recipe.main_sum)

    def sum_plan_at(self, sum_index: int, size: tuple[int, ...] = ()) -> SumPlan:
        """Return the plan of sum `sum_index`. Most recipes have the same plan for all sums.

        size: rows and columns, where they follow from earlier sums; () for the largest sum.
        """
        layout = self.recipe.layout(sum_index, size)
        if layout not in self._plans:
            parameters, cohort = self.view.mechanism.parameters, self.schedule.cohort_size
            self._plans[layout] = plan_of_task(self.mechanism, parameters, layout, cohort, main_layout(self.recipe))
        return self._plans[layout]

    def sum_of(self, spec: RoundSpec) -> TaskSum:
        """Return the sum of a round."""
        return TaskSum(self.recipe, self.mechanism, self.sum_plan_at(spec.sum_index, spec.size), spec)

    @cached_property
    def by_snapshot(self) -> bool:
        """Whether clients download the server's snapshots instead of replaying aggregates.

        True where anyone can open the sums, clients do not check the states (`checks_states`), and one of these holds:
        the recipe demands it, or it has several device groups, each of which downloads its own view of the state. Where
        the server cannot open the sums it has no state, and members replay.
        """
        wanted = self.recipe.by_snapshot or self.recipe.device_groups > 1
        return wanted and self.opened_by == "anyone" and not self.chained

    @property
    def n_items(self) -> int:
        """Number of items of the model. Raises `ParameterError` for a recipe whose model has no numbered items."""
        parameters = self.recipe.parameters
        if not isinstance(parameters, ItemParameters):
            raise ParameterError(f"the model of recipe {self.recipe.name!r} has no numbered items")
        return parameters.items

    @cached_property
    def opened_by(self) -> OpenedBy:
        """Who can open the aggregates: "anyone" or "members"."""
        return self.sum_plan.opened_by

    @cached_property
    def chained(self) -> bool:
        """Whether members state the chain of the aggregates that they absorbed; see `states_chain`."""
        return states_chain(self.recipe, self.mechanism.interactive, self.opened_by)

    @cached_property
    def checks_states(self) -> bool:
        """Whether members compare the server's states with those that they compute: in chained masked and one-shot
        tasks, where every client binds its masks to the same bytes."""
        return self.chained and self.opened_by == "anyone"

    def takes_last_state(self, view: RoundView) -> bool:
        """Whether members take the server's state after the round `view` as it is: where nothing is trained on it.

        After the last sum of a recipe whose `absorb` is a decomposition of the whole model, which is too much work for
        a device.
        """
        return self.recipe.by_snapshot and view.step >= sums_needed(self.recipe, self.schedule.rounds)

    @cached_property
    def snapshot_bytes(self) -> int:
        """Length in bytes of a downloaded snapshot: raw when anyone can open the sums, else sealed."""
        raw = self.recipe.state_bytes(1)
        return raw if self.opened_by == "anyone" else sealed_bytes(raw)

    @property
    def longest_snapshot(self) -> int:
        """Length in bytes of the longest snapshot of this task, in the clear or sealed."""
        return sealed_bytes(self.recipe.longest_state_bytes())

    def round_spec(self, view: RoundView) -> RoundSpec:
        """Return the specification of a round, computed from the task's seed, with the levels in use that it states.

        The size that it states is one that the sum can have; a client compares it with the model it trains on.

        Raises `ContractBroken` when the server announces another seed, a sum ahead of the round, one that the schedule
        does not have, or levels or a size that the recipe does not have.
        """
        if view.step > min(view.number, self.schedule.rounds):
            raise self.broken_round(
                view,
                f"is announced as sum {view.step}, which is greater than the round's number, or than the "
                f"{self.schedule.rounds} sums of the task",
            )
        spec = self.recipe.round_spec(self.seed, view.number, view.step)
        if b64encode(spec.seed) != view.seed:
            raise self.broken_round(view, "is announced with a seed that does not follow from the task's seed")
        levels, size = tuple(view.levels), tuple(view.size)
        try:
            check_levels(levels, self.recipe.most_levels(view.step))
            self.recipe.layout(view.step, size)
        except ParameterError as error:
            raise self.broken_round(view, f"has other levels, or another size: {error}") from error
        return replace(spec, levels=levels, size=size)

    def require_reachable(self, state: ModelState) -> None:
        """Raise `CodecError` unless the task's sums can have made `state`, or the view of a device group."""
        schedule = self.schedule
        sums = min(state.round_number, schedule.rounds)
        self.recipe.require_reachable(state, Reach(sums, schedule.min_clients, schedule.cohort_size))

    def broken_round(self, view: RoundView, fault: str) -> ContractBroken:
        """Return the error of a round that contradicts the terms. fault: what is wrong, with its verb."""
        return broken_terms(self.task_id, f"round {view.number} {fault}", "rounds", view.number)
