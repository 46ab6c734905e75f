"""A tiny HTTP client of the aggregator, for its own tests: no retries, no cleverness, every answer visible."""

from __future__ import annotations

import base64
import hashlib
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import httpx
import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from fastapi.encoders import jsonable_encoder
from fastapi.testclient import TestClient
from numpy.typing import NDArray
from opentelemetry.trace import TracerProvider
from sqlalchemy import select, update

from aggregator_service.app import create_app
from aggregator_service.clock import Clock
from aggregator_service.services import Services
from aggregator_service.settings import Settings
from aggregator_service.storage.database import Database, changed_rows
from aggregator_service.storage.schema import ClientRow, RoundRow
from protocols.codec import b64decode, b64encode
from protocols.contribution import plan_of_task
from protocols.crypto.aggregate_chain import AggregateChain, extend_chain
from protocols.crypto.envelope import enrolment_message
from protocols.crypto.keys import Keyring
from protocols.crypto.sealing import SealingKey
from protocols.messages import TaskView
from protocols.messages.stages import RoundState
from protocols.recipes.base import Recipe, RoundSpec
from protocols.recipes.registry import recipe
from protocols.sums.base import Mechanism, SumPlan
from protocols.sums.registry import mechanism
from protocols.task_terms import broadcast_digest, model_of_round
from tests.support.server import (
    OPERATOR_TOKEN,
    RECHECK_SECONDS,
    TLS,
    AggregatorProcess,
    put_empty_database,
    running_aggregator,
    tuned,
)
from tests.support.signing import SIGNED, Signatures, enrolled_as, know_identity
from tests.support.world import request_json

Kind = TypeVar("Kind", bound="TestMember")


def digest_field(body: bytes) -> str:
    return f"sha-256=:{base64.b64encode(hashlib.sha256(body).digest()).decode()}:"


def slug(answer: httpx.Response) -> str:
    return str(answer.json()["type"]).rpartition(":")[2]


def refusal(answer: httpx.Response) -> tuple[int, str]:
    """Status and problem of a refusal."""
    return answer.status_code, slug(answer)


def checked(answer: httpx.Response, status: int = 200) -> httpx.Response:
    """The answer, which must have this status."""
    assert answer.status_code == status, answer.text
    return answer


def detail(answer: httpx.Response, status: int) -> str:
    """What a refusal with this status says in words."""
    return str(checked(answer, status).json()["detail"])


def signed_enrolment(
    invitation: str,
    identity: Ed25519PrivateKey | None = None,
    mailbox: SealingKey | None = None,
    device_group: int | None = None,
    certificate: bytes | None = None,
    renewal: int = 0,
) -> dict[str, Any]:
    """The JSON of an honest enrolment, by default with new keys; from its answer on, `SIGNED` signs for the client."""
    identity, mailbox = identity or Ed25519PrivateKey.generate(), mailbox or SealingKey.generate()
    know_identity(identity)
    identity_key, mailbox_key = identity.public_key().public_bytes_raw(), mailbox.name
    message = enrolment_message(invitation, identity_key, mailbox_key, device_group, certificate, renewal)
    return {
        "invitation": invitation,
        "identity_key": b64encode(identity_key),
        "sealing_key": b64encode(mailbox.public),
        "signature": b64encode(identity.sign(message)),
        **({"renewal": renewal} if renewal else {}),
        **({} if device_group is None else {"group": device_group}),
        **({} if certificate is None else {"certificate": b64encode(certificate)}),
    }


def piece_fields(start: int, piece: bytes, whole: bytes | None = None) -> dict[str, str]:
    """The header fields of a piece of an upload, the last one if it is given the `whole`."""
    return {
        "Content-Type": "application/partial-upload",
        "Upload-Offset": str(start),
        "Upload-Complete": "?0" if whole is None else "?1",
        "Content-Digest": digest_field(piece),
        **({} if whole is None else {"Repr-Digest": digest_field(whole)}),
    }


