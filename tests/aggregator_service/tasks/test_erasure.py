"""An erased member is named by no row and no blob, its rounds stay exact, and guards still know that it is somebody."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import obstore
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from obstore.store import S3Store
from sqlalchemy import select

from aggregator_service.dashboard.tallies import tallies
from aggregator_service.problems import Problem
from aggregator_service.storage.database import Database
from aggregator_service.storage.round_rows import list_rounds
from aggregator_service.storage.schema import Base, ClientRow, ContributionRow, TaskRow
from aggregator_service.tasks.erasure import erase_member, find_member
from aggregator_service.tasks.retention import erase_waiting
from protocols.codec import b64encode
from protocols.crypto.certificates import certify
from protocols.crypto.sealing import SealingKey
from protocols.messages import OrganiserPin
from protocols.recipes.colr import FedMF
from tests.support.api import (
    Api,
    TestTask,
    aggregator_inside,
    checked,
    contribute,
    detail,
    refusal,
    services,
)
from tests.support.masked import enrol_masked, masked_task, play
from tests.support.s3 import BUCKET
from tests.support.world import World, an_operator, sum_again


@dataclass(frozen=True)
class Storage:
    """Where a server keeps what it stores."""

    folder: Path
    """Of its data, and of its blobs unless they are below `prefix`."""
    database_url: str | None = None
    bucket: S3Store | None = None
    prefix: str = ""

    def files(self) -> Iterator[tuple[str, bytes]]:
        """Every file but the database, and every object, by its name."""
        for path in self.folder.rglob("*"):
            if path.is_file() and ".db" not in path.name:
                yield str(path), path.read_bytes()
        if self.bucket is not None:
            for page in obstore.list(self.bucket, self.prefix):
                for found in page:
                    yield found["path"], bytes(obstore.get(self.bucket, found["path"]).bytes())


@pytest.fixture(params=["sqlite and a directory", "postgresql and a directory", "postgresql and s3"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Storage:
    if request.param.startswith("sqlite"):
        return Storage(tmp_path)
    url = request.getfixturevalue("postgres").schema()
    if request.param.endswith("directory"):
        return Storage(tmp_path, url)
    place = request.getfixturevalue("new_prefix")()
    bucket: S3Store = request.getfixturevalue("s3").bucket()
    return Storage(tmp_path, url, bucket, place.rpartition("/")[2])


@pytest.fixture
def api(storage: Storage) -> Iterator[Api]:
    """A server over each kind of database and of store, which keeps no contribution in rows."""
    place = {} if storage.bucket is None else {"blobs": f"s3://{BUCKET}/{storage.prefix}"}
    url = {} if storage.database_url is None else {"database_url": storage.database_url}
    with aggregator_inside(storage.folder / "data", inline_bytes=0, **url, **place) as inside:
        yield inside


def names_of(session: Any, client_id: str) -> list[bytes]:
    """What names a member: its id, keys, certificate, subject and the hash of its token."""
    row = session.get_one(ClientRow, client_id)
    found = [client_id.encode(), row.identity_key, row.mailbox_key, row.token_hash.encode()]
    return [*found, *filter(None, (row.certificate, row.subject))]


def places_that_name(database: Database, storage: Storage, names: list[bytes]) -> list[str]:
    """Every column of every table, and every blob of the store, that holds one of the names, in whatever form."""
    found = []
    forms = {
        form for name in names for form in (name, name.hex().encode(), base64.urlsafe_b64encode(name).rstrip(b"="))
    }
    with database.read() as session:
        for table in Base.metadata.sorted_tables:
            for row in session.execute(select(table)).mappings():
                for column, value in row.items():
                    held = (
                        bytes(value)
                        if isinstance(value, bytes | memoryview)
                        else json.dumps(value, default=str).encode()
                    )
                    found += [f"{table.name}.{column}" for form in forms if form in held]
    for name, body in storage.files():
        found += [name for form in forms if form in name.encode() + body]
    return sorted(set(found))


def erase(task: TestTask, client_id: str) -> dict[str, Any]:
    return dict(checked(task.post(f"members/{client_id}/erasure")).json())


def seen(task: TestTask, numbers: range) -> list[Any]:
    """What operators and members see of rounds: views, sums, the ledger, the dashboard's counts."""
    with services(task.api).database.read() as session:
        counts = [
            (one.parts, one.funnel(), one.refusals)
            for one in tallies(session, list_rounds(session, task.id, 0, 99, None))
        ]
    views = [{**task.round(number), "seconds_left": None} for number in numbers]
    return [views, [task.aggregate(number) for number in numbers], task.found("ledger")["entries"], counts]


