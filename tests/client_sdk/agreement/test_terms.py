"""What a client agrees to: terms that do not change, models that are not too large, policies that exist."""

from __future__ import annotations

import tracemalloc
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
from client_sdk.rounds.join import Account, join
from client_sdk.store.client_store import ClientStore
from protocols.codec import b64encode
from protocols.errors import CodecError, HushRecError, ParameterError
from protocols.messages import Enrolment, RoundView, Schedule, SnapshotView, TaskView
from protocols.messages.rounds import Evaluation
from protocols.recipes.base import MAX_ITEMS
from protocols.recipes.registry import OWN as RECIPES
from protocols.recipes.registry import recipe, recipe_entry
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


CHANGES: list[dict[str, Any]] = [
    {"mechanism": "plain"},
    {"how": {"set": "precise"}},
    {"parameters": {"items": 60, "dim": 8, "rank": 4, "clip": 1e6}},
    {"schedule": {"cohort_size": 10, "min_clients": 3}},
    {"seed": b64encode(b"s" * 32)},
]
NAMES = {"how": "mechanism", "parameters": "recipe"}


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: next(iter(change)))
def test_changed_terms_are_refused(tmp_path: Path, change: dict[str, Any]) -> None:
    policy = Policy(mechanisms=frozenset({"plain", "ckks", "masked"}))
    here = Account.at("https://example.org", Identity.generate(), DirectoryStore(tmp_path), policy)
    first = server().run(join(here, None, "hri_first")).membership
    kept = here.store.membership("t_1")
    for state in ({}, {"state": "complete", "completed_rounds": 9, "members": 11}):  # a task's progress may change
        again = server(**state).run(join(here, "movies")).membership
        assert again.client_id == first.client_id
    # another server with the same task id cannot take its place
    elsewhere = replace(here, calls=ApiCalls("https://other.example.org"))
    for account, invitation in ((here, None), (elsewhere, "hri_again")):
        with pytest.raises(ContractBroken, match=NAMES.get(next(iter(change)), next(iter(change)))):
            server(**change).run(join(account, None, invitation))
        assert here.store.membership("t_1") == kept


def test_damaged_terms_raise_an_error_that_names_them(tmp_path: Path) -> None:
    client_store = ClientStore(DirectoryStore(tmp_path), "owner")
    client_store.store.write("owner", "t_1", "terms.json", b"{}")
    with pytest.raises(LocalFileError, match="stored terms of task t_1"):
        client_store.agreed("t_1")


LIMIT = Policy().max_model_bytes
ITEMS = {name: {"items": MAX_ITEMS} for name in RECIPES if recipe_entry(name).has_items}
SMALL: dict[str, dict[str, Any]] = {
    "arrays": {"shapes": {"a": [30, 4]}, "rows": ["a"], "reveal_rows": True, "optimiser": "adam"},
    "fair": {"dim": 4, "capacities": [0, 2]},
    "privirec": {"components": 2, "reveal_gram": True},
    "privirec-k": {"components": 2},
    "rfrecf": {"iterations": 4},
    "topk": {"dim": 4, "support": "own", "reveal_indices": True},
}
"""Parameters of small models, beside the number of items; the defaults for the other recipes."""
HUGE: dict[str, dict[str, Any]] = {
    "arrays": {"shapes": {"a": [2**26, 4]}, "optimiser": "adam"},
    "colr": {"dim": 4096},
    "fair": {"dim": 200, "capacities": [0, 1]},
    "fedmf": {"dim": 4096},
    "pfedclr": {"dim": 4096},
    "privirec": {"items": 10_000, "components": 4096, "reveal_gram": True},
    "privirec-k": {"components": 4096},
    "rfrec": {"dim": 4096},
    "rfrecf": {"dim": 4096},
    "scolr": {"dim": 4096},
    "svd": {"dim": 4096},
    "topk": {"dim": 4096, "support": "own", "reveal_indices": True},
}


def fields_of(name: str) -> list[str]:
    """The names of a recipe's parameters."""
    return list(recipe_entry(name).parameters.model_fields)


def peak_of(view: TaskView, limit: int | None) -> int:
    """Return the most bytes that a client holds while it reads the terms, and then its first state."""
    tracemalloc.start()
    try:
        terms = TaskTerms.of(view, limit)
        terms.recipe.initial_state(terms.seed)
    except PolicyRefused as refusal:
        assert "--max-model-bytes" in str(refusal)
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    return peak


@pytest.mark.parametrize("name", sorted(name for name in RECIPES if set(fields_of(name)) != {"items"}))
def test_attack_a_task_claims_a_huge_model(name: str) -> None:
    """The largest parameters that a recipe allows cost the client almost nothing, measured or not."""
    for evaluation in (None, Evaluation(every=2)):
        view = task_view(name, {**ITEMS.get(name, {}), **HUGE.get(name, {"dim": 4096})}, evaluation=evaluation)
        assert model_bytes(recipe(view.recipe.name, view.recipe.parameters)) > LIMIT
        assert peak_of(view, LIMIT) < 1 << 20
        with pytest.raises(PolicyRefused):
            TaskTerms.of(view, LIMIT)


def test_attack_a_thousand_million_items_are_refused_by_the_parameters() -> None:
    with pytest.raises(ParameterError, match="items"):
        TaskTerms.of(task_view("fedmf", {"items": 10**9}), LIMIT)


