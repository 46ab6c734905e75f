"""Stored bodies: short ones in the database, recent ones in memory, and tags by which a changed one is found."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import func, select

from aggregator_service.compute.jobs import StoredBody
from aggregator_service.services import Services
from aggregator_service.storage.blobs import (
    TAG_BYTES,
    BlobDamagedError,
    BodyTagger,
    Piece,
    RecentBlobs,
    matches_tag,
    new_key,
    tag_of,
)
from aggregator_service.storage.directory import DirectoryBlobs
from aggregator_service.storage.schema import ContributionRow, SmallBodyRow
from tests.support.api import aggregator_inside, contribute, digest_field, services

BODY = bytes(range(256)) * 8
KEY = new_key("contributions", "t_1", 1, "c_1")


@settings(max_examples=25)
@given(parts=st.lists(st.binary(max_size=50)))
def test_a_tag_does_not_depend_on_how_the_body_arrives(parts: list[bytes]) -> None:
    tagger = BodyTagger()
    for part in parts:
        tagger.update(memoryview(part))
    tag = tagger.finish()
    assert len(tag) == TAG_BYTES
    assert matches_tag(b"".join(parts), tag)
    assert not matches_tag(b"".join(parts) + b"\0", tag)


@settings(max_examples=50)
@given(body=st.binary(min_size=1, max_size=200), place=st.integers(min_value=0))
def test_one_bit_of_a_body_or_a_tag_makes_a_difference(body: bytes, place: int) -> None:
    tag = tag_of(body)
    assert matches_tag(body, tag)
    assert tag[:32] != tag_of(body)[:32]  # two bodies under one key would give away what is needed to change a third
    for one, start in ((bytearray(body), 0), (bytearray(tag), 32)):
        one[start + place // 8 % (len(one) - start)] ^= 1 << place % 8
        assert not (matches_tag(bytes(one), tag) if start == 0 else matches_tag(body, bytes(one)))
    assert not matches_tag(body[:-1], tag) and not matches_tag(body, tag[:-1]) and not matches_tag(body, b"")


@pytest.fixture
def directory(tmp_path: Path) -> DirectoryBlobs:
    made = DirectoryBlobs(tmp_path)
    made.prepare()
    return made


def test_a_changed_body_is_not_folded(directory: DirectoryBlobs) -> None:
    blobs = directory
    blobs.put(KEY, BODY)
    stored, room = StoredBody(KEY, tag_of(BODY)), memoryview(bytearray(len(BODY)))
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
    blobs.put(KEY, BODY)
    for tag in (tag_of(b"other"), b""):  # of another body; a row without one
        with pytest.raises(BlobDamagedError, match="changed"):
            StoredBody(KEY, tag).read(blobs, room)


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
            assert row.blob_start is not None
            assert matches_tag(*stored.blobs.pieces([Piece(row.blob_key, row.blob_start, row.bytes)]), row.tag)
        assert {row.blob_key for row in rows} == {rows[0].blob_key}  # one pack
        damaged = bytearray(*stored.blobs.pieces([Piece(rows[0].blob_key, 0, sum(row.bytes for row in rows))]))
        damaged[-1] ^= 1
        stored.blobs.put(str(rows[0].blob_key), bytes(damaged))
        assert last.put(1, last.contribution(1, 3.0)).status_code == 201
        assert "storage is damaged" in str(task.wait_round(1, "failed")["failure"])
        assert [(row.blob_key, row.tag) for row in contributions(stored)] == [(None, None)] * 3


def contributions(stored: Services) -> list[ContributionRow]:
    with stored.database.read() as session:
        return list(session.scalars(select(ContributionRow)))


def kept(stored: Services) -> int:
    with stored.database.read() as session:
        return session.execute(select(func.count()).select_from(SmallBodyRow)).scalar_one()


def test_a_short_contribution_is_a_row_until_its_round_is_over(tmp_path: Path) -> None:
    """A lost or a damaged row fails its round."""
    with aggregator_inside(tmp_path / "data") as api:
        task, stored = api.create_task(cohort=3, min_clients=3, rounds=3), services(api)
        members = task.begin(3)
        for number, change in enumerate((None, "lost", "damaged"), 1):
            task.wait_round(number, "collecting")
            contribute(members[:2], number)
            assert kept(stored) == 2
            assert not list((tmp_path / "data" / "blobs").glob("contributions/*"))
            with stored.database.write() as session:
                row = session.scalars(select(SmallBodyRow)).all()[0]
                if change == "lost":
                    session.delete(row)
                elif change == "damaged":
                    row.body = b"other bytes"
            contribute(members[2:], number)
            assert task.wait_round(number, "complete", "failed")["state"] == ("failed" if change else "complete")
            assert kept(stored) == 0


def test_a_revoked_members_envelope_is_deleted_and_no_other_accepted(tmp_path: Path) -> None:
    """One as long as a row may be, and one that is a blob."""
    with aggregator_inside(tmp_path / "data") as api:
        task = api.create_task(mechanism_name="ckks", mechanism_parameters={"set": "standard"}, cohort=2)
        (holder,) = task.enrol(1, role="holder")

        def stored() -> int:
            blobs = (tmp_path / "data" / "blobs" / "envelopes").rglob("*")
            return kept(services(api)) + sum(path.is_file() for path in blobs)

        for member, length in zip(task.enrol(2), (300, 120_000), strict=True):
            envelope, place = b"x" * length, f"keyring/{member.client_id}"
            sent = [holder.deliver(place, body).status_code for body in (envelope, envelope, b"y" * length)]
            assert sent == [201, 200, 409]
            fetched = member.found("keyring")
            assert (fetched.content, fetched.headers["content-digest"]) == (envelope, digest_field(envelope))
            unchanged = {**member.auth, "If-None-Match": fetched.headers["etag"]}
            assert api.http.get(f"{task.path}/keyring", headers=unchanged).status_code == 304
            assert stored() == 1
            assert api.http.delete(f"{task.path}/members/{member.client_id}", headers=api.operator).status_code == 200
            assert stored() == 0
            assert holder.deliver(place, envelope).status_code == 404
        assert holder.found("members?unkeyed=true").json()["members"] == []


def test_recent_blobs_are_read_once_long_ones_are_not_kept_and_the_oldest_leaves(directory: DirectoryBlobs) -> None:
    recent = RecentBlobs(longest=4, total=8)

    def put(body: bytes) -> tuple[str, str, int]:
        key = new_key("snapshots", "t_1", 1)
        return key, directory.put(key, body), len(body)

    assert recent.read(directory, *put(b"12345")) is None
    kept = [put(bytes([index]) * 4) for index in range(3)]
    assert [recent.read(directory, *blob) for blob in kept] == [bytes([index]) * 4 for index in range(3)]
    for key, _, _ in kept:
        (directory.root / key).unlink()
    key, digest, length = kept[2]
    assert recent.read(directory, key, digest, length) == b"\2" * 4
    for gone, stated in ((kept[0][0], kept[0][1]), (key, hashlib.sha256(b"other").hexdigest())):
        with pytest.raises(BlobDamagedError):
            recent.read(directory, gone, stated, length)
