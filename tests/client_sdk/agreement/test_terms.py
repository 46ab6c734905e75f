"""What a client agrees to: terms that do not change, models that are not too large, policies that exist."""

from __future__ import annotations

from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from client_sdk import DirectoryStore, Identity
from client_sdk.agreement.policy import Policy
from client_sdk.agreement.terms import TaskTerms, model_bytes
from client_sdk.api.calls import ApiCalls
from client_sdk.api.wire import Request, Response
from client_sdk.errors import ContractBroken, LocalFileError, PolicyRefused
from client_sdk.model.sync import read_snapshot
from client_sdk.operator import task_request
from client_sdk.rounds.account import Account
from client_sdk.rounds.join import join
from protocols.catalogue import catalogue_memory
from protocols.codec import b64encode
from protocols.errors import CodecError, ParameterError
from protocols.messages import Enrolment, RoundView, Schedule, SnapshotView
from protocols.messages.rounds import Evaluation
from protocols.recipes.base import MAX_ITEMS
from protocols.recipes.registry import OWN as RECIPES
from protocols.recipes.registry import recipe, recipe_entry
from tests.support.measured import peak_of
from tests.support.programs import ProgramRunner, round_view, task_view

AGREED: dict[str, Any] = {
    "recipe": "colr",
    "parameters": {"items": 60, "dim": 8, "rank": 4},
    "mechanism": "ckks",
    "schedule": {"cohort_size": 10, "min_clients": 5},
}


def server(**changes: Any) -> ProgramRunner:
    """A server with one task whose terms are replaced by `changes`."""
    view = task_view(**{**AGREED, **changes})

    def answer(request: Request) -> Response:
        if request.url.endswith("/v1/enrolments"):
            made = Enrolment(task_id="t_1", client_id="c_1", token="hrc_" + "t" * 8, role="member")
            return Response(201, {}, made.model_dump_json().encode())
        return Response(200, {}, view.model_dump_json().encode())

    return ProgramRunner(answer)


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"mechanism": "plain"}, "mechanism"),
        ({"how": {"set": "precise"}}, "mechanism"),
        ({"parameters": {"items": 60, "dim": 8, "rank": 4, "clip": 1e6}}, "recipe"),
        ({"schedule": {"cohort_size": 10, "min_clients": 3}}, "schedule"),
        ({"seed": b64encode(b"s" * 32)}, "seed"),
        ({"evaluation": {"every": 2, "keep": "best"}}, "evaluation"),
    ],
)
def test_changed_terms_are_refused(tmp_path: Path, change: dict[str, Any], what: str) -> None:
    policy = Policy(mechanisms=frozenset({"plain", "ckks", "masked"}), trust_models=True)
    here = Account.at("https://example.org", Identity.generate(), DirectoryStore(tmp_path), policy)
    first = server().run(join(here, None, "hri_first")).membership
    kept = here.store.membership("t_1")
    for state in ({}, {"state": "complete", "completed_rounds": 9, "members": 11}):  # a task's progress may change
        assert server(**state).run(join(here, "movies")).membership.client_id == first.client_id
    # another server with the same task id cannot take its place
    elsewhere = replace(here, calls=ApiCalls("https://other.example.org"))
    for account, invitation in ((here, None), (elsewhere, "hri_again")):
        with pytest.raises(ContractBroken, match=what):
            server(**change).run(join(account, None, invitation))
        assert here.store.membership("t_1") == kept
    here.store.write("t_1", "terms.json", b"{}")
    with pytest.raises(LocalFileError, match="stored terms of task t_1"):
        here.store.agreed("t_1")


LIMIT = Policy().max_model_bytes
ITEMS = {name: {"items": MAX_ITEMS} for name in RECIPES if recipe_entry(name).has_items}
HUGE: dict[str, dict[str, Any]] = {
    "arrays": {"shapes": {"a": [2**26, 4]}, "optimiser": "adam"},
    "fair": {"dim": 200, "capacities": [0, 1]},
    "privirec": {"items": 10_000, "components": 4096, "reveal_gram": True},
    "privirec-k": {"components": 4096},
    "topk": {"dim": 4096, "support": "own", "reveal_indices": True},
}


@pytest.mark.parametrize(
    "name", sorted(name for name in RECIPES if len(recipe_entry(name).parameters.model_fields) > 1)
)
def test_attack_a_task_claims_a_huge_model(name: str) -> None:
    """The largest parameters that a recipe allows cost the client almost nothing."""
    evaluation = Evaluation(every=2) if name in ("arrays", "colr", "fair", "privirec-k") else None
    view = task_view(name, {**ITEMS.get(name, {}), **HUGE.get(name, {"dim": 4096})}, evaluation=evaluation)
    assert model_bytes(recipe(view.recipe.name, view.recipe.parameters)) > LIMIT

    def refuse() -> None:
        with pytest.raises(PolicyRefused, match="--max-model-bytes"):
            TaskTerms.of(view, LIMIT)

    assert peak_of(refuse)[1] < 1 << 20