def _fields(headers: dict[str, str]) -> dict[str, str]:
    return {name.replace("_", "-"): value for name, value in headers.items()}


class Api:
    """An operator's view of one aggregator."""

    def __init__(self, url: str, operator_token: str, database_url: str = "", http: httpx.Client | None = None) -> None:
        """database_url: for `TestTask.expire`. http: sends the requests, by default a new client for `url`."""
        self.http = http or httpx.Client(base_url=url, timeout=60, auth=SIGNED, verify=TLS)
        self.operator = {"Authorization": f"Bearer {operator_token}"}
        self.database_url = database_url
        self._made: list[TestTask] = []

    @classmethod
    def of(cls, server: AggregatorProcess, http: httpx.Client | None = None) -> Api:
        """The operator of a server."""
        return cls(server.url, server.operator_token, server.database_url, http)

    def close(self) -> None:
        self.http.close()

    def close_tasks(self) -> None:
        """Close the tasks that it made and that are open: a server looks at each open task several times a second."""
        for task in self._made:
            if task.now()["state"] == "open":
                task.close()

    def found(self, path: str, **query: Any) -> dict[str, Any]:
        """What an operator reads there."""
        return dict(checked(self.http.get(path, headers=self.operator, params=query or None)).json())

    def put(self, path: str, body: bytes, auth: dict[str, str] | None = None, **changes: str) -> httpx.Response:
        """PUT a body with its digest, by default as an operator. changes: other headers, with _ for -."""
        headers = {"Content-Digest": digest_field(body), **_fields(changes), **(auth or self.operator)}
        return self.http.put(path, content=body, headers=headers)

    def enrol(self, *who: Any, **how: Any) -> httpx.Response:
        """Send a `signed_enrolment` with these arguments."""
        return self.http.post("/v1/enrolments", json=signed_enrolment(*who, **how))

    def create_task(
        self,
        name: str = "primes",
        *,
        items: int = 5,
        dim: int = 3,
        clip: float = 1000.0,
        cohort: int = 4,
        recipe_name: str = "fedmf",
        mechanism_name: str = "plain",
        mechanism_parameters: dict[str, Any] | None = None,
        recipe_parameters: dict[str, Any] | None = None,
        **changes: Any,
    ) -> TestTask:
        """A task, by default a small plain FedMF one. changes: of the request, and of its schedule."""
        parameters = {"items": items, "dim": dim, "clip": clip, **(recipe_parameters or {})}
        if recipe_name in ("colr", "fedmf", "pfedclr", "scolr", "svd", "topk"):
            parameters.setdefault("row_clip", 1e6)  # clients of these tests send powers of two
        schedule = {"rounds": 1, "cohort_size": cohort, **changes}
        return self.task_of(
            request_json(name, recipe_name, parameters, mechanism_name, mechanism_parameters, **schedule)
        )

    def begin(self, cohort: int, name: str = "primes", **changes: Any) -> tuple[TestTask, list[TestMember]]:
        """A task and as many members as a cohort has, once round 1 collects."""
        task = self.create_task(name, cohort=cohort, **changes)
        return task, task.begin(cohort)

    def task_of(self, request: dict[str, Any]) -> TestTask:
        answer = self.http.post("/v1/tasks", json=jsonable_encoder(request), headers=self.operator)
        self._made.append(TestTask(self, checked(answer, 201).json()))
        return self._made[-1]

    def invite(self, task_id: str, uses: int = 1, role: str = "member", expires_seconds: float = 600.0) -> str:
        body = {"uses": uses, "role": role, "expires_seconds": expires_seconds}
        answer = self.http.post(f"/v1/tasks/{task_id}/invitations", json=body, headers=self.operator)
        return str(checked(answer, 201).json()["invitation"])


