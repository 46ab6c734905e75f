"""A sum of a task as the server computes it: layout, plan and parameters with their defaults."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from protocols.messages.base import Message, Name

__all__ = ["BlockView", "LayoutView", "ResolvedChoice", "ResolvedTask", "SegmentView", "SumView"]


class SegmentView(Message):
    """A run of values of one kind."""

    name: str
    length: int = Field(ge=1, description="Number of values.")
    clip: float = Field(gt=0, description="Largest size of a value in one contribution.")
    integral: bool = Field(description="Whether the values are counts.")
    sum_bound: float | None = Field(description="Proven bound on a value of the sum, below contributions * clip.")
    scale: float | None = Field(description="Steps per 1.0 of the fixed-point form; null for floats.")


class BlockView(Message):
    """Consecutive blocks of the same segments."""

    name: str = Field(description="Name of the first of them.")
    count: int = Field(ge=1, description="How many follow each other.")
    segments: list[SegmentView]


class LayoutView(Message):
    """The values of a sum in order: blocks one after another, and the segments of each one after another."""

    length: int = Field(ge=1, description="Number of values of the sum.")
    chosen: int = Field(ge=0, description="Blocks that each contribution names itself; 0 if routes are public.")
    blocks: list[BlockView]


class SumView(Message):
    """One of the task's sums."""

    sum_index: int = Field(ge=1)
    device_group: int = Field(ge=0, description="The group of devices whose members contribute.")
    layout: LayoutView
    plan: dict[str, Any] = Field(description="Lengths, budget, predicted error and security of the sum.")
    state_bytes: int = Field(ge=0, description="Length of the model state after this sum, in the clear.")


class ResolvedChoice(Message):
    """A recipe or a mechanism with all its parameters."""

    name: Name
    parameters: dict[str, Any] = Field(description="With defaults. The task's terms hold the parameters as given.")


class ResolvedTask(Message):
    """What follows from a task's terms. Clients check it against their own computation, and are bound to the terms."""

    recipe: ResolvedChoice
    mechanism: ResolvedChoice
    main_sum: SumView = Field(description="The sum that stands for the task's sums; others may have other layouts.")
