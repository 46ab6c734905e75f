"""What the API states of a task's sums fits its schemas for every recipe and mechanism, and is what clients compute."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from jsonschema import Draft202012Validator

from aggregator_service.tasks.plans import plan_task, task_terms
from aggregator_service.tasks.tasks import resolved_task, sum_view
from protocols.combinations import carriers
from protocols.messages import Schedule
from protocols.messages.tasks import PLANS
from protocols.recipes.registry import OWN as RECIPES
from tests.vectors.recipes import SMALL

DOCUMENT = json.loads((Path(__file__).parents[3] / "openapi" / "openapi.json").read_text(encoding="utf-8"))
PAIRS = [(recipe, mechanism) for recipe in RECIPES for mechanism in sorted(carriers(recipe))]


def check(value: Any, schema: str) -> None:
    target = {"$ref": f"#/components/schemas/{schema}", "components": DOCUMENT["components"]}
    Draft202012Validator(target).validate(value)


def test_every_recipe_and_mechanism_has_a_schema() -> None:
    schemas = DOCUMENT["components"]["schemas"]
    assert set(schemas["ResolvedRecipe"]["discriminator"]["mapping"]) == set(RECIPES)
    assert set(schemas["SumPlan"]["discriminator"]["mapping"]) == set(PLANS)
    assert set(schemas["ResolvedMechanism"]["discriminator"]["mapping"]) == set(PLANS)


@pytest.mark.parametrize(("recipe", "mechanism"), PAIRS)
def test_a_small_task_of_each_pair(recipe: str, mechanism: str) -> None:
    terms = task_terms(recipe, SMALL.get(recipe, {"items": 5}), mechanism, {}, Schedule(cohort_size=20))
    resolved = resolved_task(terms).model_dump(mode="json")
    check(resolved, "ResolvedTask")
    plan = plan_task(terms)
    layout, values = resolved["main_sum"]["layout"], []
    scales = plan.sum_plan.segment_scales
    for block in layout["blocks"]:
        own = [[segment["clip"]] * segment["length"] for segment in block["segments"]]
        values += block["count"] * sum(own, [])
        for segment in block["segments"]:
            assert segment["scale"] == scales.get(f"{block['name']}/{segment['name']}")
    if not layout["chosen"]:
        bounds = np.concatenate([block.bounds() for block in plan.sum_plan.layout.blocks])
        assert values == bounds.tolist()
    assert len(values) == layout["length"] == plan.sum_plan.layout.length
    first = sum_view(terms, 1).model_dump(mode="json")
    check(first, "SumView")
    own_layout = plan.recipe.layout(1)
    participants = len(own_layout.blocks) if mechanism in ("ckks", "paillier") else 0
    assert first["layout"]["length"] == own_layout.length + participants
    assert resolved["recipe"]["parameters"] == plan.recipe.parameters.model_dump(mode="json")


def test_a_wrong_plan_does_not_fit() -> None:
    terms = task_terms("colr", SMALL["colr"], "masked", {}, Schedule(cohort_size=20))
    plan = resolved_task(terms).main_sum.plan
    check(plan, "SumPlan")
    for wrong in (plan | {"mechanism": "ckks"}, plan | {"other": 1}, {k: v for k, v in plan.items() if k != "bits"}):
        with pytest.raises(Exception, match="is not valid under any of the given schemas"):
            check(wrong, "SumPlan")
