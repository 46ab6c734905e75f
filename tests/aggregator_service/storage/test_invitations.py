"""The uses of an invitation are limited also when many clients enrol at once, or it is revoked meanwhile."""

from __future__ import annotations

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import httpx
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from tests.support.api import Api, signed_enrolment
from tests.support.postgres import TestDatabase
from tests.support.server import running_aggregator

CROWD, PLACES = 24, 7


@pytest.fixture(params=["sqlite", "postgresql"])
def storage(request: pytest.FixtureRequest) -> dict[str, str]:
    if request.param == "sqlite":
        return {}
    postgres: TestDatabase = request.getfixturevalue("postgres")
    return {"database_url": postgres.schema()}


def test_simultaneous_enrolments_do_not_exceed_the_uses(tmp_path: Path, storage: dict[str, str]) -> None:
    with (
        running_aggregator(tmp_path / "data", **storage) as server,
        closing(Api(server.url, server.operator_token)) as api,
    ):
        task = api.create_task()
        counted, revoked = api.invite(task.id, uses=PLACES), api.invite(task.id, uses=CROWD)
        _, entry = api.http.get(f"{task.path}/invitations", headers=api.operator).json()["invitations"]

        def enrol(index: int) -> tuple[str, int]:
            invitation = counted if index % 2 else revoked
            body = signed_enrolment(invitation, Ed25519PrivateKey.generate(), X25519PrivateKey.generate())
            answer = httpx.post(f"{server.url}/v1/enrolments", json=body, timeout=60)
            if index == CROWD:
                path = f"{task.path}/invitations/{entry['invitation_id']}"
                assert api.http.delete(path, headers=api.operator).status_code == 200
            return invitation, answer.status_code

        with ThreadPoolExecutor(8) as pool:
            answers = Counter(pool.map(enrol, range(2 * CROWD)))
        assert answers[counted, 201] == PLACES
        assert answers[counted, 410] == CROWD - PLACES
        assert answers[revoked, 201] + answers[revoked, 410] == CROWD
        assert answers[revoked, 201] < CROWD
        views = api.http.get(f"{task.path}/invitations", headers=api.operator).json()["invitations"]
        assert [(view["state"], view["used"]) for view in views] == [
            ("used up", PLACES),
            ("revoked", answers[revoked, 201]),
        ]
        assert api.http.get(task.path, headers=api.operator).json()["members"] == PLACES + answers[revoked, 201]
