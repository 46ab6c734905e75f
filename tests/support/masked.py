"""Clients of masked rounds over real HTTP: the protocol's own functions, one request a step, nothing retried."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import httpx
import numpy as np
from numpy.typing import NDArray

from aggregator_service.storage.stage_rows import Handout
from protocols.codec import b64decode
from protocols.crypto.random import Randomness
from protocols.layout import VectorLayout, whole_route
from protocols.messages.stages import STATE_FOR, MaskedMessage
from protocols.sums.masked import client
from protocols.sums.masked.parameters import ClientPolicy
from protocols.sums.masked.plan import MaskedPlan, RoundContext
from tests.support.api import Api, TestMember, TestTask, digest_field
from tests.support.world import request_json

Step = MaskedMessage
STAGES = STATE_FOR
SHOWN: Mapping[Handout, str] = {"survivors": "survivor_set", "confirmations": "confirmations"}
"""What clients find in the view of a round, and its field there."""
POLICY = ClientPolicy(masked_modes=frozenset({"curious", "semi-malicious"}))


def masked_task(
    api: Api,
    name: str,
    cohort: int,
    mode: str = "semi-malicious",
    dropout: float = 0.34,
    parameters: Mapping[str, Any] | None = None,
    **changes: Any,
) -> TestTask:
    """A small masked FedMF task whose cohort is everybody and may lose a share of `dropout`; nobody colludes.

    parameters: more of the mechanism. `changes` go to the schedule.
    """
    parameters = {"mode": mode, "corrupt": 0.0, "dropout": dropout, **(parameters or {})}
    schedule = {"min_clients": 4, "stage_seconds": 3600, "collect_seconds": 3600, **changes}
    return api.create_task(name, cohort=cohort, mechanism_name="masked", mechanism_parameters=parameters, **schedule)


def frozen_task(api: Api, name: str, **changes: Any) -> TestTask:
    """A masked PriviRec-k task of nine clients, whose sums are over the same data. `changes` go to the schedule."""
    recipe = "privirec-k", {"items": 6, "components": 2, "iterations": 2, "reveal_gram": True, "min_owners": 1}
    schedule = {"cohort_size": 9, "min_clients": 4, "stage_seconds": 3600, "collect_seconds": 3600, **changes}
    return api.task_of(request_json(name, *recipe, "masked", {"corrupt": 0.0, "dropout": 0.34}, **schedule))


def vector_of(layout: VectorLayout, value: float | NDArray[np.float64]) -> NDArray[np.float64]:
    """A whole vector of `value`, one for all or one for each, 1 where counts stand."""
    return np.where(np.concatenate([block.integral_mask() for block in layout.blocks]), 1.0, value)


def handout_for(step: Step, mode: str) -> Handout:
    """What a client needs from the server before it takes a step after the first."""
    needs: dict[Step, Handout] = {"share": "roster", "contribute": "inbox", "confirm": "survivors"}
    return needs.get(step, "survivors" if mode == "curious" else "confirmations")


def can_step(state: Any, step: Step) -> bool:
    """Whether a client in this state has taken every step before `step`; it has not if it missed a stage's time."""
    if step == "unmask" and isinstance(state, client.Contributed):
        return state.context.plan.mode == "curious"  # the other mode has a stage between
    before = {"share": client.Advertised, "contribute": client.Shared, "confirm": client.Contributed}
    return isinstance(state, before.get(step, client.Confirmed))


def next_step(
    state: Any,
    step: Step,
    handed: bytes,
    vector: Callable[[VectorLayout], NDArray[np.float64]],
    random: Randomness = os.urandom,
) -> tuple[Any, bytes]:
    """Take a step after the first; return the new state of the client, and what it sends.

    handed: `handout_for` the step. vector: what the client contributes, by layout.
    """
    match step:
        case "share":
            return client.share(state, handed, lambda entry: True, random)
        case "contribute":
            plan = state.context.plan
            blocks = plan.layout.split(vector(plan.layout))
            opened = client.open_inbox(state, handed)
            return client.contribute(opened, plan.encode(whole_route(plan.layout), blocks))
        case "confirm":
            return client.confirm(state, handed)
    if state.context.plan.mode == "curious":
        return client.unmask_unconfirmed(state, handed)
    return client.unmask(state, handed)


