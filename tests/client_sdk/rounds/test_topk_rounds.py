"""Top-K in whole rounds: one model over every mechanism that supports it, in one process and through a real server."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from client_sdk import Client, Identity, MemoryStore, MFConfig, Operator, Policy, PolicyRefused, task_request
from client_sdk.errors import InvalidParameters
from client_sdk.lab.data.interactions import LeaveOneOut, leave_one_out
from client_sdk.lab.data.synthetic import SyntheticConfig, synthetic
from client_sdk.lab.federation import Federation
from client_sdk.training.topk import RESIDUAL_ROWS
from protocols.messages import Schedule
from protocols.recipes.topk import TopKState
from protocols.sums.paillier.mechanism import PaillierMechanism
from tests.support.organiser import TRIAL
from tests.support.server import AggregatorProcess
from tests.support.tasks import ITEMS, interactions

COHORT, ROUNDS = 12, 3
MODES: dict[str, dict[str, Any]] = {
    "aggregate": {"share": 0.2},
    "vote": {"share": 0.2, "support_from": "vote", "reveal_touched": True},
    "own": {"share": 0.1, "support": "own", "reveal_indices": True},
    "feedback": {"share": 0.1, "support": "own", "reveal_indices": True, "error_feedback": True},
}


@pytest.fixture(scope="module")
def data() -> LeaveOneOut:
    return leave_one_out(synthetic(SyntheticConfig(users=24, items=50, positives=8)), 0)


def federation(data: LeaveOneOut, mode: str, mechanism: str, **mechanism_parameters: Any) -> Federation:
    parameters = {"items": data.train.n_items, "dim": 2, **MODES[mode]}
    made = Federation(
        data.train, "topk", parameters, mechanism, mechanism_parameters, training=MFConfig(epochs=1), cohort_size=COHORT
    )
    assert [done.survivors for done in made.run(ROUNDS)] == [COHORT] * ROUNDS
    return made


@pytest.mark.parametrize(
    ("mode", "mechanism", "parameters"),
    [
        ("vote", "paillier", {"key_bits": 2048, "value_bits": 46}),
        ("feedback", "paillier", {"key_bits": 2048, "value_bits": 46}),
        ("vote", "masked", {"dropout": 0.0}),
    ],
)
def test_encrypted_and_plain_sums_train_the_same_model(
    data: LeaveOneOut, mode: str, mechanism: str, parameters: dict[str, Any]
) -> None:
    plain, hidden = federation(data, mode, "plain"), federation(data, mode, mechanism, **parameters)
    gain = getattr(plain.recipe, "gain", 1.0)
    tolerance = 4 * ROUNDS * gain * (hidden.plan.predicted_error + plain.plan.predicted_error) + 1e-5
    np.testing.assert_allclose(hidden.state.item_factors, plain.state.item_factors, atol=tolerance)
    if isinstance(plain.state, TopKState):
        np.testing.assert_array_equal(hidden.state.support, plain.state.support)
    moved = plain.state.item_factors != plain.recipe.initial_state(plain.task_seed).item_factors
    assert moved.any()
    if mode == "feedback":
        assert all(client_state[RESIDUAL_ROWS].size for client_state in plain.client_states)


def create(operator: Operator, name: str, mode: str, mechanism: str, **mechanism_parameters: Any) -> str:
    schedule = Schedule(rounds=2, cohort_size=3, start_clients=3)
    parameters = {"items": ITEMS, "dim": 2, "clip": 2.0, **MODES[mode]}
    request = task_request(
        name,
        "topk",
        mechanism,
        schedule,
        parameters,
        mechanism_parameters,
        organiser=None if mechanism == "plain" else TRIAL.pin,
    )
    return operator.create_task(request).task_id


@pytest.mark.parametrize(
    ("mode", "mechanism", "parameters"),
    [
        ("aggregate", "plain", {}),
        ("feedback", "plain", {}),
        ("vote", "paillier", {"key_bits": 2048}),
        ("own", "paillier", {"key_bits": 2048}),
    ],
)
def test_three_clients_finish_a_task(
    server: AggregatorProcess,
    operator: Operator,
    mode: str,
    mechanism: str,
    parameters: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ahead: list[str] = []  # contributions that were sealed with what was made ahead
    seal_ahead = PaillierMechanism.seal_ahead

    def noted(self: PaillierMechanism, *given: Any) -> bytes:
        ahead.append(self.name)
        return seal_ahead(self, *given)

    monkeypatch.setattr(PaillierMechanism, "seal_ahead", noted)
    name = f"topk-{mode}-{mechanism}"
    task_id = create(operator, name, mode, mechanism, **parameters)
    code = TRIAL.source if mechanism == "paillier" else None
    invitation = operator.invite(task_id, uses=3).invitation
    first_invitation = operator.invite(task_id, role="holder").invitation if code else invitation
    policy = Policy(mechanisms=frozenset({"plain", "paillier"}), snapshot_every=1, reveal_indices=mode == "own")
    chosen = interactions(3)
    clients = [Client(server.url, Identity.generate(), MemoryStore(), policy) for _ in range(3)]
    try:
        parts = [
            client.join(
                name,
                invitation=first_invitation if index == 0 else invitation,
                certificate=None if code is None else code("holder" if index == 0 else "member"),
                seed=index,
            )
            for index, client in enumerate(clients)
        ]
        with ThreadPoolExecutor(4) as pool:
            holder = parts[0] if code else None
            if holder:
                holder.create_keyring()
            serving = pool.submit(holder.serve, None, None, 1.0) if holder else None
            reports = list(pool.map(lambda part, items: part.take_part(items), parts, chosen))
            if serving:
                serving.result(timeout=60)
        assert [[report.round for report in mine] for mine in reports] == [[1, 2]] * 3
        assert set(ahead) == ({mechanism} if mechanism == "paillier" else set())
        assert [(view.state, view.survivors) for view in operator.rounds(task_id)] == [("complete", 3)] * 2
        for part, items in zip(parts, chosen, strict=True):
            assert not set(part.recommend(5).items.tolist()) & set(items.tolist())
    finally:
        for client in clients:
            client.close()


def test_a_client_reveals_its_indices_only_if_its_policy_allows_it(
    server: AggregatorProcess, operator: Operator
) -> None:
    task_id = create(operator, "own-unasked", "own", "paillier", key_bits=2048)
    invitation = operator.invite(task_id).invitation
    with (
        Client(server.url, Identity.generate(), MemoryStore()) as client,
        pytest.raises(PolicyRefused, match="which items it touched"),
    ):
        client.join("own-unasked", invitation=invitation, certificate=TRIAL.source())


def test_combinations_that_cannot_work_are_refused_when_the_task_is_created(operator: Operator) -> None:
    with pytest.raises(InvalidParameters, match="choose their positions"):
        create(operator, "own-masked", "own", "masked")
    with pytest.raises(InvalidParameters, match="cannot be combined with 'ckks'"):
        create(operator, "shared-ckks", "aggregate", "ckks")
    schedule = Schedule(rounds=2, cohort_size=3)
    shape = {"items": ITEMS, "dim": 4}
    with pytest.raises(InvalidParameters, match="reveal_indices=true"):
        operator.create_task(task_request("unasked", "topk", "plain", schedule, {**shape, "support": "own"}))
    with pytest.raises(InvalidParameters, match="open problem"):
        operator.create_task(task_request("svd-masked", "svd", "masked", schedule, shape))
