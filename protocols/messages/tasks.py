"""Tasks: the long-lived agreement on recipe, mechanism, schedule and privacy floor."""

from __future__ import annotations

from typing import Any, Literal, Self

from pydantic import Field, model_validator

from protocols.messages.base import Key32, Message, Name
from protocols.messages.rounds import LONGEST_STAGE

__all__ = ["MechanismChoice", "RecipeChoice", "Schedule", "TaskPage", "TaskRequest", "TaskState", "TaskView"]

TaskState = Literal["open", "closed", "complete", "failed"]


class RecipeChoice(Message):
    """WHAT is summed."""

    name: Name
    parameters: dict[str, Any] = Field(default_factory=dict, description="Validated by the recipe itself.")


class MechanismChoice(Message):
    """HOW it is summed."""

    name: Name
    parameters: dict[str, Any] = Field(default_factory=dict, description="Validated by the mechanism itself.")


class Schedule(Message):
    """How many rounds, with whom, and for how long."""

    rounds: int = Field(default=100, ge=1, le=1_000_000, description="Rounds to complete; failed ones do not count.")
    cohort_size: int = Field(default=20, ge=1, le=1_000_000, description="Clients asked in a round.")
    min_clients: int = Field(
        default=3,
        ge=2,
        le=1_000_000,
        description="Privacy floor: with fewer survivors the round releases nothing; for each group of clients.",
    )
    start_clients: int = Field(
        default=0,
        ge=0,
        le=1_000_000,
        description="Enrolled (and keyed) members to wait for before round 1; 0: cohort, in each group of clients.",
    )
    sampling: Literal["uniform", "round-robin"] = Field(
        default="uniform",
        description="uniform: a fresh random cohort each round; round-robin: in turn, once shuffled.",
    )
    collect_seconds: float = Field(default=600.0, gt=0, le=LONGEST_STAGE, description="Deadline for contributions.")
    stage_seconds: float = Field(
        default=60.0, gt=0, le=LONGEST_STAGE, description="Deadline for each other stage of a masked round."
    )
    min_difference: int | None = Field(
        default=None,
        ge=1,
        le=1_000_000,
        description="Clients by which sums over one frozen cohort differ, if they differ at all; null: min_clients.",
    )
    max_failed_rounds: int = Field(default=5, ge=1, le=1000, description="Failed rounds in a row that end the task.")

    @model_validator(mode="after")
    def _floor_is_reachable(self) -> Self:
        if self.min_clients > self.cohort_size:
            raise ValueError("min_clients is over cohort_size: no round could ever complete")
        return self


class TaskRequest(Message):
    """What an operator asks for."""

    name: Name
    recipe: RecipeChoice
    mechanism: MechanismChoice
    schedule: Schedule = Schedule()
    seed: Key32 | None = Field(
        default=None,
        description="Public seed, to repeat an experiment: it fixes whose turn it is, too. Random by default.",
    )
    data_set: Name | None = Field(
        default=None,
        description="Label of the data that is summed: sums over a frozen cohort keep apart in all tasks of one label.",
    )


class TaskView(Message):
    """A task as everyone may see it. `plan` is for people: clients compute their own from the parameters."""

    task_id: str
    name: Name
    state: TaskState
    recipe: RecipeChoice
    mechanism: MechanismChoice
    schedule: Schedule
    seed: Key32 = Field(description="32 public random bytes: initial item factors and every round's seed follow.")
    data_set: Name | None = Field(default=None, description="Label of the data that is summed.")
    plan: dict[str, Any] = Field(description="Lengths, budget, predicted error and security of the sum.")
    opened_by: Literal["anyone", "members", "holder"]
    members: int = Field(ge=0, description="Enrolled clients.")
    keyed_members: int = Field(ge=0, description="Members whose keyring envelope lies in the mailbox.")
    able_members: list[int] = Field(
        default_factory=list,
        description="Members that can contribute, by group of clients: one number where there is one group.",
    )
    completed_rounds: int = Field(ge=0)
    failed_rounds: int = Field(ge=0)
    warnings: list[str] = Field(default_factory=list, description="What this choice reveals, in plain words.")


class TaskPage(Message):
    """Tasks, newest first."""

    tasks: list[TaskView]
