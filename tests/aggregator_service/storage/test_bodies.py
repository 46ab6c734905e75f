"""Stored bodies: short ones in the database, recent ones in memory, and tags by which a changed one is found."""

from __future__ import annotations

import hashlib
from contextlib import closing
from pathlib import Path

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import func, select

from aggregator_service.compute.jobs import StoredBody
from aggregator_service.services import Services
from aggregator_service.storage.blobs import BlobDamagedError, BlobStore, RecentBlobs, new_key
from aggregator_service.storage.database import Database
from aggregator_service.storage.directory import DirectoryBlobs
from aggregator_service.storage.schema import ContributionRow, SmallBodyRow
from aggregator_service.storage.tags import TAG_BYTES, BodyTagger, matches_tag, tag_of
from tests.support.api import Api, TestMember, digest_field
from tests.support.inside import aggregator_inside, services

BODY = bytes(range(256)) * 8
KEY = new_key("contributions", "t_1", 1, "c_1")


@given(parts=st.lists(st.binary(max_size=50)))
def test_a_tag_does_not_depend_on_how_the_body_arrives(parts: list[bytes]) -> None:
    tagger = BodyTagger()
    for part in parts:
        tagger.update(memoryview(part))
    tag = tagger.finish()
    assert len(tag) == TAG_BYTES
    assert matches_tag(b"".join(parts), tag)
    assert not matches_tag(b"".join(parts) + b"\0", tag)