class TestTask:
    """A task and the plan that client and server share."""

    __test__ = False

    def __init__(self, api: Api, view: dict[str, Any]) -> None:
        self.api, self.view, self.id = api, view, str(view["task_id"])
        self.path = f"/v1/tasks/{self.id}"
        self.recipe: Recipe = recipe(view["recipe"]["name"], view["recipe"]["parameters"])
        self.mechanism: Mechanism = mechanism(view["mechanism"]["name"])
        parameters, cohort = view["mechanism"]["parameters"], view["schedule"]["cohort_size"]
        self.plan: SumPlan = plan_of_task(self.mechanism, parameters, self.recipe.layout(), cohort)
        self.contexts: dict[int, tuple[list[int], Any]] = {}
        """Levels of a round and, for its clients, its context or committee, by number."""
        self.handouts: dict[tuple[int, str], bytes] = {}
        """What all clients of a masked round get, by number and kind."""
        self.chains: dict[int, dict[str, str]] = {}
        """The headers that all contributions to a round state, by number."""

    @property
    def spec_seed(self) -> bytes:
        return b64decode(self.view["seed"], 32)

    def spec(self, number: int) -> RoundSpec:
        spec = self.recipe.round_spec(self.spec_seed, number)
        if not self.recipe.most_levels(spec.sum_index):
            return spec
        return replace(spec, levels=tuple(self.wait_round(number, *RoundState)["levels"]))

    def plan_of(self, step: int) -> SumPlan:
        """How sum `step` is laid out."""
        parameters, cohort = self.view["mechanism"]["parameters"], self.view["schedule"]["cohort_size"]
        return self.mechanism.plan(parameters, self.recipe.layout(step), cohort)

    def enrol(self, count: int, role: str = "member", device_group: int | None = None) -> list[TestMember]:
        """`count` new members with one invitation."""
        return self.enrol_as(TestMember, count, role, device_group)

    def enrol_as(
        self, kind: type[Kind], count: int, role: str = "member", device_group: int | None = None
    ) -> list[Kind]:
        """`count` new members of class `kind` with one invitation, in order of enrolment."""
        invitation = self.api.invite(self.id, uses=count, role=role)
        members = []
        for _ in range(count):
            mailbox = SealingKey.generate()
            made = checked(self.api.enrol(invitation, mailbox=mailbox, device_group=device_group), 201).json()
            assert made["role"] == role
            members.append(kind(self, made["client_id"], made["token"], mailbox.name))
        return members

    def begin(self, count: int) -> list[TestMember]:
        """`count` new members, once round 1 collects."""
        members = self.enrol(count)
        self.wait_round(1, "collecting")
        return members

    def found(self, path: str = "", **query: Any) -> dict[str, Any]:
        """What an operator reads at a path below the task's."""
        return self.api.found(f"{self.path}/{path}".rstrip("/"), **query)

    def now(self) -> dict[str, Any]:
        return self.found()

    def post(self, path: str, body: Any = None, auth: dict[str, str] | None = None) -> httpx.Response:
        """POST to a path below the task's, by default as an operator."""
        return self.api.http.post(f"{self.path}/{path}", json=body, headers=self.api.operator if auth is None else auth)

    def close(self) -> None:
        checked(self.post("close"))

    def revoke(self, member: TestMember) -> dict[str, Any]:
        answer = self.api.http.delete(f"{self.path}/members/{member.client_id}", headers=self.api.operator)
        return dict(checked(answer).json())

    def cohort(self, number: int) -> set[str]:
        return set(self.found(f"rounds/{number}/cohort")["clients"])

    def round(self, number: int) -> dict[str, Any]:
        return self.found(f"rounds/{number}")

    def retired(self) -> set[str]:
        """The ids of the clients that are asked no more, because they were found at fault."""
        query = select(ClientRow.id).where(ClientRow.task_id == self.id, ClientRow.retired_in.is_not(None))
        with closing(Database(self.api.database_url, connections=1)) as database, database.read() as session:
            return set(session.scalars(query))

    def expire(self, number: int) -> None:
        """The deadline of the stage that the round is in is over now: no test waits for one, or is too slow for it."""
        ended = update(RoundRow).where(RoundRow.task_id == self.id, RoundRow.number == number).values(deadline=0.0)
        with closing(Database(self.api.database_url, connections=1)) as database, database.write() as session:
            assert changed_rows(session, ended) == 1

    def wait_round(self, number: int, *states: str, seconds: float = 120.0) -> dict[str, Any]:
        """Round `number` once it is in one of `states`."""
        end, pause = time.monotonic() + seconds, 0.02
        seen: object = "no round"
        while time.monotonic() < end:
            answer = self.api.http.get(f"{self.path}/rounds/{number}", headers=self.api.operator)
            if answer.status_code == 200:
                seen = answer.json()
                if seen["state"] in states:
                    return dict(seen)
            time.sleep(pause)
            pause = min(1.3 * pause, 0.2)  # a question takes processor time, and what lasts longer is not urgent
        raise AssertionError(f"round {number} did not become {states}: {seen}")

    def chain(self, number: int) -> dict[str, str]:
        """The header that states the aggregates before a round; none where contributions state nothing."""
        if number not in self.chains:
            self.chains[number] = self._chain(number)
        return self.chains[number]

    def _chain(self, number: int) -> dict[str, str]:
        asked = self.api.http.get(f"{self.path}/rounds/{number}", headers=self.api.operator)
        if asked.status_code == 200 and asked.json()["aggregate_chain"] is None:
            return {}
        chain = AggregateChain.first(self.id)
        for view in self.found("rounds", state="complete")["rounds"]:
            if view["number"] < number:
                digest, state = (bytes.fromhex(view[name] or "") for name in ("aggregate_digest", "state_digest"))
                chain = AggregateChain(chain.digest, extend_chain(chain.digest, view["number"], digest, state))
        return {"Aggregate-Chain": chain.digest.hex()}

    def aggregate(self, number: int) -> bytes:
        answer = checked(self.api.http.get(f"{self.path}/rounds/{number}/aggregate", headers=self.api.operator))
        assert answer.headers["content-digest"] == digest_field(answer.content)
        return answer.content

    def opened(self, number: int, keyring: Keyring | None = None) -> NDArray[np.float64]:
        """The sum of a completed round."""
        survivors = self.round(number)["survivors"]
        return self.mechanism.open(self.plan, self.aggregate(number), survivors, keyring)

    def assert_sum(self, number: int, values: Iterable[float]) -> None:
        """The round releases the sum of contributions of these values, within the plan's error; counts are exact."""
        given = list(values)
        assert self.wait_round(number, "complete", "failed")["survivors"] == len(given)
        total = self.opened(number)
        mask = np.concatenate([block.integral_mask() for block in self.plan.layout.blocks])
        assert np.array_equal(total[mask], np.full(mask.sum(), float(len(given))))
        assert np.allclose(total[~mask], sum(given), rtol=0, atol=max(self.plan.predicted_error, 1e-6))


