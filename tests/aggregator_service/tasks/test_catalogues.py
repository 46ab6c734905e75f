"""Item catalogues: created with a task, uploaded, waited for, downloaded by members."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator

import httpx
import pytest

from client_sdk import Operator, task_request
from client_sdk.agreement.terms import AgreedTerms
from client_sdk.api.calls import ApiCalls
from client_sdk.api.drivers import SyncDriver
from client_sdk.errors import ContractBroken, DigestMismatch, InvalidParameters
from protocols.catalogue import Catalogue
from protocols.errors import ParameterError
from protocols.messages import Schedule, TaskView
from tests.support.api import Api, TestTask, digest_field
from tests.support.server import AggregatorProcess, running_aggregator

ITEMS = Catalogue(("SKU-1", "SKU-2", "a,b", "ü", "0"), ("Kettle", "", 'The "big" pot', "Löffel", "Zero"))
WAITS = "the item catalogue: the operator has not uploaded it"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, storage: dict[str, str]) -> Iterator[AggregatorProcess]:
    with running_aggregator(tmp_path_factory.mktemp("catalogues") / "data", **storage) as running:
        yield running


def put(task: TestTask, body: bytes, digest: bytes | None = None) -> httpx.Response:
    headers = {**task.api.operator, "Content-Digest": digest_field(body if digest is None else digest)}
    return task.api.http.put(f"{task.path}/catalogue", content=body, headers=headers)


def get(task: TestTask, headers: dict[str, str]) -> httpx.Response:
    return task.api.http.get(f"{task.path}/catalogue", headers=headers)


def waiting(task: TestTask) -> str | None:
    view = task.api.http.get(task.path, headers=task.api.operator).json()
    return view["waiting_for"]  # type: ignore[no-any-return]


def slug(answer: httpx.Response) -> str:
    return str(answer.json()["type"]).rpartition(":")[2]


def test_round_1_waits_for_the_catalogue_and_members_download_it(api: Api) -> None:
    task = api.create_task("awaited", cohort=2, catalogue_digest=ITEMS.digest)
    assert task.view["catalogue_digest"] == ITEMS.digest
    member, _ = task.enrol(2)
    time.sleep(0.5)
    assert api.http.get(f"{task.path}/rounds/1", headers=api.operator).status_code == 404
    assert waiting(task) == WAITS
    assert slug(get(task, member.auth)) == "not-found"
    refused = api.http.put(
        f"{task.path}/catalogue",
        content=ITEMS.encode(),
        headers={**member.auth, "Content-Digest": digest_field(ITEMS.encode())},
    )
    assert (refused.status_code, slug(refused)) == (403, "forbidden")
    assert put(task, ITEMS.encode()).status_code == 201
    task.wait_round(1, "collecting")
    assert waiting(task) is None
    found = get(task, member.auth)
    assert Catalogue.decode(found.content) == ITEMS
    assert found.headers["content-digest"] == digest_field(ITEMS.encode())
    assert found.headers["cache-control"] == "private, immutable"
    again = get(task, {**member.auth, "If-None-Match": found.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    (stranger,) = api.create_task("elsewhere", cohort=2).enrol(1)
    assert get(task, stranger.auth).status_code == 404
    invitation = {"Authorization": f"Bearer {api.invite(task.id)}"}
    assert get(task, invitation).status_code == 401


def test_one_catalogue_is_stored_once(api: Api) -> None:
    task = api.create_task("once", cohort=2, catalogue_digest=ITEMS.digest)
    other = Catalogue(ITEMS.ids, ("",) * 5).encode()
    assert (put(task, other).status_code, slug(put(task, other))) == (422, "invalid-parameters")
    assert slug(put(task, ITEMS.encode(), other)) == "invalid-parameters"
    assert slug(put(task, other, ITEMS.encode())) == "bad-digest"
    assert waiting(task) == WAITS
    assert [put(task, ITEMS.encode()).status_code for _ in range(2)] == [201, 200]
    assert (put(task, other).status_code, slug(put(task, other))) == (409, "conflict")
    assert get(task, api.operator).content == ITEMS.encode()


def test_a_catalogue_of_another_number_of_items_is_refused(api: Api) -> None:
    task = api.create_task("too-many", cohort=2, items=6, catalogue_digest=ITEMS.digest)
    answer = put(task, ITEMS.encode())
    assert (answer.status_code, answer.json()["fault"]) == (422, "client")
    assert "5 lines and the recipe has 6 items: the operator must" in answer.json()["detail"]
    assert waiting(task) == WAITS


def test_what_is_no_catalogue_is_refused_by_line(api: Api) -> None:
    body = b"a\tA\nb\nc\t\n"
    task = api.create_task("broken", cohort=2, items=3, catalogue_digest=hashlib.sha256(body).hexdigest())
    answer = put(task, body)
    assert (answer.status_code, slug(answer)) == (400, "bad-request")
    assert answer.json()["detail"] == "line 2 of the catalogue: no tab between id and title"
    long = b"a\t" + b"A" * (3 * 1282) + b"\n"
    named = api.create_task("long", cohort=2, items=3, catalogue_digest=hashlib.sha256(long).hexdigest())
    assert (put(named, long).status_code, slug(put(named, long))) == (413, "body-too-long")


def test_tasks_without_a_catalogue(api: Api) -> None:
    task = api.create_task("numbers-only", cohort=2)
    assert "catalogue_digest" not in task.view
    assert slug(put(task, ITEMS.encode())) == "conflict"
    assert slug(get(task, api.operator)) == "not-found"
    request = {
        "name": "no-items",
        "recipe": {"name": "arrays", "parameters": {"shapes": {"a": [3]}}},
        "mechanism": {"name": "plain", "parameters": {}},
        "catalogue_digest": ITEMS.digest,
    }
    refused = api.http.post("/v1/tasks", json=request, headers=api.operator)
    assert refused.status_code == 422 and "no numbered items" in refused.text


def test_an_operator_creates_a_task_with_its_catalogue(server: AggregatorProcess) -> None:
    schedule, parameters = Schedule(cohort_size=3, rounds=1), {"items": len(ITEMS), "dim": 3}
    with Operator(server.url, server.operator_token) as operator:
        request = task_request("by-sdk", "fedmf", "plain", schedule, parameters, catalogue=ITEMS)
        with pytest.raises(ParameterError, match="pass the same one"):
            operator.create_task(request)
        view = operator.create_task(request, ITEMS)
        assert (view.catalogue_digest, view.waiting_for) == (ITEMS.digest, None)
        operator.put_catalogue(view.task_id, ITEMS)
        assert downloaded(server, view.task_id, ITEMS) == ITEMS
        fewer = task_request("by-sdk-2", "fedmf", "plain", schedule, {"items": 4, "dim": 3}, catalogue=ITEMS)
        with pytest.raises(InvalidParameters, match="5 lines"):
            operator.create_task(fewer, ITEMS)


def downloaded(server: AggregatorProcess, task_id: str, expected: Catalogue) -> Catalogue | None:
    """The catalogue as the SDK downloads it, checked against the digest of `expected`."""
    driver = SyncDriver()
    try:
        calls = ApiCalls(server.url, server.operator_token)
        body = driver.run(calls.catalogue(task_id, len(expected), expected.digest))
    finally:
        driver.close()
    return None if body is None else Catalogue.decode(body)


def test_attack_another_catalogue_than_the_one_agreed_to(server: AggregatorProcess, api: Api) -> None:
    """A server that changes the digest in the terms is refused, and so is another file under the agreed digest."""
    task = api.create_task("swapped", cohort=2, catalogue_digest=ITEMS.digest)
    assert downloaded(server, task.id, ITEMS) is None
    view = TaskView.model_validate(task.view)
    agreed = AgreedTerms.of(view)
    swapped = Catalogue(ITEMS.ids, (*ITEMS.titles[1:], ITEMS.titles[0]))
    for digest in (swapped.digest, None):
        with pytest.raises(ContractBroken, match="catalogue_digest changed"):
            agreed.require(view.model_copy(update={"catalogue_digest": digest}))
    agreed.require(view)
    other = api.create_task("served", cohort=2, catalogue_digest=swapped.digest)
    assert put(other, swapped.encode()).status_code == 201
    with pytest.raises(DigestMismatch):
        downloaded(server, other.id, ITEMS)
