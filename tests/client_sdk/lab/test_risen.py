"""The items that rose most between two models, as a public sample of profiles would see them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from client_sdk import Operator, task_request
from client_sdk.cli.risen import risen_items
from client_sdk.history import History
from client_sdk.lab.data.interactions import DataError
from client_sdk.lab.data.synthetic import SyntheticConfig, synthetic
from client_sdk.lab.federation import Federation
from client_sdk.lab.risen_items import Rise, risen, rises_between
from protocols.errors import ParameterError
from protocols.messages import Schedule
from protocols.recipes.base import ModelState
from protocols.recipes.factors import CountedFactors
from protocols.recipes.state import state_as
from tests.support.server import AggregatorProcess
from tests.support.tasks import SmallTask, enrolled_fleet

DATA = synthetic(SyntheticConfig(users=60, items=50, positives=8, seed=3))
PROFILES = [DATA.history(user) for user in range(20)]


@pytest.mark.parametrize("recipe", ["colr", "privirec-k"])
def test_an_item_that_was_put_into_all_lists_has_risen_most(recipe: str) -> None:
    more = {"item_bias": "counts", "dim": 4} if recipe == "colr" else {"components": 4, "reveal_gram": True}
    made = Federation(DATA, recipe, {"items": 50, **more}, cohort_size=60)
    seen: list[ModelState] = []
    for _ in made.run(4):
        seen.append(made.state)
    before, after = seen[-2:]
    assert not rises_between(made.recipe, made.task_seed, after, after, PROFILES)
    honest = rises_between(made.recipe, made.task_seed, before, after, PROFILES)
    assert all(rise.after > rise.before for rise in honest)
    assert [rise.after - rise.before for rise in honest] == sorted(
        (rise.after - rise.before for rise in honest), reverse=True
    )
    if recipe == "colr":
        own = state_as(after, CountedFactors)
        counts = own.item_counts.copy()
        target = int(np.argmin(counts))
        counts[target] = 1e9
        most = rises_between(made.recipe, made.task_seed, after, replace(own, item_counts=counts), PROFILES)[0]
        assert most.item == target and most.after == 1.0


def test_profiles_that_have_an_item_do_not_count() -> None:
    made = Federation(DATA, "colr", {"items": 50, "dim": 4, "item_bias": "counts"}, cohort_size=60)
    for _ in made.run(2):
        pass
    own = state_as(made.state, CountedFactors)
    counts = own.item_counts.copy()
    counts[0] = 1e9
    profiles = [History(np.array([0, 1], np.int32)), History(np.array([1, 2], np.int32))]
    found = rises_between(made.recipe, made.task_seed, own, replace(own, item_counts=counts), profiles, 1)
    assert found == (Rise(0, 0.0, 1.0),)


def test_an_operator_compares_the_two_newest_models(
    server: AggregatorProcess, operator: Operator, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    schedule = Schedule(rounds=3, cohort_size=6, start_clients=6, min_clients=3)
    request = task_request("rises", "colr", "plain", schedule, {"items": 50, "dim": 4, "item_bias": "counts"})
    task = SmallTask.of(operator, request, 6)
    with pytest.raises(ParameterError, match="fewer than two models"):
        risen(operator, "rises", PROFILES)
    with enrolled_fleet(server.url, task, [DATA.history(user).items for user in range(6)]) as fleet:
        assert {done.state for done in fleet.run()} == {"complete"}
    found = risen(operator, "rises", PROFILES, most=3)
    assert (found.before, found.after, found.profiles) == (2, 3, 20)
    assert len(found.items) <= 3
    with pytest.raises(ParameterError, match="at least one profile"):
        risen(operator, "rises", [])
    token, ratings = tmp_path / "token", tmp_path / "profiles.csv"
    token.write_text(server.operator_token + "\n")
    rows = [f"{user},{item}" for user in range(20) for item in PROFILES[user].items.tolist()]
    ratings.write_text("user,item\n" + "\n".join(rows) + "\n")
    risen_items(server.url, "rises", str(ratings), token, most=3)
    shown = capsys.readouterr().out
    assert "rounds 2 to 3: share of 20 first lists of 10" in shown
    assert all(f"{one.after:.1%}" in shown for one in found.items)
    ratings.write_text("user,item\n1,3\n2,999\n")
    with pytest.raises(DataError, match="item '999' of the profiles is none of the task's"):
        risen_items(server.url, "rises", str(ratings), token)
    sealed = task_request("sealed", "colr", "ckks", schedule, {"items": 50, "dim": 4})
    operator.create_task(sealed)
    with pytest.raises(ParameterError, match="cannot be read by its operator"):
        risen(operator, "sealed", PROFILES)
