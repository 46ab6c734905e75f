"""Operators' tokens: names, hashes, expiry, rotation and revocation, over HTTP and from the command line."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from aggregator_service.access.principals import hash_token
from aggregator_service.clock import ManualClock
from tests.support.api import Api
from tests.support.inside import aggregator_inside


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def api(tmp_path: Path, clock: ManualClock) -> Iterator[Api]:
    with aggregator_inside(tmp_path / "data", clock=clock) as inside:
        yield inside


def make(api: Api, name: str, **fields: Any) -> str:
    answer = api.http.post("/v1/operators", json={"name": name, **fields}, headers=api.operator)
    assert answer.status_code == 201, answer.text
    return str(answer.json()["token"])


def works(api: Api, token: str) -> bool:
    answer = api.http.get("/v1/tasks", headers={"Authorization": f"Bearer {token}"})
    assert answer.status_code in (200, 401), answer.text
    return answer.status_code == 200


def test_a_token_is_shown_once_and_stored_as_a_hash(api: Api, tmp_path: Path) -> None:
    token = make(api, "grafana", role="read-only")
    assert token.startswith("hro_")
    assert works(api, token)
    listed = api.http.get("/v1/operators", headers=api.operator)
    assert [(one["name"], one["role"], one["expires_seconds"]) for one in listed.json()["operators"]] == [
        ("grafana", "read-only", None)
    ]
    assert token not in listed.text
    assert hash_token(token) not in listed.text
    stored = b"".join(path.read_bytes() for path in (tmp_path / "data").glob("hushrec.db*"))
    assert token.encode() not in stored
    assert hash_token(token).encode() in stored


def test_names_of_tokens_are_unique(api: Api) -> None:
    make(api, "anna")
    again = api.http.post("/v1/operators", json={"name": "anna"}, headers=api.operator)
    assert again.status_code == 409
    assert api.http.post("/v1/operators", json={"name": "No Name"}, headers=api.operator).status_code == 422
    assert api.http.post("/v1/operators", json={"name": "b", "role": "root"}, headers=api.operator).status_code == 422


def test_a_token_expires(api: Api, clock: ManualClock) -> None:
    token = make(api, "guest", expires_seconds=60)
    clock.advance(59.0)
    assert works(api, token)
    clock.advance(1.0)
    assert not works(api, token)
    (view,) = api.http.get("/v1/operators", headers=api.operator).json()["operators"]
    assert (view["age_seconds"], view["expires_seconds"]) == (60.0, 0.0)


def test_rotation_voids_the_old_token_and_restarts_the_lifetime(api: Api, clock: ManualClock) -> None:
    old = make(api, "guest", role="operator", expires_seconds=60)
    clock.advance(50.0)
    answer = api.http.post("/v1/operators/guest/rotation", headers=api.operator)
    assert (answer.status_code, answer.json()["role"], answer.json()["expires_seconds"]) == (200, "operator", 60.0)
    new = answer.json()["token"]
    assert (works(api, old), works(api, new)) == (False, True)
    clock.advance(59.0)
    assert works(api, new)
    clock.advance(1.0)
    assert not works(api, new)
    assert api.http.post("/v1/operators/nobody/rotation", headers=api.operator).status_code == 404


def test_revocation_takes_effect_at_once_and_frees_the_name(api: Api) -> None:
    token = make(api, "anna")
    assert api.http.delete("/v1/operators/anna", headers=api.operator).status_code == 200
    assert not works(api, token)
    assert api.http.delete("/v1/operators/anna", headers=api.operator).status_code == 404
    assert works(api, make(api, "anna"))


def test_only_admins_create_tokens(api: Api) -> None:
    token = make(api, "anna", role="operator")
    headers = {"Authorization": f"Bearer {token}"}
    answer = api.http.post("/v1/operators", json={"name": "me", "role": "admin"}, headers=headers)
    assert answer.status_code == 403
    assert "admin" in answer.json()["detail"]
