"""What a client computes of the terms itself, and what its policy refuses, with the remedy."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

import pytest
import typer

from client_sdk.agreement.policy import Policy
from client_sdk.agreement.terms import TaskTerms
from client_sdk.cli import app
from client_sdk.cli.membership import READ_ONLY
from client_sdk.errors import ContractBroken, PolicyRefused
from protocols.codec import b64encode
from protocols.errors import to_accept
from protocols.messages import Evaluation, RoundView, Schedule
from protocols.messages.privacy import Privacy
from protocols.plugins import load
from protocols.recipes.registry import recipe
from protocols.sums.registry import OWN, mechanism_entry
from tests.support.programs import SEED, round_view, task_view

TERMS = TaskTerms.of(task_view())


def complete(number: int) -> RoundView:
    seed = TERMS.recipe.round_spec(SEED, number).seed
    return round_view(number, "complete", seed, 5, aggregate_bytes=TERMS.sum_plan.aggregate_bytes)


def test_the_round_seed_and_the_opener_are_computed_and_compared() -> None:
    lying = complete(3).model_copy(update={"seed": b64encode(bytes(32))})
    with pytest.raises(ContractBroken, match="seed"):
        TERMS.round_spec(lying)
    assert TERMS.round_spec(complete(3)).number == 3
    with pytest.raises(ContractBroken, match="can open the sum"):
        TaskTerms.of(task_view(opened_by="members"))


JOIN_OPTIONS = {
    name
    for parameter in typer.main.get_command(app).get_command(None, "join").params  # type: ignore[attr-defined]
    for name in parameter.opts
}


@pytest.mark.parametrize("mechanism", ["masked", "oneshot"])
def test_the_policy_refuses_groups_over_data_that_other_tasks_have(mechanism: str) -> None:
    """Two sums of groups over the same data could differ by few clients."""
    schedule = {"cohort_size": 1200, "min_clients": 300}
    parts = {"data_set": "shop", "schedule": schedule}
    groups = TaskTerms.of(task_view("fedmf", {"items": 4}, mechanism, {"groups": 3}, **parts))
    with pytest.raises(PolicyRefused, match="of other tasks with its data_set"):
        Policy(trust_models=True).check_task(groups)
    Policy(trust_models=True).check_task(TaskTerms.of(task_view("fedmf", {"items": 4}, mechanism, {}, **parts)))


def test_the_policy_refuses_tasks_and_rounds() -> None:
    """The remedy names the field of `Policy` that decides, and an option of `hushrec join` where there is one."""
    plain = frozenset({"plain"})
    allowing = Policy(mechanisms=plain, min_cohort=4)
    long = replace(TERMS, recipe=recipe("fedmf", {"items": 4, "epochs": 21}))
    own = {"items": 9, "dim": 2, "support": "own", "reveal_indices": True}
    revealing = TaskTerms.of(task_view("topk", own, "paillier", {"key_bits": 2048}))

    measuring = TaskTerms.of(
        task_view("fedmf", {"items": 4}, schedule={"cohort_size": 10, "rounds": 400}, evaluation=Evaluation(every=1))
    )
    masked = TaskTerms.of(task_view("fedmf", {"items": 4}, "masked", {"mode": "curious", "bits": 32}))
    oneshot = TaskTerms.of(task_view("fedmf", {"items": 4}, "oneshot", {}))
    curious: Any = frozenset({"curious"})
    gram = TaskTerms.of(task_view("privirec", {"items": 9, "components": 2, "reveal_gram": True}, "masked", {}))
    wide = TaskTerms.of(task_view("privirec-k", {"items": 99, "components": 9, "reveal_gram": True}, "masked", {}))
    few = TaskTerms.of(
        task_view("privirec-k", {"items": 99, "components": 1, "iterations": 1, "reveal_gram": True}, "masked", {})
    )
    large = few.view.schedule.model_copy(update={"cohort_size": 100})
    few = TaskTerms.of(few.view.model_copy(update={"schedule": large}))
    for policy, terms, text, name, option in (
        (Policy(), TERMS, "plain", "mechanisms=...", "--allow-plain"),
        (Policy(mechanisms=plain), revealing, "paillier", "mechanisms=...", ""),
        (allowing, TERMS, "at least 4", "min_cohort=...", "--min-cohort"),
        (Policy(mechanisms=plain), long, "trains 21 epochs", "max_epochs=...", ""),
        (Policy(mechanisms=plain), measuring, "200 times", "max_measurements=...", "--max-measurements"),
        (Policy(), revealing, "which items it touched", "reveal_indices=True", "--reveal-indices"),
        (Policy(), masked, "mode is 'curious'", "masked_modes=...", "--allow-curious"),
        (Policy(masked_modes=curious, min_ring_bits=40), masked, "ring has 32 bits", "min_ring_bits=...", ""),
        (Policy(masked_modes=curious, min_corrupt=0.3), masked, "corrupt share", "min_corrupt=...", ""),
        (Policy(masked_modes=curious, min_sigma=80), masked, "sigma is 64", "min_sigma=...", ""),
        (Policy(min_committee=6), oneshot, "committee is 5", "min_committee=...", ""),
        (Policy(min_corrupt_members=2), oneshot, "corrupt is 1", "min_corrupt_members=...", ""),
        (Policy(min_ring_bits=40), oneshot, "bits is 28", "min_ring_bits=...", ""),
        (Policy(masked_modes=curious), masked, "lies about the model", "trust_models=True", "--trust-models"),
        (Policy(), oneshot, "lies about the model", "trust_models=True", "--trust-models"),
        (Policy(trust_models=True), gram, "which items single clients have", "reveal_gram=True", "--reveal-gram"),
        # few equations, but rows of one owner may be among them, and lists may be short
        (Policy(trust_models=True), few, "which items single clients have", "reveal_gram=True", "--reveal-gram"),
        (Policy(trust_models=True), wide, "which items single clients have", "reveal_gram=True", "--reveal-gram"),
    ):
        with pytest.raises(PolicyRefused, match=text) as caught:
            policy.check_task(terms)
        assert caught.value.remedy == to_accept(name, option)
        READ_ONLY.check_task(terms)  # commands that only read work in every task that was joined
        assert not option or option in JOIN_OPTIONS
    Policy(masked_modes=curious, trust_models=True).check_task(masked)
    conditions = {one.name: getattr(READ_ONLY, one.name) for one in fields(Policy)}
    assert all(value for name, value in conditions.items() if name.startswith(("trust_", "reveal_")))
    assert all(value <= 2 for name, value in conditions.items() if name.startswith("min_"))
    Policy(trust_models=True).check_task(oneshot)
    Policy(trust_models=True, reveal_gram=True).check_task(gram)
    block = Privacy(epsilon=8.0, delta=1e-5, corrupt=0.1)
    Policy().check_task(TaskTerms.of(task_view("fedmf", {"items": 4}, "masked", {}, privacy=block)))
    with pytest.raises(PolicyRefused, match="an earlier task over this data set"):
        small = recipe("privirec-k", {"items": 999, "components": 1, "iterations": 1})
        schedule = {"cohort_size": 10, "min_clients": 5}
        terms = replace(TaskTerms.of(task_view("fedmf", {"items": 4}, "masked", {}, schedule=schedule)), recipe=small)
        Policy(trust_models=True).check_task(terms, [small])
    Policy(mechanisms=plain, max_epochs=21).check_task(long)
    allowing.check_task(TaskTerms.of(task_view(schedule={"cohort_size": 10, "min_clients": 4})))
    with pytest.raises(PolicyRefused, match="has 3 clients"):
        allowing.check_round(complete(1).model_copy(update={"cohort": 3}))
    allowing.check_round(complete(1).model_copy(update={"cohort": 4}))


@dataclass(frozen=True)
class _Required:
    """What a mechanism of a package might require."""

    min_cohort: int = 2
    min_sigma: int = 1
    own: str = "its own default"


def test_what_a_mechanism_requires_has_the_values_of_the_policy() -> None:
    places = [entry.requirements for entry in map(mechanism_entry, OWN) if entry.requirements is not None]
    assert len(places) == 2
    names = {one.name for one in fields(Policy)}
    for place in places:
        assert {one.name for one in fields(load(place))} <= names
    policy = Policy(min_sigma=70, min_cohort=4)
    assert policy.requirements(_Required, Schedule(min_clients=3)) == _Required(4, 70)
    assert policy.requirements(_Required, Schedule(min_clients=9, cohort_size=9)) == _Required(9, 70)
