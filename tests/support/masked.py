"""Clients of masked rounds over real HTTP: the protocol's own functions, one request a step, nothing retried."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import httpx
import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from numpy.typing import NDArray
from sqlalchemy import update

from aggregator_service.storage.database import Database, changed_rows
from aggregator_service.storage.schema import RoundRow
from protocols.codec import b64decode
from protocols.layout import whole_route
from protocols.messages import TaskView
from protocols.messages.stages import STATE_FOR, MaskedMessage
from protocols.sums.masked import client
from protocols.sums.masked.context import ClientPolicy, RoundContext
from protocols.sums.masked.plan import MaskedPlan, encode
from protocols.task_binding import broadcast_digest
from tests.support.api import Api, TestTask, digest_field, signed_enrolment
from tests.support.server import AggregatorProcess

__all__ = ["STAGES", "MaskedClient", "Step", "enrol_masked", "expire", "masked_task", "plan_of", "play", "steps_of"]

Step = MaskedMessage
STAGES = STATE_FOR


def masked_task(
    api: Api, name: str, cohort: int, mode: str = "semi-malicious", dropout: float = 0.34, **changes: Any
) -> TestTask:
    """A small masked FedMF task whose cohort is everybody and may lose a share of `dropout`; nobody colludes.

    `changes` go to the schedule.
    """
    parameters = {"mode": mode, "corrupt": 0.0, "dropout": dropout}
    schedule = {"min_clients": 4, "stage_seconds": 3600, "collect_seconds": 3600, **changes}
    return api.create_task(name, cohort=cohort, mechanism_name="masked", mechanism_parameters=parameters, **schedule)


def plan_of(task: TestTask, step: int) -> MaskedPlan:
    """How sum `step` is laid out."""
    view = task.view
    cohort = view["schedule"]["cohort_size"]
    return MaskedPlan.of(task.mechanism.plan(view["mechanism"]["parameters"], task.recipe.layout(step), cohort))


def vector_of(plan: MaskedPlan, value: float) -> NDArray[np.float64]:
    """A whole vector whose every value is `value`, 1 where counts stand."""
    integral = np.concatenate([block.integral_mask() for block in plan.layout.blocks])
    return np.where(integral, 1.0, value)


@dataclass
class MaskedClient:
    """One client: its keys, and its state within the round it is in."""

    task: TestTask
    client_id: str
    token: str
    identity: Ed25519PrivateKey
    state: Any = None
    bodies: dict[str, bytes] = field(default_factory=dict)

    @property
    def auth(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.token}"}

    @property
    def mode(self) -> str:
        return MaskedPlan.of(self.task.plan).mode

    def view(self, number: int) -> dict[str, Any]:
        answer = self.task.api.http.get(f"{self.task.path}/rounds/{number}", headers=self.auth)
        assert answer.status_code == 200, answer.text
        return dict(answer.json())

    def fetch(self, number: int, what: str) -> bytes:
        """Something the server hands out."""
        answer = self.task.api.http.get(f"{self.task.path}/rounds/{number}/{what}", headers=self.auth)
        assert answer.status_code == 200, answer.text
        assert answer.headers["content-digest"] == digest_field(answer.content)
        return answer.content

    def send(self, number: int, step: str, body: bytes) -> httpx.Response:
        """PUT the body of a step."""
        self.bodies[step] = body
        place = "contributions" if step == "contribute" else f"stages/{step}"
        path = f"{self.task.path}/rounds/{number}/{place}/{self.client_id}"
        headers = {**self.auth, "Content-Digest": digest_field(body)}
        return self.task.api.http.put(path, content=body, headers=headers)

    def context(self, number: int) -> RoundContext:
        """The round as this client sees it: the model's digest is its own doing. The task is asked for once a round."""
        round_ = self.view(number)
        kept = self.task.contexts.get(number)
        if kept is not None and kept[0] == round_["levels"]:
            return kept[1]
        api, path = self.task.api, self.task.path
        seen = api.http.get(path, headers=self.auth)
        assert seen.status_code == 200, seen.text
        view = TaskView.model_validate(seen.json())
        latest = api.http.get(f"{path}/snapshots/latest", headers=self.auth)
        assert latest.status_code in (200, 404), latest.text
        digest = bytes.fromhex(latest.json()["digest"]) if latest.status_code == 200 else None
        context = RoundContext(
            task_id=self.task.id,
            round_number=number,
            round_seed=b64decode(round_["seed"], 32),
            plan=plan_of(self.task, round_["step"]),
            model_digest=broadcast_digest(view, round_["step"], digest, round_["levels"]),
            cohort=round_["cohort"],
        )
        self.task.contexts[number] = round_["levels"], context
        return context

    def make(self, number: int, step: Step, value: float = 1.0) -> bytes:
        """Take a step of the protocol; what it sends."""
        if step == "advertise":
            policy = ClientPolicy(modes=frozenset({"curious", "semi-malicious"}))
            self.state, body = client.advertise(self.context(number), self.client_id, self.identity, policy)
        elif step == "share":
            self.state, body = client.share(self.state, self.fetch(number, "roster"), lambda entry: True)
        elif step == "contribute":
            plan = self.state.context.plan
            blocks = plan.layout.split(vector_of(plan, value))
            elements = encode(plan, whole_route(plan.layout), blocks)
            self.state, body = client.contribute(self.state, self.fetch(number, "inbox"), elements)
        elif step == "confirm":
            self.state, body = client.confirm(self.state, self.fetch(number, "survivors"))
        elif self.mode == "curious":
            self.state, body = client.unmask_unconfirmed(self.state, self.fetch(number, "survivors"))
        else:
            self.state, body = client.unmask(self.state, self.fetch(number, "confirmations"))
        return body

    def take(self, number: int, step: Step, value: float = 1.0) -> httpx.Response:
        """Make a step and send it."""
        return self.send(number, step, self.make(number, step, value))


