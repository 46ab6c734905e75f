"""A database belongs to one blob store; a store or a database that is not there for a while loses no round."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import httpx
import pytest

from aggregator_service.migrations.migrate import migrate
from aggregator_service.rounds.outages import LONGEST_GAP
from aggregator_service.storage.blobs import BlobMissingError, BlobStore, OtherStoreError, Piece, new_key
from aggregator_service.storage.database import Database
from aggregator_service.storage.directory import DirectoryBlobs
from aggregator_service.storage.stores import bind_store, open_store
from protocols.catalogue import Catalogue
from protocols.crypto.aggregate_chain import AggregateChain
from protocols.crypto.envelope import seal_snapshot
from tests.support.api import Api, TestMember, TestTask, aggregator_inside, contribute, services, slug
from tests.support.replicas import TestDatabase, wait_until
from tests.support.s3 import S3Server

COHORT = 4


@pytest.fixture(params=["directory", "s3"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], str]:
    """Makes locations of empty stores."""
    if request.param == "s3":
        return request.getfixturevalue("new_prefix")
    numbers = iter(range(9))
    return lambda: f"dir:{tmp_path / f'blobs-{next(numbers)}'}"


def test_a_database_keeps_its_store(sqlite: Database, place: Callable[[], str], tmp_path: Path) -> None:
    first, second = place(), place()

    def bind(location: str, to: Database = sqlite) -> BlobStore:
        return bind_store(to, open_store(location, tmp_path / "scratch"))

    bound = bind(first)
    assert bind(first) == bound
    bound.check()
    with pytest.raises(OtherStoreError, match="its id is missing"):
        bind(second)
    with pytest.raises(OtherStoreError, match="its id is missing"):
        bind(second)  # the refusal has not made a store of it
    open_store(second, tmp_path / "scratch").prepare()
    with pytest.raises(OtherStoreError, match=second):
        bind(second)
    with closing(Database(f"sqlite:///{tmp_path / 'two.db'}", 1)) as two:  # a store may belong to several databases
        migrate(two)
        bind(first, two).check()
    bound.check()


def test_a_store_in_its_place_has_lost_no_blob(sqlite: Database, place: Callable[[], str], tmp_path: Path) -> None:
    location, scratch = place(), tmp_path / "scratch"
    bound = bind_store(sqlite, open_store(location, scratch))
    key, room = new_key("contributions", "t_1", 1), memoryview(bytearray(1))
    for act in (
        lambda: bound.read_into(key, room),
        lambda: bound.view(key, "0" * 64),
        lambda: bound.pieces([Piece(key, 0, 1)]),
    ):
        with pytest.raises(BlobMissingError, match="does not exist"):
            act()
    other = open_store(location, scratch).bound("0" * 32)
    for act in (
        other.check,
        other.prepare,
        lambda: other.read_into(key, room),
        lambda: other.view(key, "0" * 64),
        lambda: other.pieces([Piece(key, 0, 1)]),
        *([lambda: other.put(key, b"abc")] if isinstance(other, DirectoryBlobs) else []),
    ):
        with pytest.raises(OtherStoreError):
            act()


def test_commands_without_blobs_need_no_store(postgres: TestDatabase, tmp_path: Path, run: Callable[..., str]) -> None:
    """An operator's machine has the database, and neither the directory nor the keys of the bucket."""
    url = postgres.schema()
    with closing(Database(url, 1)) as database:
        migrate(database)
        bind_store(database, open_store(f"dir:{tmp_path / 'there'}", tmp_path))
    here = ("--database-url", url, "--data-dir", str(tmp_path / "here"))
    plain = ("--recipe", "fedmf", "--mechanism", "plain", "-r", "items=5", "-r", "dim=3")
    run("task", "create", "movies", *plain, *here)
    run("invite", "movies", *here)
    run("task", "close", "movies", *here)
    error = run("task", "create", "next", *plain, "--start-from", "movies", *here, status=1)
    assert "is not the one of this database" in error  # no server reads what it would write there
    assert not (tmp_path / "here").exists()


