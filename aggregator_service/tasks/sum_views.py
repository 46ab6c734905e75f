"""Layouts and plans of a task's sums as the API states them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from itertools import groupby

from aggregator_service.tasks.plans import TaskPlan, TaskTerms, plan_task
from protocols.layout import Block
from protocols.messages.sums import BlockView, LayoutView, ResolvedChoice, ResolvedTask, SegmentView, SumView
from protocols.sums.base import SumPlan
from protocols.sums.registry import resolved_parameters

__all__ = ["resolved_task", "sum_view"]


@lru_cache(maxsize=64)
def resolved_task(terms: TaskTerms) -> ResolvedTask:
    """Return the parameters of a task with their defaults, and its main sum."""
    plan = plan_task(terms)
    own = resolved_parameters(terms.mechanism_name, json.loads(terms.mechanism_parameters))
    return ResolvedTask(
        recipe=ResolvedChoice(name=terms.recipe_name, parameters=plan.recipe.parameters.model_dump(mode="json")),
        mechanism=ResolvedChoice(name=terms.mechanism_name, parameters=own),
        main_sum=_view(plan, plan.recipe.main_sum),
    )


@lru_cache(maxsize=64)
def sum_view(terms: TaskTerms, sum_index: int) -> SumView:
    """Return the layout and the plan of sum `sum_index` of a task; what `plan_task` raises."""
    return _view(plan_task(terms, sum_index), sum_index)


def _view(plan: TaskPlan, sum_index: int) -> SumView:
    return SumView(
        sum_index=sum_index,
        device_group=plan.recipe.device_group_of(sum_index),
        layout=_layout(plan.sum_plan),
        plan=plan.sum_plan.describe(),
        state_bytes=plan.recipe.state_bytes(sum_index),
    )


def _layout(plan: SumPlan) -> LayoutView:
    layout, scales = plan.layout, _scales_of_shapes(plan)
    if layout.chosen:  # all blocks are equal, and there may be millions
        blocks = [_block(layout.blocks[0], len(layout.blocks), scales)]
    else:
        runs = (list(run) for _, run in groupby(layout.blocks, key=lambda block: block.segments))
        blocks = [_block(run[0], len(run), scales) for run in runs]
    return LayoutView(length=layout.length, chosen=layout.chosen, blocks=blocks)


def _scales_of_shapes(plan: SumPlan) -> Mapping[tuple[object, str], float]:
    """Return the scale by a block's segments and a segment's name: a plan may name one block of equal ones only."""
    scales = plan.segment_scales
    return {
        (block.segments, segment.name): scales[f"{block.name}/{segment.name}"]
        for block in (plan.layout.blocks if scales else ())
        for segment in block.segments
        if f"{block.name}/{segment.name}" in scales
    }


def _block(block: Block, count: int, scales: Mapping[tuple[object, str], float]) -> BlockView:
    segments = [
        SegmentView(
            name=segment.name,
            length=segment.length,
            clip=segment.clip,
            integral=segment.integral,
            sum_bound=segment.sum_bound,
            scale=scales.get((block.segments, segment.name)),
        )
        for segment in block.segments
    ]
    return BlockView(name=block.name, count=count, segments=segments)
