"""The terms of a task, its security level and its parameters, as labelled lines."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from aggregator_service.dashboard.words import byte_count, figure, plain_name
from protocols.messages import TaskView
from protocols.recipes.registry import recipe

__all__ = ["Term", "all_parameters", "security_level", "security_terms"]

_SEEN_BY = {
    "anyone": ("anyone", "including the server"),
    "members": ("every member", "together with the server also single contributions"),
}


_UNMASKED = ("masked", "oneshot")
"""Mechanisms whose sums are readable only once the masks are off."""


@dataclass(frozen=True)
class Term:
    """One line: label, value, and what the value means."""

    label: str
    value: str
    note: str = ""


def security_level(task: TaskView) -> str:
    """Return the security level of a task's encryption: "128-bit", for example, or "none"."""
    bits = task.plan.get("security_bits")
    return f"{bits}-bit" if bits else "none"


def security_terms(task: TaskView) -> list[Term]:
    """Return the lines that describe the security of a task: level, who can open a sum, thresholds, noise."""
    plan, schedule = task.plan, task.schedule
    bits = plan.get("security_bits") or 0
    level = Term("Security level", f"{bits} bits") if bits else Term("Security level", "none", "sums are not encrypted")
    opened = ("everyone", "after the release") if task.mechanism.name in _UNMASKED else _SEEN_BY[task.opened_by]
    floor = Term("Privacy floor", f"{schedule.min_clients} clients", "with fewer survivors nothing is released")
    return [level, Term("Sums can be opened by", *opened), floor, *_mechanism_terms(plan), *_noise_terms(task)]


def _mechanism_terms(plan: Mapping[str, Any]) -> Iterator[Term]:
    if "ring_degree" in plan:
        yield Term("Ring degree", figure(plan["ring_degree"]), f"modulus {plan.get('modulus_bits')} bits")
    if "key_bits" in plan:
        yield Term("Key length", f"{figure(plan['key_bits'])} bits")
    if "mode" in plan:
        yield Term("Mode", str(plan["mode"]))
    if "committee" in plan:
        withstood = 2 * plan["threshold"] - plan["committee"] - 1
        yield Term("Committee", f"{plan['committee']} members", f"withstands {withstood} that collude with the server")
        yield Term("Threshold, t", figure(plan["threshold"]), "members needed to take the masks off a sum")
    around = plan.get("neighbourhood")
    if isinstance(around, Mapping):
        yield Term("Neighbours, k", figure(around.get("degree")), "clients that hold the shares of a client")
        yield Term("Threshold, t", figure(around.get("threshold")), "neighbours needed to remove a mask")
        yield Term("Dropouts tolerated", f"{100 * float(around.get('dropout', 0)):.0f} %", "of a neighbourhood")
    if "max_contributions" in plan:
        yield Term("Contributions per sum", f"up to {figure(plan['max_contributions'])}")
    if "aggregate_bytes" in plan:
        yield Term("Aggregate", byte_count(plan["aggregate_bytes"]))
    if "predicted_error" in plan:
        yield Term("Predicted error", f"{plan['predicted_error']:.2g}", "per value of the sum")


def _noise_terms(task: TaskView) -> Iterator[Term]:
    """Yield the epsilon of each noise parameter of the recipe."""
    chosen = recipe(task.recipe.name, task.recipe.parameters).parameters
    for name in type(chosen).model_fields:
        epsilon = getattr(getattr(chosen, name), "epsilon", None)
        if isinstance(epsilon, float):
            yield Term("LDP epsilon", f"{epsilon:g}", "per uploaded value and round; it accumulates over rounds")


def all_parameters(task: TaskView) -> list[tuple[str, list[tuple[str, str]]]]:
    """Return all parameters as (group name, [(parameter name, value)])."""
    groups: dict[str, Mapping[str, Any]] = {
        "Schedule": task.schedule.model_dump(),
        f"Recipe {task.recipe.name}": task.recipe.parameters,
        f"Mechanism {task.mechanism.name}": task.mechanism.parameters,
        "Evaluation": {} if task.evaluation is None else task.evaluation.model_dump(),
        "Plan": task.plan,
    }
    return [(name, [(path, figure(value)) for path, value in _flat(held)]) for name, held in groups.items() if held]


def _flat(held: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in held.items():
        path = f"{before} / {plain_name(name)}" if before else plain_name(name)
        if isinstance(value, Mapping):
            yield from _flat(value, path)
        elif isinstance(value, list | tuple):
            yield path, ", ".join(figure(one) for one in value)
        else:
            yield path, value
