"""Sums that no honest contributions add up to: nobody uses them, and the task goes on with the next one."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from protocols.layout import VectorLayout
from protocols.recipes.base import Local
from protocols.recipes.registry import recipe
from protocols.sums.masked import client
from tests.support.api import Api, TestTask, checked
from tests.support.masked import MaskedClient, enrol_masked, masked_task, play
from tests.support.world import request_json

COHORT = 6
REASON = "nothing is released, because what comes out is no sum of honest contributions: a client sent values beyond"


def contribute(liar: MaskedClient, number: int, elements: NDArray[np.uint32]) -> None:
    """A client adds these elements of the ring, whatever its clip is."""
    opened = client.open_inbox(liar.state, liar.handed(number, "inbox"))
    liar.state, body = client.contribute(opened, elements)
    checked(liar.send(number, "contribute", body), 201)


def elements_of(task: TestTask, values: NDArray[np.float64]) -> NDArray[np.uint32]:
    (scale,) = task.plan.segment_scales.values()
    return np.rint(values * scale).astype(np.int64).astype(np.uint32)


@pytest.mark.parametrize(
    ("lie", "what"),
    [
        (lambda shape: np.full(shape, 8000.0), "a value"),  # one clip is 1,000, and so six are 6,000
        (lambda shape: np.full(shape, 900.0), "values of a norm"),  # within one clip
    ],
)
def test_attack_a_member_that_ignores_its_bounds(api: Api, lie: Any, what: str) -> None:
    parameters = {"row_clip": 50.0}
    task = masked_task(api, f"lie-{what[-4:]}", COHORT, rounds=2, recipe_parameters=parameters)
    clients = enrol_masked(task, COHORT)
    play(task, clients, until="contribute")
    task.wait_round(1, "collecting")
    contribute(clients[0], 1, elements_of(task, lie(task.plan.layout.length)))
    honest = {index: one for index, one in clients.items() if index}
    play(task, honest, start="contribute", until="confirm")
    task.wait_round(1, "confirming")
    play(task, clients, start="confirm")
    failed = task.wait_round(1, "failed")
    assert failed["failure"].startswith(REASON) and f"holds {what}" in failed["failure"]
    assert failed["aggregate_digest"] is None
    play(task, clients, 2)
    assert task.wait_round(2, "complete")["step"] == 2
    assert task.now()["state"] == "complete"


def test_a_plain_sum_of_a_norm_that_no_clients_have(api: Api) -> None:
    task, members = api.begin(4, "long", recipe_parameters={"row_clip": 1.0}, rounds=2)
    for number, size in ((1, 30.0), (2, 0.5)):
        task.wait_round(number, "collecting")
        layout: VectorLayout = task.plan.layout
        for member in members:
            checked(member.put(number, np.full(layout.length, size, "<f4").tobytes()), 201)
        state = task.wait_round(number, "failed", "complete")
        assert (state["state"] == "failed") == (number == 1), state
        assert number == 2 or "values of a norm" in state["failure"]


def test_a_sum_that_is_no_product_with_what_rows_give_fails_its_round_and_the_next_one_counts(api: Api) -> None:
    """Of power iterations a sum within all bounds can still be none of rows: whoever sends noise spoils no model."""
    parameters = {"items": 12, "components": 4, "iterations": 1, "min_owners": 1, "reveal_gram": True}
    task = api.task_of(request_json("noise", "privirec-k", parameters, rounds=3, cohort_size=6, min_clients=6))
    members, made = task.begin(6), recipe("privirec-k", parameters)
    rng, state = np.random.default_rng(8), made.initial_state(task.spec_seed)
    lists = [np.flatnonzero(rng.random(12) < 0.5).astype(np.int32) for _ in members]
    for number, noise in ((1, 0.0), (2, 0.1), (3, 0.0)):
        task.wait_round(number, "collecting")
        spec = replace(made.round_spec(task.spec_seed, number, min(number, 2)), size=made.size_after(state))
        vectors = [made.contribute(state, spec, Local(own)).vector for own in lists]
        vectors[0] = vectors[0] + noise * rng.standard_normal(vectors[0].size)
        for member, vector in zip(members, vectors, strict=True):
            checked(member.put(number, vector.astype("<f4").tobytes()), 201)
        found = task.wait_round(number, "failed" if noise else "complete")
        if noise:
            assert found["failure"].startswith(REASON) and "is no product with a matrix" in found["failure"]
            assert found["aggregate_digest"] is None
        else:
            state = made.absorb(state, spec, np.sum(vectors, axis=0), len(members))
    assert task.now()["state"] == "complete"
