"""Short bodies are rows of the database: no blob, deleted with their round, damage is found."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest
from sqlalchemy import func, select, update

from aggregator_service.storage.database import Database
from aggregator_service.storage.schema import ContributionRow, SmallBodyRow
from tests.support.api import Api, TestMember, digest_field
from tests.support.inside import aggregator_inside


def database_of(folder: Path) -> Database:
    return Database(f"sqlite:///{folder / 'hushrec.db'}", connections=1)


def kept(folder: Path) -> int:
    database = database_of(folder)
    try:
        with database.read() as session:
            return session.execute(select(func.count()).select_from(SmallBodyRow)).scalar_one()
    finally:
        database.close()


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


def test_a_damaged_row_fails_its_round(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    with aggregator_inside(folder) as api:
        members = begun(api)
        assert [put(member, 1.0).status_code for member in members[:2]] == [201, 201]
        database = database_of(folder)
        with database.write() as session:
            key = session.scalars(select(ContributionRow.blob_key).limit(1)).one()
            session.execute(update(SmallBodyRow).where(SmallBodyRow.key == key).values(body=b"other bytes"))
        database.close()
        assert put(members[2], 1.0).status_code == 201
        members[0].task.wait_round(1, "failed")


def test_a_lost_row_fails_its_round(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    with aggregator_inside(folder) as api:
        members = begun(api)
        assert put(members[0], 1.0).status_code == 201
        database = database_of(folder)
        with database.write() as session:
            session.delete(session.scalars(select(SmallBodyRow)).one())
        database.close()
        assert [put(member, 1.0).status_code for member in members[1:]] == [201, 201]
        members[0].task.wait_round(1, "failed")


def test_a_revoked_members_envelope_is_deleted(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    with aggregator_inside(folder) as api:
        task = api.create_task(mechanism_name="ckks", mechanism_parameters={"set": "standard"}, cohort=2)
        (holder,), (member,) = task.enrol(1, role="holder"), task.enrol(1)
        path, envelope = f"{task.path}/keyring/{member.client_id}", b"x" * 300

        def leave(body: bytes) -> int:
            headers = {**holder.auth, "Content-Digest": digest_field(body)}
            return api.http.put(path, content=body, headers=headers).status_code

        assert [leave(envelope), leave(envelope), leave(b"y" * 300)] == [201, 200, 409]
        fetched = api.http.get(f"{task.path}/keyring", headers=member.auth)
        assert (fetched.content, fetched.headers["content-digest"]) == (envelope, digest_field(envelope))
        unchanged = {**member.auth, "If-None-Match": fetched.headers["etag"]}
        assert api.http.get(f"{task.path}/keyring", headers=unchanged).status_code == 304
        assert kept(folder) == 1
        assert api.http.delete(f"{task.path}/members/{member.client_id}", headers=api.operator).status_code == 200
        assert kept(folder) == 0
        assert leave(envelope) == 404
