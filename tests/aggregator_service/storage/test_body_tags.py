"""Tags of stored bodies: a body that changed in the store is found, whoever changed it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import select

from aggregator_service.compute.jobs import StoredBody
from aggregator_service.services import Services
from aggregator_service.storage.blobs import BlobDamagedError, BlobStore, new_key
from aggregator_service.storage.schema import ContributionRow
from aggregator_service.storage.tags import TAG_BYTES, BodyTagger, matches_tag, tag_of
from tests.support.api import TestMember, digest_field
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
        whole, pieces, last = task.enrol(3)
        task.wait_round(1, "collecting")
        assert whole.put(1, whole.contribution(1, 1.0)).status_code == 201
        assert [answer.status_code for answer in put_in_pieces(pieces, pieces.contribution(1, 2.0))] == [204, 201]
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


def put_in_pieces(member: TestMember, body: bytes) -> Iterator[httpx.Response]:
    for start, piece in ((0, body[:50]), (50, body[50:])):
        headers = {
            "Content-Type": "application/partial-upload",
            "Upload-Offset": str(start),
            "Upload-Complete": "?1" if start else "?0",
            "Content-Digest": digest_field(piece),
            **member.auth,
        }
        if start:
            headers["Repr-Digest"] = digest_field(body)
        yield member.task.api.http.patch(member.path(1), content=piece, headers=headers)


def contributions(stored: Services) -> list[ContributionRow]:
    with stored.database.read() as session:
        return list(session.scalars(select(ContributionRow)))


def test_a_job_does_not_show_the_tag() -> None:
    assert "tag" not in repr(StoredBody(KEY, "00", tag_of(BODY)))
