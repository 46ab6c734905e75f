"""Item catalogues: created with a task, uploaded, waited for, downloaded by members; kept by restarts and backups."""

from __future__ import annotations

import hashlib
import io
import json
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import httpx
import pytest

from aggregator_service.storage.database import Database
from aggregator_service.storage.directory import DirectoryBlobs
from aggregator_service.storage.stores import collect_orphans
from aggregator_service.tasks.files import read_items
from client_sdk import Operator, task_request
from client_sdk.agreement.terms import AgreedTerms
from client_sdk.api.calls import ApiCalls
from client_sdk.api.http import SyncDriver
from client_sdk.errors import ContractBroken, DigestMismatch
from protocols.catalogue import Catalogue
from protocols.errors import ParameterError
from protocols.messages import Schedule, TaskView
from tests.support.api import Api, TestTask, aggregator_inside, digest_field, refusal, slug
from tests.support.server import AggregatorProcess
from tests.support.world import request_json

ITEMS = Catalogue(("SKU-1", "SKU-2", "a,b", "ü", "0"), ("Kettle", "", 'The "big" pot', "Löffel", "Zero"))
NOBODY = "members: none is enrolled, and the first round needs {}"
WAITS = "the item catalogue: the operator has not uploaded it"

Run = Callable[..., str]


def put(task: TestTask, body: bytes, **changes: str) -> httpx.Response:
    return task.api.put(f"{task.path}/catalogue", body, **changes)


def get(task: TestTask, headers: dict[str, str]) -> httpx.Response:
    return task.api.http.get(f"{task.path}/catalogue", headers=headers)