def test_nothing_names_an_erased_member_and_its_rounds_stay_exact(api: Api, storage: Storage) -> None:
    plain = api.create_task("plain", cohort=3, rounds=3, collect_seconds=900)
    members = plain.enrol(3)
    for number in (1, 2):
        plain.wait_round(number, "collecting")
        contribute(members, number, float(number))
        plain.wait_round(number, "complete")
    masked = masked_task(api, "masked", 5)
    masked_members = enrol_masked(masked, 5)
    play(masked, masked_members)
    masked.wait_round(1, "complete")
    checked(plain.post("rounds/3/abort"))
    checked(plain.post("close"))
    database = services(api).database
    before = seen(plain, range(1, 3)), seen(masked, range(1, 2))
    others = members[1], masked_members[1]
    for task, member in ((plain, members[0]), (masked, masked_members[0])):
        with database.read() as session:
            names = names_of(session, member.client_id)
        assert len(places_that_name(database, storage, names)) >= 5  # the search finds what is there
        assert erase(task, member.client_id) == {"erased": True, "waits_for_round": None}
        assert places_that_name(database, storage, names) == []
        assert member.get("").status_code == 401
        assert refusal(task.post(f"members/{member.client_id}/erasure")) == (404, "not-found")
    assert (seen(plain, range(1, 3)), seen(masked, range(1, 2))) == before
    for task, member in zip((plain, masked), others, strict=True):
        assert member.client_id in [one["client_id"] for one in task.found("members")["members"]]
    listed = {one["client_id"] for task in (plain, masked) for one in task.found("members")["members"]}
    assert not listed & {members[0].client_id, masked_members[0].client_id}
    entries = api.found("/v1/audit", limit=1000)["entries"]
    assert [one["action"] for one in entries].count("member erased") == 2


def test_a_member_of_an_active_round_is_erased_when_that_is_over(api: Api, storage: Storage) -> None:
    """Its contribution stays in the sum, and its membership ends at once."""
    task, members = api.begin(3, rounds=2, min_clients=2, collect_seconds=900)
    contribute(members[:1], 1, 5.0)
    database = services(api).database
    with database.read() as session:
        names = names_of(session, members[0].client_id)
    assert erase(task, members[0].client_id) == {"erased": False, "waits_for_round": 1}
    assert erase(task, members[0].client_id) == {"erased": False, "waits_for_round": 1}
    assert members[0].get("").status_code == 401
    assert erase_waiting(database, time.time()) == 0
    assert not [place for place in places_that_name(database, storage, names[:1]) if "/" in place]  # packs name nobody
    contribute(members[1:], 1, 5.0)
    assert task.wait_round(1, "complete")["survivors"] == 3
    task.wait_round(2, "collecting")
    for _ in range(200):
        erase_waiting(database, time.time())
        if not places_that_name(database, storage, names[:1]):
            break
    assert places_that_name(database, storage, names[:3]) == []
    assert len(task.cohort(2)) == 2


def test_an_erased_identity_and_its_subject_do_not_come_back(api: Api) -> None:
    organiser = Ed25519PrivateKey.generate()
    pin = OrganiserPin(key=b64encode(organiser.public_key().public_bytes_raw()), scope="films")
    task = api.create_task("certified", organiser=pin.model_dump())

    def enrol(identity: Ed25519PrivateKey, mailbox: SealingKey, serial: int, renewal: int = 0) -> Any:
        keys = identity.public_key().public_bytes_raw(), mailbox.name
        expiry = int(time.time()) + 3600
        certificate = certify(organiser, "films", *keys, role="member", serial=serial, not_after=expiry).encode()
        return api.enrol(invitation, identity, mailbox, certificate=certificate, renewal=renewal)

    invitation = api.invite(task.id, uses=9)
    ann, mailbox, bob = Ed25519PrivateKey.generate(), SealingKey.generate(), Ed25519PrivateKey.generate()
    first = checked(enrol(ann, mailbox, serial=0xABCDEF0123456789), 201).json()
    database = services(api).database
    with database.read() as session:
        row = session.get_one(TaskRow, task.id)
        key = b64encode(ann.public_key().public_bytes_raw())
        assert {find_member(session, row, name) for name in (first["client_id"], key, "abcdef0123456789")} == {
            first["client_id"]
        }
        with pytest.raises(Problem, match="not-found"):
            find_member(session, row, "nobody")
    erase(task, first["client_id"])
    assert "revoked" in detail(enrol(ann, mailbox, serial=0xABCDEF0123456789, renewal=1), 403)
    assert "is or was enrolled" in detail(enrol(bob, mailbox, serial=0xABCDEF0123456789), 403)
    assert enrol(bob, mailbox, serial=7).status_code == 201