def test_the_limit_is_exact_and_its_default_admits_a_large_data_set_of_the_papers() -> None:
    """Amazon-Book has 91,599 items."""
    view = task_view("fedmf", {"items": 100, "dim": 8, "clip": 1.0})
    needed = 2 * 100 * 8 * 4 + 8 * TaskTerms.of(view).sum_plan.layout.length
    TaskTerms.of(view, needed)
    with pytest.raises(PolicyRefused):
        TaskTerms.of(view, needed - 1)
    assert model_bytes(recipe("fedmf", {"items": 91_599, "dim": 256})) <= LIMIT


def test_the_longest_catalogue_counts_before_it_is_downloaded() -> None:
    choice = ("fedmf", {"items": 100, "dim": 8, "clip": 1.0})
    needed = model_bytes(TaskTerms.of(task_view(*choice)).recipe)
    named = task_view(*choice, catalogue_digest="0" * 64)
    TaskTerms.of(task_view(*choice), needed)
    TaskTerms.of(named, needed + catalogue_memory(100))
    with pytest.raises(PolicyRefused, match=r"(?s)its model and its item catalogue; .*max_model_bytes=\.\.\."):
        TaskTerms.of(named, needed + catalogue_memory(100) - 1)


@pytest.mark.parametrize(
    "size", [[31, 2, 62], [30, 3, 90], [0, 2, 2], [30, 0, 0], [30, 2], [30], [30, 2, 61], [30, 2, 1]]
)
def test_attack_a_round_has_a_sum_of_a_size_that_the_recipe_does_not_have(size: list[int]) -> None:
    parameters = {"items": 30, "components": 2, "iterations": 1}
    terms = TaskTerms.of(task_view("privirec-k", parameters, schedule={"cohort_size": 40, "min_clients": 40}))
    seed = terms.recipe.round_spec(terms.seed, 3, 3).seed
    assert terms.round_spec(round_view(3, seed=seed, size=[20, 2, 39])).size == (20, 2, 39)
    with pytest.raises(ContractBroken, match=r"round 3 has other levels, or another size: "):
        terms.round_spec(round_view(3, seed=seed, size=size))


def test_attack_rfrec_claims_a_million_sums() -> None:
    """In the announcement of a round, and in a snapshot: their number bounds what a client holds."""
    terms = TaskTerms.of(
        task_view(
            "rfrec", {"items": 30, "dim": 4, "variant": "paper"}, evaluation=Evaluation(every=2),
            schedule={"rounds": 5, "cohort_size": 10, "min_clients": 3},
        )
    )  # fmt: skip
    recipe, million = terms.recipe, 1_000_000

    def announced(step: int) -> RoundView:
        return round_view(million, step=step, seed=recipe.round_spec(terms.seed, million, step).seed)

    def snapshot(sums: int) -> tuple[SnapshotView, bytes]:
        body = sums.to_bytes(4, "little") + recipe.encode_state(recipe.initial_state(terms.seed))[4:]
        view = SnapshotView(round=2_000_000, bytes=len(body), digest=sha256(body).hexdigest(), author="server")
        return view, body

    assert terms.round_spec(announced(5)).sum_index == 5  # many rounds failed
    assert read_snapshot(terms, None, None, *snapshot(5)).state.sums == 5
    with pytest.raises(ContractBroken, match="announced as sum 1000000, .* the 5 sums of the task"):
        terms.round_spec(announced(million))
    with pytest.raises(CodecError, match="claims 1,000,000 sums of a task of 5"):
        read_snapshot(terms, None, None, *snapshot(million))


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        ({"mechanisms": {"rot13"}}, "mechanisms must be a set of names from: ckks, masked.*unknown: 'rot13'"),
        ({"mechanisms": "plain"}, "mechanisms must be a set of names"),
        ({"masked_modes": {"honest"}}, "masked_modes must be a set of names from: curious"),
        ({"min_cohort": 10**9}, "min_cohort must be in 2..1000000"),
        ({"max_clip_share": 1.5}, "max_clip_share"),
        ({"min_corrupt": -0.1}, "min_corrupt must be"),
    ],
)
def test_impossible_policies_are_refused(wrong: dict[str, Any], text: str) -> None:
    with pytest.raises(ParameterError, match=text):
        Policy(**wrong)


def test_what_is_invalid_is_an_error_of_ours() -> None:
    with pytest.raises(ParameterError, match="schedule: rounds: must be at least 1"):
        Schedule(rounds=0)
    with pytest.raises(ParameterError, match="task: name: must match the pattern"):
        task_request("Not A Name", "colr")