def begun(api: Api, sent: int = COHORT - 1, **schedule: float) -> tuple[TestTask, list[TestMember]]:
    """A round in which so many clients have contributed, in a task that the first failure ends."""
    task, members = api.begin(COHORT, max_failed_rounds=1, rounds=2, **schedule)
    contribute(members[:sent], 1)
    return task, members


def test_a_directory_that_is_exchanged_while_a_server_runs(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    blobs, away = tmp_path / "data" / "blobs", tmp_path / "away"
    with aggregator_inside(tmp_path / "data", inline_bytes=0) as api:
        task, _ = begun(api)
        blobs.rename(away)
        task.expire(1)  # before the outage is noticed: deadlines do not run in it
        open_store(f"dir:{blobs}", tmp_path).prepare()
        (blobs / "contributions").mkdir()
        time.sleep(1.1)  # `/readyz` keeps its result for a second
        answer = api.http.get("/readyz")
        assert (answer.status_code, answer.json()["detail"]) == (503, "the blob store is another than the database's")
        wait_until(lambda: "storage unavailable: the blob store" in caplog.text, "the engine reads no blob")
        assert task.round(1)["state"] == "folding"
        blobs.rename(tmp_path / "wrong")
        away.rename(blobs)
        assert task.wait_round(1, "complete")["survivors"] == COHORT - 1


def test_a_missing_blob_fails_its_round_and_not_the_task(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with aggregator_inside(tmp_path / "data", inline_bytes=0) as api:
        task, members = begun(api)
        next((tmp_path / "data" / "blobs" / "contributions").iterdir()).unlink()
        contribute(members[-1:], 1)
        failed = task.wait_round(1, "failed")
        assert failed["failure"] == "what a client sent is missing in the server's blob store"
        assert "a stored blob is missing, the round fails: the blob contributions/" in caplog.text
        assert "damaged" not in caplog.text
        task.wait_round(2, "collecting")


def finish(task: TestTask, members: list[TestMember]) -> None:
    """The other clients contribute, repeating refused requests; the sum is exact."""
    contribute(members, 1, patience=30.0)
    task.assert_sum(1, (2.0**index for index in range(COHORT)))
    time.sleep(1.1)
    assert task.api.http.get("/readyz").json() == {"status": "ready"}


def unavailable(answer: httpx.Response, part: str) -> None:
    """Check a problem document: it names the failed part, has Retry-After, and contains no secret."""
    assert (answer.status_code, slug(answer), answer.json()["fault"]) == (503, "unavailable", "server"), answer.text
    assert part in answer.json()["detail"]
    assert int(answer.headers["retry-after"]) >= 1


def test_the_database_fails_and_recovers(
    postgres: TestDatabase, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with aggregator_inside(tmp_path / "data", database_url=postgres.schema(), fold_batch=2) as api:
        task, members = begun(api, 2)
        with postgres.unavailable():
            time.sleep(1.1)  # `/readyz` keeps its result for a second
            unavailable(api.http.get("/readyz"), "database")
            unavailable(api.http.get(task.path, headers=api.operator), "database")
            unavailable(members[2].put(1, members[2].contribution(1, 4.0)), "database")
            assert api.http.get("/healthz").status_code == 200
        finish(task, members)
    assert "Traceback" not in caplog.text


def test_a_deadline_does_not_run_while_the_database_is_away(postgres: TestDatabase, tmp_path: Path) -> None:
    """The outage is longer than the stage: clients whose requests were refused meanwhile still contribute."""
    with aggregator_inside(tmp_path / "data", database_url=postgres.schema(), fold_batch=2) as api:
        task, members = begun(api, 2, collect_seconds=6)
        with postgres.unavailable():
            time.sleep(LONGEST_GAP + 2)
            unavailable(members[2].put(1, members[2].contribution(1, 4.0)), "database")
        finish(task, members)


def test_the_blob_store_fails_and_recovers(
    s3: S3Server, new_prefix: Callable[[], str], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with aggregator_inside(tmp_path / "data", blobs=new_prefix(), fold_batch=4, inline_bytes=0) as api:
        task, members = begun(api, 2)
        with s3.unavailable():
            time.sleep(1.1)
            unavailable(api.http.get("/readyz"), "blob store")
            assert (api.http.get("/healthz").status_code, task.now()["state"]) == (200, "open")
        finish(task, members)
    unsaid = {*s3.environment.values(), "Traceback"} - {"us-east-1", "tests"}
    assert not [words for words in unsaid if words in caplog.text]


def test_no_file_is_left_of_bodies_that_the_blob_store_does_not_take(tmp_path: Path) -> None:
    """Clients send them again until they are stored: each time the server receives a file."""
    blobs, uploads = tmp_path / "data" / "blobs", tmp_path / "data" / "uploads"
    with aggregator_inside(tmp_path / "data", inline_bytes=0) as api:
        keyed = api.create_task("keyed", mechanism_name="ckks", clip=0.5, cohort=2, min_clients=2, rounds=2)
        keyring, (holder,), members = (
            keyed.mechanism.generate_keyring(keyed.plan),
            keyed.enrol(1, "holder"),
            keyed.enrol(2),
        )
        for member in members:
            assert holder.deliver(f"keyring/{member.client_id}", b"an envelope").status_code == 201
        keyed.wait_round(1, "collecting")
        for member in members:
            assert member.put(1, member.contribution(1, 0.25, keyring)).status_code == 201
        keyed.wait_round(1, "complete")
        (newcomer,) = keyed.enrol(1)
        state = bytes(keyed.recipe.state_bytes(1))
        sealed = seal_snapshot(state, AggregateChain.first(keyed.id), keyring.state_key, keyed.id, 1)
        whole, pieces = api.begin(2)[1]
        catalogue = Catalogue(("a", "b"), ("", ""))
        waiting = api.create_task("waiting", cohort=2, items=2, catalogue_digest=catalogue.digest)
        sent = {
            "envelope": lambda: holder.deliver(f"keyring/{newcomer.client_id}", b"an envelope"),
            "snapshot": lambda: members[0].deliver("snapshots/1", sealed),
            "contribution": lambda: whole.put(1, whole.contribution(1, 1.0)),
            "chunk": lambda: pieces.piece(0, pieces.contribution(1, 2.0)[:20]),
            "catalogue": lambda: api.put(f"{waiting.path}/catalogue", catalogue.encode()),
        }
        blobs.rename(tmp_path / "away")
        for _ in range(2):
            assert {name: send().status_code for name, send in sent.items()} == dict.fromkeys(sent, 503)
        assert list(uploads.iterdir()) == []
        (tmp_path / "away").rename(blobs)
        stored = dict.fromkeys(sent, 201) | {"chunk": 204}
        assert {name: send().status_code for name, send in sent.items()} == stored


def test_two_servers_over_one_storage(
    postgres: TestDatabase, new_prefix: Callable[[], str], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A long poll at one ends at once with a change at the other."""
    shared = {"database_url": postgres.schema(), "blobs": new_prefix(), "fold_batch": 4}
    with (
        aggregator_inside(tmp_path / "first", inline_bytes=0, **shared) as api,
        # longer than the test takes: only a notification can end the poll
        aggregator_inside(tmp_path / "second", recheck_seconds=60, **shared) as other,
        ThreadPoolExecutor(1) as pool,
    ):
        for path in ("/v1/tasks/t%00x", "/v1/tasks/t%00x/rounds/1", "/v1/tasks?name=a%00b"):
            answer = api.http.get(path, headers=api.operator)  # a character that PostgreSQL does not store
            assert answer.status_code in ((200, 400, 422) if "?" in path else (400, 404, 422)), answer.text
        assert "Traceback" not in caplog.text
        task, members = api.begin(COHORT)
        known = {**members[0].auth, "If-None-Match": members[0].found("rounds/current").headers["etag"]}
        poll = pool.submit(other.http.get, f"{task.path}/rounds/current?wait=30", headers=known)
        time.sleep(0.5)
        assert not poll.done()
        contribute(members, 1)
        assert poll.result(timeout=20).status_code == 200
        task.assert_sum(1, (2.0**index for index in range(COHORT)))
        assert sorted(key.partition("/")[0] for key in services(api).blobs.keys()) == ["aggregates", "snapshots"]  # noqa: SIM118