@dataclass
class TestMember:
    """An enrolled client."""

    __test__ = False

    task: TestTask
    client_id: str
    token: str
    mailbox_key: bytes = b""
    """The public one, 32 bytes; empty where no test needs it."""

    @property
    def auth(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.token}"}

    @property
    def identity(self) -> Ed25519PrivateKey:
        return enrolled_as(self.token)[2]

    def get(self, path: str) -> httpx.Response:
        """GET a path below the task's."""
        return self.task.api.http.get(f"{self.task.path}/{path}".rstrip("/"), headers=self.auth)

    def found(self, path: str) -> httpx.Response:
        """The answer to GET of a path below the task's, which exists."""
        return checked(self.get(path))

    def view(self, number: int) -> dict[str, Any]:
        return dict(self.found(f"rounds/{number}").json())

    def fetch(self, number: int, what: str) -> bytes:
        """Something that the server hands out in a round."""
        return self.found(f"rounds/{number}/{what}").content

    def deliver(self, path: str, body: bytes) -> httpx.Response:
        """PUT a body to a path below the task's."""
        return self.task.api.put(f"{self.task.path}/{path}", body, self.auth)

    def model_digest(self, round_: dict[str, Any]) -> bytes:
        """The digest of what a round starts from, of what the server shows this client (32 bytes)."""
        task, latest = TaskView.model_validate(self.found("").json()), self.get("snapshots/latest")
        assert latest.status_code in (200, 404), latest.text
        found = latest.json() if latest.status_code == 200 else None
        model = None if found is None else model_of_round(found["round"], bytes.fromhex(found["digest"]))
        return broadcast_digest(task, round_["step"], model, round_["levels"])

    def path(self, number: int) -> str:
        return f"{self.task.path}/rounds/{number}/contributions/{self.client_id}"

    def contribution(self, number: int, value: float, keyring: Keyring | None = None) -> bytes:
        """A contribution whose every value is `value` (1 where the segment holds counts)."""
        task = self.task
        route = task.recipe.route(task.spec(number), self.client_id)
        blocks = task.plan.layout.contribution_blocks(route)
        vectors = [np.where(block.integral_mask(), 1.0, value) for block in blocks]
        return task.mechanism.seal(task.plan, route, vectors, keyring)

    def piece(self, start: int, piece: bytes, whole: bytes | None = None, **changes: str) -> httpx.Response:
        """PATCH a piece of the contribution to round 1, the last one if it is given the `whole`.

        changes: other headers, with _ for -.
        """
        headers = self.auth | piece_fields(start, piece, whole) | _fields(changes)
        return self.task.api.http.patch(self.path(1), content=piece, headers=headers)

    def offset(self) -> int:
        """How much of the contribution to round 1 the server has."""
        return int(self.task.api.http.head(self.path(1), headers=self.auth).headers["upload-offset"])

    def put(self, number: int, body: bytes, headers: dict[str, str] | None = None) -> httpx.Response:
        """Upload a body with its true digest, unless `headers` say otherwise."""
        own = {**self.auth, "Content-Digest": digest_field(body), **self.task.chain(number)}
        return self.task.api.http.put(self.path(number), content=body, headers=own | (headers or {}))


