"""A task as the client understands it: recipe, mechanism and plan computed here, never taken from the server."""

from __future__ import annotations

from dataclasses import dataclass, field

from client_sdk.errors import ContractBroken
from protocols.codec import b64decode, b64encode
from protocols.crypto.envelope import sealed_bytes
from protocols.layout import VectorLayout
from protocols.messages import MechanismChoice, OrganiserPin, RecipeChoice, RoundView, Schedule, TaskView
from protocols.messages.base import Key32, Message
from protocols.recipes.base import Recipe, RoundSpec
from protocols.recipes.registry import check_combination
from protocols.recipes.registry import recipe as make_recipe
from protocols.sums.base import Mechanism, OpenedBy, SumPlan
from protocols.sums.registry import mechanism as find_mechanism

__all__ = ["AgreedTerms", "TaskTerms"]


class AgreedTerms(Message):
    """What a task may never change once a client has joined it: the same words, kept from the first time on."""

    recipe: RecipeChoice
    mechanism: MechanismChoice
    schedule: Schedule
    seed: Key32
    organiser: OrganiserPin | None = None

    @classmethod
    def of(cls, view: TaskView) -> AgreedTerms:
        """The terms that a `TaskView` states."""
        return cls(
            recipe=view.recipe,
            mechanism=view.mechanism,
            schedule=view.schedule,
            seed=view.seed,
            organiser=view.organiser,
        )

    def require(self, view: TaskView) -> None:
        """`ContractBroken` when `view` states others: a server may not weaken a task that is under way."""
        now = AgreedTerms.of(view)
        changed = [name for name in type(self).model_fields if getattr(self, name) != getattr(now, name)]
        if changed:
            detail = f"the task's {' and '.join(changed)} changed since this client joined it, which no task may do"
            raise ContractBroken("GET", f"/v1/tasks/{view.task_id}", 200, detail)


@dataclass(frozen=True)
class TaskTerms:
    """What was agreed on. `seed`: 32 public bytes that the initial state and every round's seed follow from.

    `view` is the task as the server stated it when this client joined.
    """

    task_id: str
    name: str
    seed: bytes
    schedule: Schedule
    recipe: Recipe
    mechanism: Mechanism
    sum_plan: SumPlan
    view: TaskView
    _plans: dict[VectorLayout, SumPlan] = field(init=False, default_factory=dict, repr=False, compare=False)

    @classmethod
    def of(cls, view: TaskView) -> TaskTerms:
        """The terms behind a `TaskView`.

        Raises `ParameterError` for a recipe or mechanism that is not known here or does not fit, and
        `ContractBroken` when the server claims another opener than the parameters imply.
        """
        recipe = make_recipe(view.recipe.name, view.recipe.parameters)
        check_combination(recipe, view.mechanism.name)
        mechanism = find_mechanism(view.mechanism.name)
        plan = mechanism.plan(view.mechanism.parameters, recipe.layout(), view.schedule.cohort_size)
        if plan.opened_by != view.opened_by:
            detail = f"the server says that {view.opened_by} can open the sum, the parameters say {plan.opened_by}"
            raise ContractBroken("GET", f"/v1/tasks/{view.task_id}", 200, detail)
        seed = b64decode(view.seed, 32)
        return cls(view.task_id, view.name, seed, view.schedule, recipe, mechanism, plan, view)

    def sum_plan_at(self, sum_index: int) -> SumPlan:
        """The plan of sum `sum_index`; `sum_plan` is that of the first, and for most recipes of all."""
        layout = self.recipe.layout(sum_index)
        if layout == self.sum_plan.layout:
            return self.sum_plan
        if layout not in self._plans:
            parameters, cohort = self.view.mechanism.parameters, self.schedule.cohort_size
            self._plans[layout] = self.mechanism.plan(parameters, layout, cohort)
        return self._plans[layout]

    @property
    def by_snapshot(self) -> bool:
        """Whether the server's snapshots are the model, never replayed from aggregates.

        In masked tasks so, too: every client's masks are bound to the same bytes. With several groups each downloads
        its own view of the state and nobody holds the whole. Where the server cannot open the sums it has no state to
        give: there members replay, whatever the recipe would rather have.
        """
        wanted = self.recipe.by_snapshot or self.recipe.device_groups > 1 or self.mechanism.interactive
        return wanted and self.opened_by == "anyone"

    @property
    def n_items(self) -> int:
        """Number of items."""
        return self.recipe.parameters.items

    @property
    def opened_by(self) -> OpenedBy:
        """Who can open the aggregates."""
        return self.sum_plan.opened_by

    @property
    def snapshot_bytes(self) -> int:
        """Length of a snapshot as it is downloaded: raw when anyone can open the sum, else sealed."""
        raw = self.recipe.state_bytes(1)
        return raw if self.opened_by == "anyone" else sealed_bytes(raw)

    def round_spec(self, view: RoundView) -> RoundSpec:
        """The broadcast of a round, computed here; `ContractBroken` when the server announces another seed."""
        if view.step > view.number:
            detail = f"round {view.number} is announced as sum {view.step}, which is ahead of it"
            raise ContractBroken("GET", f"/v1/tasks/{self.task_id}/rounds/{view.number}", 200, detail)
        spec = self.recipe.round_spec(self.seed, view.number, view.step)
        if b64encode(spec.seed) != view.seed:
            detail = f"round {view.number} is announced with a seed that does not follow from the task's"
            raise ContractBroken("GET", f"/v1/tasks/{self.task_id}/rounds/{view.number}", 200, detail)
        return spec
