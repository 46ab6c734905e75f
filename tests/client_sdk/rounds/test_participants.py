"""Zeros in encrypted tasks hide whose training failed, and do not count as data: a sum of few is used by no member.

The attack is run through a real server, with the defence and without it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from client_sdk import ArraysRound, Operator, Policy, task_request
from client_sdk.agreement.terms import TaskTerms
from client_sdk.lab.fleet import Fleet
from client_sdk.model.follow import ModelFollower
from client_sdk.rounds.events import RoundAbstained
from protocols.errors import ParameterError
from protocols.messages import MechanismChoice, RecipeChoice, Schedule
from protocols.recipes.arrays import Arrays
from tests.client_sdk.rounds.test_reaction_attacks import Attack, terms_of
from tests.protocols.sums.paillier.cases import made_up_keyring
from tests.support.fleets import enrolled_fleet
from tests.support.organiser import TRIAL
from tests.support.server import AggregatorProcess
from tests.support.tasks import SmallTask

MEMBERS, VICTIM = 5, 2
SECRET = np.float32([0.25, -0.5, 0.125, 0.75])
MECHANISMS: dict[str, dict[str, Any]] = {"ckks": {}, "paillier": {"key_bits": 2048}}
POLICY = Policy(mechanisms=frozenset(MECHANISMS), snapshot_every=1)


def trainer(user: int) -> Any:
    """Everybody has an update in round 2, only the victim in round 1."""

    def train(asked: ArraysRound) -> None:
        if asked.number == 2 or user == VICTIM:
            asked.contribute({"w": SECRET if asked.number == 1 else np.full(4, 0.5, np.float32)})

    return train


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_the_update_of_one_member_among_zeros_is_used_by_no_member(
    server: AggregatorProcess, operator: Operator, mechanism: str
) -> None:
    request = task_request(
        f"one-of-five-{mechanism}",
        "arrays",
        mechanism,
        Schedule(rounds=2, cohort_size=MEMBERS, min_clients=MEMBERS, start_clients=MEMBERS),
        {"shapes": {"w": [4]}, "std": 0.0},
        MECHANISMS[mechanism],
        organiser=TRIAL.pin,
    )
    task = SmallTask.of(operator, request, MEMBERS)
    with enrolled_fleet(server.url, task, [trainer(user) for user in range(MEMBERS)], policy=POLICY) as fleet:
        (first,) = fleet.run(rounds=1)
        assert (first.state, first.survivors) == ("complete", MEMBERS)  # the server sees a round like any other
        assert len({report.contribution_bytes for report in first.reports}) == 1
        np.testing.assert_allclose(model_of(fleet), np.zeros(4), atol=1e-3)

        (second,) = fleet.run(rounds=1)
        assert second.state == "complete"
        np.testing.assert_allclose(model_of(fleet), np.full(4, 0.5), atol=2e-3)
        for client in fleet.clients:
            np.testing.assert_allclose(w_of(client.member.terms, client.follower), np.zeros(4), atol=1e-3)


def model_of(fleet: Fleet) -> np.ndarray:
    """What a newcomer opens: the newest snapshot that members published, and the rounds after it."""
    recipe = fleet.clients[0].member.terms.recipe
    assert isinstance(recipe, Arrays)
    return recipe.arrays(fleet.model())["w"]


def w_of(terms: TaskTerms, follower: ModelFollower) -> np.ndarray:
    """The model on which a member trained last."""
    assert isinstance(terms.recipe, Arrays)
    return terms.recipe.arrays(follower.at_hand())["w"]


def test_a_member_that_chooses_its_blocks_abstains_when_training_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which blocks it chooses is seen by all, so zeros would hide nothing; as an upload they would count as data."""
    parameters = {"items": 6, "dim": 2, "share": 0.5, "support": "own", "reveal_indices": True}
    view = terms_of("paillier").view.model_copy(
        update={
            "recipe": RecipeChoice(name="topk", parameters=parameters),
            "mechanism": MechanismChoice(name="paillier", parameters={"key_bits": 2048}),
        }
    )
    terms = TaskTerms.of(view)
    keyring, plan = made_up_keyring(terms.sum_plan), terms.sum_plan  # type: ignore[arg-type]
    chosen, how = plan.layout.chosen, terms.mechanism
    blocks = [np.arange(chosen, dtype=np.float64), np.tile([0.1, 1.0], chosen)]
    bodies = [((), how.seal(plan, (), blocks, keyring)) for _ in range(4)]
    attack = Attack(terms, keyring, how.release(plan, how.fold(plan, None, bodies)))

    def diverges(*_: Any) -> None:
        raise ParameterError("training diverged")

    monkeypatch.setattr(attack.part, "train", diverges)
    requests = attack.take_part()
    assert not [url for method, url, _ in requests if method == "PUT"]
    assert attack.events == [RoundAbstained(2, "training diverged")]
