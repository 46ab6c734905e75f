"""Fleets of the SDK's laboratory over a real server, and what their first sum must come out as."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from client_sdk import MemoryStore
from client_sdk.api.http import SyncDriver
from client_sdk.lab.fleet import Fleet
from client_sdk.lab.fleet_rounds import FleetOptions
from client_sdk.store.client_store import ClientStore
from protocols.recipes.base import ModelState
from tests.support.tasks import SmallTask


def enrolled_fleet(url: str, task: SmallTask, histories: Sequence[Any], seed: int = 3, **options: Any) -> Fleet:
    """A fleet whose clients have joined, with their keys or a committee where the task needs them."""
    made = Fleet(url, histories, FleetOptions(seed=seed, **options))
    made.enrol(task.invitation, task.holder_invitation, task.certificates)
    made.give_keys()
    if task.operator.task(task.task_id).mechanism.name == "oneshot":
        committee = task.operator.invite(task.task_id, 5, "committee").invitation
        made.enrol_committee(committee, task.certificates)
    return made


def model_in_the_clear(fleet: Fleet, histories: Sequence[Any], seed: int = 3) -> ModelState:
    """The model after round 1, from training every client again with the same seeds and adding without encryption."""
    terms = fleet.clients[0].member.terms
    with SyncDriver() as driver:
        view = driver.run(fleet.clients[0].member.calls.round(terms.task_id, 1))
    state, spec = terms.recipe.initial_state(terms.seed), terms.round_spec(view)
    total = np.zeros(terms.recipe.layout(1).length)
    for index, (client, items) in enumerate(zip(fleet.clients, histories, strict=True)):
        own = replace(client.member, store=ClientStore(MemoryStore(), "twin"))
        twin = replace(client, rng=np.random.default_rng((seed, index)), member=own, _client_state=None)
        blocks = twin._train(spec, state, twin.history(items)).blocks
        total += terms.recipe.layout(1).scatter(client.route(spec), blocks)
    return terms.recipe.absorb(state, spec, total, len(histories))