def enrol_masked(task: TestTask, count: int) -> dict[int, MaskedClient]:
    """`count` new clients, numbered in ascending order of their ids."""
    invitation = task.api.invite(task.id, uses=count)
    clients = []
    for _ in range(count):
        identity = Ed25519PrivateKey.generate()
        answer = task.api.http.post(
            "/v1/enrolments", json=signed_enrolment(invitation, identity, X25519PrivateKey.generate())
        )
        assert answer.status_code == 201, answer.text
        clients.append(MaskedClient(task, answer.json()["client_id"], answer.json()["token"], identity))
    return dict(enumerate(sorted(clients, key=lambda made: made.client_id)))


def steps_of(task: TestTask) -> list[Step]:
    """The steps of a round of this task."""
    curious = MaskedPlan.of(task.plan).mode == "curious"
    return [step for step in STAGES if not (curious and step == "confirm")]


def expire(server: AggregatorProcess, task: TestTask, number: int) -> None:
    """The deadline of the stage that the round is in is over now: no test waits for one, or is too slow for it."""
    database = Database(server.database_url, connections=1)
    ended = update(RoundRow).where(RoundRow.task_id == task.id, RoundRow.number == number).values(deadline=0.0)
    with database.write() as session:
        assert changed_rows(session, ended) == 1
    database.close()


def play(
    server: AggregatorProcess,
    task: TestTask,
    clients: Mapping[int, MaskedClient],
    number: int = 1,
    drop: Mapping[int, Step] | None = None,
    until: Step | None = None,
    value: Callable[[int], float] = lambda index: 2.0**index,
) -> None:
    """Client `index` contributes `value(index)`, and is silent from the step `drop[index]` on. All take every step
    before `until`; the deadline of a stage comes when those who stay have delivered."""
    drop, here = drop or {}, dict(clients)
    for step in steps_of(task):
        if step == until:
            return
        if task.wait_round(number, STAGES[step], "failed")["state"] == "failed":
            return
        leaving = {index for index in here if drop.get(index) == step}
        here = {index: one for index, one in here.items() if index not in leaving}
        for index, one in here.items():
            answer = one.take(number, step, value(index))
            assert answer.status_code == 201, (step, index, answer.text)
        if leaving:
            expire(server, task, number)