def contribute(
    members: Sequence[TestMember], number: int, value: float | None = None, *, patience: float = 0.0
) -> None:
    """All contribute `value`; by default the one at place `index` contributes 2^index.

    patience: for so many seconds a member repeats its request while the server is not available.
    """
    for index, member in enumerate(members):
        body = member.contribution(number, 2.0**index if value is None else value)
        end = time.monotonic() + patience
        while (answer := member.put(number, body)).status_code == 503 and time.monotonic() < end:
            time.sleep(0.05)
        assert answer.is_success, answer.text


@contextmanager
def serving(data_dir: Path, **settings: str | int | float | Path) -> Iterator[tuple[AggregatorProcess, Api]]:
    """An aggregator that runs within the block, and an operator of it. Settings: see `AggregatorProcess`."""
    with running_aggregator(data_dir, **settings) as server, closing(Api.of(server)) as api:
        yield server, api


@contextmanager
def aggregator_inside(
    data_dir: Path, *, clock: Clock | None = None, tracer_provider: TracerProvider | None = None, **settings: Any
) -> Iterator[Api]:
    """Run an aggregator within the block and yield an operator's client; settings: fields of `Settings` or `Tuning`."""
    own = tuned({"recheck_seconds": RECHECK_SECONDS, **settings})
    given = Settings(data_dir=data_dir, operator_token=OPERATOR_TOKEN, **own)
    if given.database_url is None:
        put_empty_database(data_dir)
    with ThreadPoolExecutor(1) as executor:
        app = create_app(given, clock=clock, executor=executor, tracer_provider=tracer_provider)
        with TestClient(app, base_url="http://test") as http:
            http.auth = Signatures(clock.now) if clock is not None else SIGNED
            yield Api("http://test", OPERATOR_TOKEN, given.database, http)


def services(api: Api) -> Services:
    return api.http.app.state.services