def test_the_limit_is_exact_and_its_default_admits_the_largest_data_sets_of_the_papers() -> None:
    """Amazon-Book has 91,599 items; 10,000 is the limit of the Gram matrix."""
    view = task_view("fedmf", {"items": 100, "dim": 8, "clip": 1.0})
    needed = 2 * 100 * 8 * 4 + 8 * TaskTerms.of(view).sum_plan.layout.length
    TaskTerms.of(view, needed)
    with pytest.raises(PolicyRefused):
        TaskTerms.of(view, needed - 1)
    largest: dict[str, dict[str, Any]] = {
        "colr": {"items": 91_599, "dim": 64, "rank": 16},
        "fedmf": {"items": 91_599, "dim": 256},
        "privirec": {"items": 10_000, "reveal_gram": True},
        "privirec-k": {"items": 91_599, "components": 256},
    }
    for name, parameters in largest.items():
        assert model_bytes(recipe(name, parameters)) <= LIMIT


def test_no_sum_or_state_is_longer_than_stated() -> None:
    for name in RECIPES:
        made = recipe(name, ({"items": 30} if name in ITEMS else {}) | SMALL.get(name, {}))
        sums = getattr(made, "steps", 2 * made.device_groups)
        assert max(made.layout(index).length for index in range(1, sums + 1)) == made.longest_vector(), name
        assert max(made.state_bytes(index) for index in range(1, sums + 1)) <= made.longest_state_bytes(), name


def rfrec_terms(rounds: int, **more: Any) -> TaskTerms:
    view = task_view("rfrec", {"items": 30, "dim": 4, "variant": "paper"}, **more)
    return TaskTerms.of(view.model_copy(update={"schedule": Schedule(rounds=rounds, cohort_size=10, min_clients=3)}))


def test_attack_a_round_of_rfrec_is_announced_as_sum_a_million() -> None:
    terms = rfrec_terms(5)

    def announced(number: int, step: int) -> RoundView:
        seed = terms.recipe.round_spec(terms.seed, number, step).seed
        return round_view(number, step=step, seed=seed)

    assert terms.round_spec(announced(1_000_000, 5)).sum_index == 5  # many rounds failed
    with pytest.raises(ContractBroken, match="announced as sum 1000000, .* the 5 sums of the task"):
        terms.round_spec(announced(1_000_000, 1_000_000))


def test_attack_a_snapshot_of_rfrec_claims_a_million_sums() -> None:
    terms = rfrec_terms(5, evaluation=Evaluation(every=2))
    start = terms.recipe.encode_state(terms.recipe.initial_state(terms.seed))
    for sums in (5, 1_000_000):
        body = sums.to_bytes(4, "little") + start[4:]
        view = SnapshotView(round=2_000_000, bytes=len(body), digest=sha256(body).hexdigest(), author="server")
        if sums == 5:
            assert read_snapshot(terms, None, None, view, body).state.sums == 5
        else:
            with pytest.raises(CodecError, match="claims 1,000,000 sums of a task of 5"):
                read_snapshot(terms, None, None, view, body)


WRONG_POLICIES: list[tuple[dict[str, Any], str]] = [
    ({"mechanisms": {"rot13"}}, "mechanisms must be a set of names from: ckks, masked.*unknown: 'rot13'"),
    ({"mechanisms": "plain"}, "mechanisms must be a set of names"),
    ({"masked_modes": {"honest"}}, "masked_modes must be a set of names from: curious"),
    ({"min_cohort": 10**9}, "min_cohort must be in 2..1000000"),
    ({"min_ring_bits": 65}, "min_ring_bits must be in 0..64"),
    ({"min_sigma": 81}, "min_sigma must be in 1..80"),
    ({"min_neighbours": -1}, "min_neighbours"),
    ({"max_model_bytes": 0}, "max_model_bytes"),
    ({"max_epochs": 1001}, "max_epochs"),
    ({"snapshot_every": -1}, "snapshot_every"),
    ({"max_clip_share": 1.5}, "max_clip_share"),
    ({"min_corrupt": 1.0}, "min_corrupt must be"),
    ({"min_corrupt": -0.1}, "min_corrupt must be"),
    ({"min_sigma": 0}, "min_sigma must be"),
]


def test_impossible_policies_are_refused() -> None:
    for wrong, text in WRONG_POLICIES:
        with pytest.raises(ParameterError, match=text):
            Policy(**wrong)


def test_an_invalid_schedule_is_an_error_of_ours() -> None:
    with pytest.raises(HushRecError, match="schedule: rounds: must be at least 1"):
        Schedule(rounds=0)
    with pytest.raises(HushRecError, match="schedule: round: unknown name; choose from: rounds, cohort_size"):
        Schedule(round=3)  # type: ignore[call-arg]
    with pytest.raises(HushRecError, match="min_clients is greater than cohort_size"):
        Schedule(cohort_size=2)
    assert Schedule.model_validate({"rounds": 2}) == Schedule(rounds=2)


def test_an_invalid_task_is_an_error_of_ours() -> None:
    with pytest.raises(ParameterError, match="task: name: must match the pattern"):
        task_request("Not A Name", "colr")
