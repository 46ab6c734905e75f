"""SCoLR's sums give away which items each client has, so it is for plain sums only: the attack, and the refusals."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from aggregator_service.tasks.tasks import plan_request
from client_sdk.agreement.terms import TaskTerms
from client_sdk.data.synthetic import SyntheticConfig, synthetic
from client_sdk.operator import task_request
from client_sdk.simulation.federation import Federation
from protocols.codec import b64encode
from protocols.errors import CombinationError
from protocols.messages import Schedule, TaskView
from protocols.recipes.base import ModelState, RoundSpec
from protocols.recipes.colr.scolr import SCoLR, client_columns

USERS, RANK, ROUNDS, SEED = 8, 24, 8, bytes(32)


def test_the_counts_of_plain_sums_are_equations_in_the_clients_items(monkeypatch: pytest.MonkeyPatch) -> None:
    """An observer that sees the sums, the rounds' seeds and the clients' ids gets every client's items, exactly."""
    train = synthetic(SyntheticConfig(users=USERS, items=500, positives=6))
    sums: list[np.ndarray[Any, Any]] = []

    def observed(self: SCoLR, state: ModelState, spec: RoundSpec, total: Any, contributions: int) -> ModelState:
        sums.append(total)
        return absorb(self, state, spec, total, contributions)

    absorb = SCoLR.absorb
    monkeypatch.setattr(SCoLR, "absorb", observed)
    made = Federation(train, "scolr", {"items": train.n_items, "dim": RANK, "rank": RANK}, cohort_size=USERS)
    list(made.run(ROUNDS))
    touched_always = np.ones((USERS, train.n_items), dtype=bool)
    for number, total in enumerate(sums, 1):
        spec = made.recipe.round_spec(made.task_seed, number)
        columns = [client_columns(spec, str(user), RANK) for user in range(USERS)]
        coefficients = np.array([[column in own for own in columns] for column in range(RANK)], float)
        counts = total.reshape(2, RANK, train.n_items)[1]
        if np.linalg.matrix_rank(coefficients) == USERS:
            touched = np.linalg.lstsq(coefficients, counts, rcond=None)[0]
            assert np.abs(touched - np.rint(touched)).max() < 1e-6  # exact touch vectors of every client
            touched_always &= np.rint(touched) == 1  # negatives change from round to round, items do not
    items = [np.flatnonzero(row).tolist() for row in touched_always]
    assert items == [sorted(train.positives(user).tolist()) for user in range(USERS)]


@pytest.mark.parametrize("mechanism", ["ckks", "masked", "oneshot", "paillier"])
def test_sums_that_hide_contributions_do_not_carry_it(mechanism: str) -> None:
    """Neither does a server create such a task, nor does a client join one that an old server has created."""
    request = task_request("columns", "scolr", mechanism, recipe_parameters={"items": 60, "rank": 4})
    with pytest.raises(CombinationError, match="which items each client has; choose one of: plain"):
        plan_request(request)
    view = TaskView.model_validate(
        {
            **request.model_dump(exclude={"data_set", "start"}), "task_id": "t_1", "state": "open", "plan": {},
            "resolved": None, "opened_by": "members", "members": 0, "keyed_members": 0, "completed_rounds": 0,
            "failed_rounds": 0, "warnings": [], "seed": b64encode(SEED), "schedule": Schedule().model_dump(),
        }
    )  # fmt: skip
    with pytest.raises(CombinationError, match="which items each client has; choose one of: plain"):
        TaskTerms.of(view)
    counting = task_request(
        "twice", "colr", mechanism, recipe_parameters={"items": 60, "item_bias": "counts", "count_sums": 2}
    )
    with pytest.raises(CombinationError, match="set count_sums to 1"):
        TaskTerms.of(view.model_copy(update={"recipe": counting.recipe}))