@dataclass
class MaskedClient(TestMember):
    """One client, and its state within the round it is in."""

    state: Any = None
    bodies: dict[str, bytes] = field(default_factory=dict)
    """What it sent last, by step."""
    rosters: dict[int, bytes] = field(default_factory=dict)
    """By round."""

    def fetch(self, number: int, what: str) -> bytes:
        answer = self.found(f"rounds/{number}/{what}")
        assert answer.headers["content-digest"] == digest_field(answer.content)
        return answer.content

    def handed(self, number: int, kind: Handout) -> bytes:
        """What the server hands out to this client. What is the same for all is asked for once a round."""
        if kind == "inbox":
            return self.fetch(number, kind)
        if kind == "roster":
            if number not in self.rosters:
                self.rosters[number] = self.fetch(number, kind)
            return self.rosters[number]
        if (number, kind) not in self.task.handouts:
            self.task.handouts[number, kind] = b64decode(self.view(number)[SHOWN[kind]])
        return self.task.handouts[number, kind]

    def send(self, number: int, step: str, body: bytes) -> httpx.Response:
        self.bodies[step] = body
        if step == "contribute":
            return self.put(number, body)
        return self.deliver(f"rounds/{number}/stages/{step}/{self.client_id}", body)

    def context(self, number: int) -> RoundContext:
        """The round as this client sees it: the model's digest is its own doing. The task is asked for once a round.

        So is the round, where it is the same for all clients: where the recipe has no levels.
        """
        kept = self.task.contexts.get(number)
        if kept is not None and not self.task.recipe.most_levels(1):
            return kept[1]
        round_ = self.view(number)
        if kept is not None and kept[0] == round_["levels"]:
            return kept[1]
        context = RoundContext(
            task_id=self.task.id,
            round_number=number,
            round_seed=b64decode(round_["seed"], 32),
            plan=MaskedPlan.of(self.task.plan_of(round_["step"])),
            model_digest=self.model_digest(round_),
            cohort=round_["cohort"],
        )
        self.task.contexts[number] = round_["levels"], context
        return context

    def make(self, number: int, step: Step, value: float | NDArray[np.float64] = 1.0) -> bytes:
        if step == "advertise":
            self.state, body = client.advertise(self.context(number), self.client_id, self.identity, POLICY)
        else:
            handed = self.handed(number, handout_for(step, mode_of(self.task)))
            self.state, body = next_step(self.state, step, handed, lambda layout: vector_of(layout, value))
        return body

    def take(self, number: int, step: Step, value: float | NDArray[np.float64] = 1.0) -> httpx.Response:
        """Make a step and send it."""
        return self.send(number, step, self.make(number, step, value))


def enrol_masked(task: TestTask, count: int) -> dict[int, MaskedClient]:
    """`count` new clients, numbered in ascending order of their ids."""
    return dict(enumerate(sorted(task.enrol_as(MaskedClient, count), key=lambda made: made.client_id)))


def mode_of(task: TestTask) -> str:
    return MaskedPlan.of(task.plan).mode


def steps_of(task: TestTask) -> list[Step]:
    return [step for step in STAGES if not (mode_of(task) == "curious" and step == "confirm")]


def play(
    task: TestTask,
    clients: Mapping[int, MaskedClient],
    number: int = 1,
    drop: Mapping[int, Step] | None = None,
    until: Step | None = None,
    start: Step = "advertise",
    value: Callable[[int], float | NDArray[np.float64]] = lambda index: 2.0**index,
) -> None:
    """Client `index` contributes `value(index)`, and is silent from the step `drop[index]` on. All take every step from
    `start` to before `until`, or until the round fails; the deadline of a stage comes when those who stay have
    delivered."""
    drop, here = drop or {}, dict(clients)
    steps = steps_of(task)
    for step in steps[steps.index(start) :]:
        if step == until:
            return
        if task.wait_round(number, STAGES[step], "failed")["state"] == "failed":
            return
        leaving = {index for index in here if drop.get(index) == step}
        here = {index: one for index, one in here.items() if index not in leaving}
        for index, one in here.items():
            answer = one.take(number, step, value(index))
            assert answer.is_success, (step, index, answer.text)
        if leaving:
            task.expire(number)