def test_round_1_waits_for_the_catalogue_and_members_download_it(api: Api) -> None:
    task = api.create_task("awaited", cohort=2, catalogue_digest=ITEMS.digest)
    assert task.view["catalogue_digest"] == ITEMS.digest
    member, _ = task.enrol(2)
    time.sleep(0.3)
    assert api.http.get(f"{task.path}/rounds/1", headers=api.operator).status_code == 404
    assert task.now()["waiting_for"] == WAITS
    assert slug(get(task, member.auth)) == "not-found"
    assert refusal(member.deliver("catalogue", ITEMS.encode())) == (403, "forbidden")
    assert put(task, ITEMS.encode()).status_code == 201
    task.wait_round(1, "collecting")
    assert task.now()["waiting_for"] is None
    found = get(task, member.auth)
    assert Catalogue.decode(found.content) == ITEMS
    assert found.headers["content-digest"] == digest_field(ITEMS.encode())
    assert found.headers["cache-control"] == "private, immutable"
    again = get(task, {**member.auth, "If-None-Match": found.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    (stranger,) = api.create_task("elsewhere", cohort=2).enrol(1)
    assert get(task, stranger.auth).status_code == 404
    assert get(task, {"Authorization": f"Bearer {api.invite(task.id)}"}).status_code == 401


def test_one_catalogue_is_stored_once(api: Api) -> None:
    task = api.create_task("once", cohort=2, catalogue_digest=ITEMS.digest)
    other = Catalogue(ITEMS.ids, ("",) * 5).encode()
    assert refusal(put(task, other)) == (422, "invalid-parameters")
    assert slug(put(task, ITEMS.encode(), Content_Digest=digest_field(other))) == "invalid-parameters"
    assert slug(put(task, other, Content_Digest=digest_field(ITEMS.encode()))) == "bad-digest"
    assert task.now()["waiting_for"] == WAITS
    assert [put(task, ITEMS.encode()).status_code for _ in range(2)] == [201, 200]
    assert refusal(put(task, other)) == (409, "conflict")
    assert get(task, api.operator).content == ITEMS.encode()


def test_what_is_no_catalogue_of_the_task_is_refused(api: Api) -> None:
    task = api.create_task("too-many", cohort=2, items=6, catalogue_digest=ITEMS.digest)
    answer = put(task, ITEMS.encode())
    assert (answer.status_code, answer.json()["fault"]) == (422, "client")
    assert "5 lines and the recipe has 6 items: the operator must" in answer.json()["detail"]
    assert task.now()["waiting_for"] == WAITS
    body = b"a\tA\nb\nc\t\n"
    task = api.create_task("broken", cohort=2, items=3, catalogue_digest=hashlib.sha256(body).hexdigest())
    answer = put(task, body)
    assert refusal(answer) == (400, "bad-request")
    assert answer.json()["detail"] == "line 2 of the catalogue: no tab between id and title"
    long = b"a\t" + b"A" * (3 * 2306) + b"\n"
    named = api.create_task("long", cohort=2, items=3, catalogue_digest=hashlib.sha256(long).hexdigest())
    assert refusal(put(named, long)) == (413, "body-too-long")


def test_tasks_without_a_catalogue(api: Api) -> None:
    task = api.create_task("numbers-only", cohort=2)
    assert "catalogue_digest" not in task.view
    assert slug(put(task, ITEMS.encode())) == "conflict"
    assert slug(get(task, api.operator)) == "not-found"
    request = request_json("no-items", "arrays", {"shapes": {"a": [3]}}, catalogue_digest=ITEMS.digest)
    refused = api.http.post("/v1/tasks", json=request, headers=api.operator)
    assert refused.status_code == 422 and "no numbered items" in refused.text


def test_an_operator_creates_a_task_with_its_catalogue(server: AggregatorProcess) -> None:
    schedule, parameters = Schedule(cohort_size=3, rounds=1), {"items": len(ITEMS), "dim": 3}
    with Operator(server.url, server.operator_token) as operator:
        request = task_request("by-sdk", "fedmf", "plain", schedule, parameters, catalogue=ITEMS)
        with pytest.raises(ParameterError, match="pass the same one"):
            operator.create_task(request)
        view = operator.create_task(request, ITEMS)
        assert (view.catalogue_digest, view.waiting_for) == (ITEMS.digest, NOBODY.format(3))
        operator.put_catalogue(view.task_id, ITEMS)
        assert downloaded(server, view.task_id) == ITEMS


def downloaded(server: AggregatorProcess, task_id: str) -> Catalogue | None:
    """The catalogue as the SDK downloads it, checked against the digest of `ITEMS`."""
    calls = ApiCalls(server.url, server.operator_token)
    with SyncDriver() as driver:
        body = driver.run(calls.catalogue(task_id, len(ITEMS), ITEMS.digest))
    return None if body is None else Catalogue.decode(body)


def test_attack_another_catalogue_than_the_one_agreed_to(server: AggregatorProcess, api: Api) -> None:
    """A server that changes the digest in the terms is refused, and so is another file under the agreed digest."""
    task = api.create_task("swapped", cohort=2, catalogue_digest=ITEMS.digest)
    assert downloaded(server, task.id) is None
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
        downloaded(server, other.id)


def create(run: Run, data: Path, file: Path, *more: str, status: int = 0) -> str:
    arguments = [
        "--recipe", "fedmf", "--mechanism", "plain", "-r", "dim=3", "-s", "cohort_size=2", "-s", "min_clients=2",
        "--items", str(file), "--data-dir", str(data), *more,
    ]  # fmt: skip
    return run("task", "create", "shop", *arguments, status=status)


def test_the_command_reads_a_file_and_a_restart_and_a_backup_keep_it(tmp_path: Path, run: Run) -> None:
    data, copy, file = tmp_path / "data", tmp_path / "copy", tmp_path / "items.csv"
    file.write_text('\ufeffid,title\nSKU-1,Kettle\nSKU-2,\n"a,b","The ""big"" pot"\nü,Löffel\n0,Zero\n', "utf-8")
    run("init", "--data-dir", str(data))
    assert "items is 6, but the file has 5 items" in create(run, data, file, "-r", "items=6", status=1)
    made = json.loads(create(run, data, file))
    assert made["recipe"]["parameters"]["items"] == 5
    assert (made["catalogue_digest"], made["waiting_for"]) == (ITEMS.digest, NOBODY.format(2))
    shown = json.loads(run("task", "show", "shop", "--data-dir", str(data)))
    assert shown["catalogue_digest"] == ITEMS.digest
    create(run, data, file, status=1)  # the name is taken: its blob is deleted again
    assert len(list((data / "blobs" / "catalogues").iterdir())) == 1
    with aggregator_inside(data) as api:
        task = TestTask(api, made)
        assert get(task, api.operator).content == ITEMS.encode()
        assert "1 blobs" in run("backup", str(copy), "--data-dir", str(data))
    with closing(Database(f"sqlite:///{data / 'hushrec.db'}", 1)) as database:
        assert collect_orphans(database, DirectoryBlobs(data / "blobs")) == 0
    with aggregator_inside(copy) as api:
        task = TestTask(api, made)
        assert get(task, api.operator).content == ITEMS.encode()
        task.begin(2)


ERRORS = {
    "id,title\na,A\nb\n": "line 3: 1 fields; expected 2, as in the heading",
    "id,title\na,A\n\nb,B\n": "line 3: 0 fields",
    "item,title\na,A\nb,B\na,C\n": "line 4: the id 'a' is on line 2 already",
    "id,title\n,A\n": "line 2: the id is empty",
    'id,title\na,"A\tB"\n': "line 2: the title has a control character",
    "a\nb,B\n": "line 2: 2 fields; expected one id",
    "id\na\n": "line 1: a heading, or an item?",
    "code,name\na,A\n": "line 1: write the heading id,title",
    "sku\na\n": "line 1: a heading, or an item?",
    "sku,asin\na,A\n": "line 1: two columns look like the item, 'sku' and 'asin': rename the ids' one to id",
    "id;title\na;A;B\n": "line 2: 3 fields; expected 2",
    'id,title\na,"A" B\n': "line 2: not CSV",
    f"id,labels\na,{'b' * 1024}\n": "line 2: the labels have more than 1024 bytes",
    "id,title\n": "has no items",
    "id,title\na,\udcff\n": "is not UTF-8",
}


def test_errors_of_a_file_name_the_line_and_a_file_may_have_one_id_a_line(tmp_path: Path, run: Run) -> None:
    data, file = tmp_path / "data", tmp_path / "items.csv"
    for text, error in ERRORS.items():
        file.write_text(text, "utf-8", errors="surrogateescape")
        assert error in create(run, data, file, status=1)
    for text in ("SKU;Preis;Bezeichnung\n SKU-1 ;3,50;Topf\nSKU-2;4;\n", "id\ttitle\nSKU-1\tTopf\nSKU-2\t\n"):
        assert read_items(io.StringIO(text, newline=""), "items") == Catalogue(("SKU-1", "SKU-2"), ("Topf", ""))
    text = "id,title,Genres\na,A,Tea | Green tea|Tea\nb,B,\n"
    assert read_items(io.StringIO(text, newline=""), "items").labels == (("Green tea", "Tea"), ())
    file.write_text("SKU-1\nSKU-2\n")
    run("init", "--data-dir", str(data))
    digest = json.loads(create(run, data, file, "-r", "items=2"))["catalogue_digest"]
    assert digest == Catalogue(("SKU-1", "SKU-2"), ("", "")).digest