@given(body=st.binary(min_size=1, max_size=200), place=st.integers(min_value=0))
def test_one_bit_makes_a_difference(body: bytes, place: int) -> None:
    tag, changed = tag_of(body), bytearray(body)
    changed[place // 8 % len(body)] ^= 1 << place % 8
    assert matches_tag(body, tag)
    assert not matches_tag(bytes(changed), tag)
    assert not matches_tag(body[:-1], tag)


@given(place=st.integers(min_value=0, max_value=8 * (TAG_BYTES - 32) - 1))
def test_a_changed_tag_matches_nothing(place: int) -> None:
    tag = bytearray(tag_of(BODY))
    tag[32 + place // 8] ^= 1 << place % 8
    assert not matches_tag(BODY, bytes(tag))
    assert not matches_tag(BODY, bytes(tag[:-1]))
    assert not matches_tag(BODY, b"")


def test_every_tag_has_a_key_of_its_own() -> None:
    """Two bodies under one key would give away what is needed to change a third."""
    assert len({tag_of(BODY)[:32] for _ in range(100)}) == 100


@pytest.mark.parametrize("tagged", [True, False], ids=["tag", "stored before there were tags"])
def test_a_changed_body_is_not_folded(blobs: BlobStore, tagged: bool) -> None:
    digest = blobs.put(KEY, BODY)
    stored, room = StoredBody(KEY, digest, tag_of(BODY) if tagged else None), memoryview(bytearray(len(BODY)))
    found = stored.read(blobs, room)
    assert found == BODY
    assert found.readonly
    for changed in (BODY[:-1] + b"\0", BODY[:-1], BODY + b"\0", b""):
        blobs.put(KEY, changed)
        with pytest.raises(BlobDamagedError, match=KEY):
            stored.read(blobs, room)
    blobs.delete(KEY)
    with pytest.raises(BlobDamagedError, match="does not exist"):
        stored.read(blobs, room)


def test_a_body_with_the_right_digest_needs_the_right_tag(blobs: BlobStore) -> None:
    digest = blobs.put(KEY, BODY)
    assert digest == hashlib.sha256(BODY).hexdigest()
    with pytest.raises(BlobDamagedError, match="changed"):
        StoredBody(KEY, digest, tag_of(b"other")).read(blobs, memoryview(bytearray(len(BODY))))


def test_uploads_are_tagged_until_their_round_is_over(tmp_path: Path) -> None:
    """A whole one, and one in two pieces. A changed blob fails the round."""
    with aggregator_inside(tmp_path / "data", inline_bytes=0) as api:
        stored, task = services(api), api.create_task(cohort=3, min_clients=3)
        whole, pieces, last = task.begin(3)
        assert whole.put(1, whole.contribution(1, 1.0)).status_code == 201
        body = pieces.contribution(1, 2.0)
        assert pieces.piece(0, body[:50]).status_code == 204
        assert pieces.piece(50, body[50:], body).status_code == 201
        rows = contributions(stored)
        assert len(rows) == 2
        for row in rows:
            assert row.blob_key is not None
            assert row.tag is not None
            assert matches_tag(stored.blobs.view(row.blob_key, row.digest), row.tag)
        damaged = bytearray(stored.blobs.view(str(rows[0].blob_key), rows[0].digest))
        damaged[-1] ^= 1
        stored.blobs.put(str(rows[0].blob_key), bytes(damaged))
        assert last.put(1, last.contribution(1, 3.0)).status_code == 201
        assert "storage is damaged" in str(task.wait_round(1, "failed")["failure"])
        assert [(row.blob_key, row.tag) for row in contributions(stored)] == [(None, None)] * 3


def contributions(stored: Services) -> list[ContributionRow]:
    with stored.database.read() as session:
        return list(session.scalars(select(ContributionRow)))


def test_a_job_does_not_show_the_tag() -> None:
    assert "tag" not in repr(StoredBody(KEY, "00", tag_of(BODY)))


def database_of(folder: Path) -> Database:
    return Database(f"sqlite:///{folder / 'hushrec.db'}", connections=1)


def kept(folder: Path) -> int:
    with closing(database_of(folder)) as database, database.read() as session:
        return session.execute(select(func.count()).select_from(SmallBodyRow)).scalar_one()


def begun(api: Api) -> list[TestMember]:
    members = api.create_task(cohort=3, min_clients=3).enrol(3)
    members[0].task.wait_round(1, "collecting")
    return members


def put(member: TestMember, value: float) -> httpx.Response:
    return member.put(1, member.contribution(1, value))


@pytest.mark.parametrize(("limit", "rows"), [(64 * 1024, 2), (0, 0)])
def test_a_short_contribution_is_a_row_until_its_round_is_over(tmp_path: Path, limit: int, rows: int) -> None:
    folder = tmp_path / "data"
    with aggregator_inside(folder, inline_bytes=limit) as api:
        members = begun(api)
        assert [put(member, 1.0).status_code for member in members[:2]] == [201, 201]
        assert put(members[0], 1.0).status_code == 200
        assert put(members[0], 2.0).status_code == 409
        assert kept(folder) == rows
        assert len(list((folder / "blobs").glob("contributions/*"))) == 2 - rows
        assert put(members[2], 1.0).status_code == 201
        assert members[0].task.wait_round(1, "complete")["survivors"] == 3
        assert kept(folder) == 0


@pytest.mark.parametrize("lost", [True, False], ids=["lost", "damaged"])
def test_a_lost_or_damaged_row_fails_its_round(tmp_path: Path, lost: bool) -> None:
    folder = tmp_path / "data"
    with aggregator_inside(folder) as api:
        members = begun(api)
        assert put(members[0], 1.0).status_code == 201
        with closing(database_of(folder)) as database, database.write() as session:
            row = session.scalars(select(SmallBodyRow)).one()
            if lost:
                session.delete(row)
            else:
                row.body = b"other bytes"
        assert [put(member, 1.0).status_code for member in members[1:]] == [201, 201]
        members[0].task.wait_round(1, "failed")


@pytest.mark.parametrize("length", [300, 120_000], ids=["a row", "a blob"])
def test_a_revoked_members_envelope_is_deleted_and_no_other_accepted(tmp_path: Path, length: int) -> None:
    folder = tmp_path / "data"
    with aggregator_inside(folder) as api:
        task = api.create_task(mechanism_name="ckks", mechanism_parameters={"set": "standard"}, cohort=2)
        (holder,), (member,) = task.enrol(1, role="holder"), task.enrol(1)
        envelope = b"x" * length

        def leave(body: bytes) -> int:
            return holder.deliver(f"keyring/{member.client_id}", body).status_code

        def stored() -> int:
            return kept(folder) + sum(path.is_file() for path in (folder / "blobs" / "envelopes").rglob("*"))

        assert [leave(envelope), leave(envelope), leave(b"y" * length)] == [201, 200, 409]
        fetched = member.found("keyring")
        assert (fetched.content, fetched.headers["content-digest"]) == (envelope, digest_field(envelope))
        unchanged = {**member.auth, "If-None-Match": fetched.headers["etag"]}
        assert api.http.get(f"{task.path}/keyring", headers=unchanged).status_code == 304
        assert stored() == 1
        assert api.http.delete(f"{task.path}/members/{member.client_id}", headers=api.operator).status_code == 200
        assert stored() == 0
        assert leave(envelope) == 404
        assert holder.found("members?unkeyed=true").json()["members"] == []


@pytest.fixture
def recent_blobs(tmp_path: Path) -> DirectoryBlobs:
    made = DirectoryBlobs(tmp_path)
    made.prepare()
    return made


def recent_put(recent_blobs: DirectoryBlobs, body: bytes) -> tuple[str, str, int]:
    key = new_key("snapshots", "t_1", 1)
    return key, recent_blobs.put(key, body), len(body)


def test_a_blob_is_read_once(recent_blobs: DirectoryBlobs) -> None:
    recent, blob = RecentBlobs(), recent_put(recent_blobs, b"model")
    assert recent.read(recent_blobs, *blob) == b"model"
    (recent_blobs.root / blob[0]).unlink()
    assert recent.read(recent_blobs, *blob) == b"model"


def test_another_digest_is_checked_against_the_stored_bytes(recent_blobs: DirectoryBlobs) -> None:
    recent, (key, digest, length) = RecentBlobs(), recent_put(recent_blobs, b"model")
    assert recent.read(recent_blobs, key, digest, length) == b"model"
    with pytest.raises(BlobDamagedError):
        recent.read(recent_blobs, key, hashlib.sha256(b"other").hexdigest(), length)


def test_long_blobs_are_not_kept_and_the_oldest_leaves(recent_blobs: DirectoryBlobs) -> None:
    recent = RecentBlobs(longest=4, total=8)
    assert recent.read(recent_blobs, *recent_put(recent_blobs, b"12345")) is None
    kept = [recent_put(recent_blobs, bytes([index]) * 4) for index in range(3)]
    assert [recent.read(recent_blobs, *blob) for blob in kept] == [bytes([index]) * 4 for index in range(3)]
    for key, _, _ in kept:
        (recent_blobs.root / key).unlink()
    assert recent.read(recent_blobs, *kept[2]) == b"\2" * 4
    with pytest.raises(BlobDamagedError):
        recent.read(recent_blobs, *kept[0])