def test_guards_see_the_same_person_in_another_task_after_an_erasure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second task's sum differs from the first one's by one client: it would isolate it, erased or not."""
    sum_again(monkeypatch, FedMF)
    for erased in (False, True):
        folder = tmp_path / str(erased)
        folder.mkdir()
        with closing(World(folder)) as world:
            keys = {f"c_{index}": bytes([index + 1] * 32) for index in range(5)}
            members = {f".{name}": (key, 0) for name, key in keys.items()}
            schedule = {"data_set": "films", "min_clients": 3, "cohort_size": 5, "rounds": 1}
            first = world.task(dict(list(members.items())[:4]), "first", **{**schedule, "cohort_size": 4})
            world.run(first)
            world.contribute(first, *world.cohort(first))
            world.run(first)
            assert world.round(first).state == "complete"
            if erased:
                with world.database.write() as session:
                    assert erase_member(session, first, f"{first}.c_0", an_operator(1.0)).erased
            second = world.task(members, "second", **schedule)
            world.run(second)
            world.contribute(second, *world.cohort(second))
            world.run(second)
            judged = world.rounds(second)[0].failure or ""
            assert "differ from those of an earlier sum by 1 clients" in judged, (erased, judged)


def test_a_member_leaves_and_sees_what_is_stored(api: Api) -> None:
    task, (ann, bob, _) = api.begin(3, rounds=2, min_clients=2)
    contribute([ann], 1, 2.0)
    exported = ann.get(f"members/{ann.client_id}/data").json()
    (one,) = exported["rounds"]
    assert (one["round"], one["asked"], one["contribution_bytes"]) == (1, True, len(ann.contribution(1, 2.0)))
    assert exported["member"]["client_id"] == ann.client_id
    assert (exported["times_asked"], exported["acted_on"]) == (1, [])
    assert refusal(ann.get(f"members/{bob.client_id}/data")) == (403, "forbidden")
    by_operator = task.found(f"members/{ann.client_id}/data")
    assert by_operator["rounds"] == exported["rounds"]
    assert [entry["action"] for entry in task.found(f"members/{ann.client_id}/data")["acted_on"]] == [
        "data of a member exported"
    ]
    left = api.http.delete(f"{task.path}/members/me", headers=ann.auth)
    assert checked(left).json() == {"erased": False, "waits_for_round": None}
    assert ann.get("").status_code == 401
    asked = api.http.delete(f"{task.path}/members/me", params={"erase": True}, headers=bob.auth)
    assert checked(asked).json() == {"erased": False, "waits_for_round": 1}
    by_members = [entry["action"] for entry in api.found("/v1/audit")["entries"] if entry["operator"] == "(member)"]
    assert by_members == ["membership left", "membership left", "erasure of a member asked for"]


def test_the_commands_export_and_erase(storage: Storage, run: Callable[..., str], api: Api) -> None:
    task = api.create_task("films")
    (ann,) = task.enrol(1)
    url = [] if storage.database_url is None else ["--database-url", storage.database_url]
    where = ["--data-dir", str(storage.folder / "data"), *url]
    exported = json.loads(run("member", "export", "films", ann.client_id, *where))
    assert exported["member"]["client_id"] == ann.client_id
    assert "erased" in run("member", "erase", "films", exported["member"]["identity_key"], *where)
    assert "no such member" in run("member", "export", "films", ann.client_id, *where, status=1)
    for command in (
        "export",
        "erase",
        "revoke",
    ):  # one identity key in 64 begins like an option, of these some like two
        for key in ("-4Yb", "--Yb"):
            assert "no such member" in run("member", command, "films", key + "A" * (43 - len(key)), *where, status=1)
    assert ann.client_id not in run("member", "list", "films", *where)
    with services(api).database.read() as session:
        assert not session.scalars(select(ContributionRow)).all()
        assert {row.id[:2] for row in session.scalars(select(ClientRow))} == {"e_"}
