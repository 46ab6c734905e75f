"""Roles: every role calls every route, and the result is what docs/http-api.md states."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.api import Api, TestMember, digest_field
from tests.support.inside import aggregator_inside
from tests.support.oneshot import oneshot_task
from tests.support.promises import CALLERS, promised

ROOT = Path(__file__).parents[3]
DOCUMENT = json.loads((ROOT / "openapi" / "openapi.json").read_text(encoding="utf-8"))
ROUTES = sorted((method.upper(), path) for path, methods in DOCUMENT["paths"].items() for method in methods)


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    with aggregator_inside(tmp_path_factory.mktemp("roles") / "data") as inside:
        yield inside


@pytest.fixture(scope="module")
def callers(api: Api) -> dict[str, dict[str, str]]:
    """Request headers by caller; member and holder belong to one keyed task, the committee to one of its own."""
    task = api.create_task("mine", cohort=2, recipe_name="colr", mechanism_name="ckks", dim=8, clip=1.0)
    (holder,), (member,) = task.enrol(1, role="holder"), task.enrol(1)
    envelope = {**holder.auth, "Content-Digest": digest_field(b"sealed")}
    assert (
        api.http.put(f"{task.path}/keyring/{member.client_id}", content=b"sealed", headers=envelope).status_code == 201
    )
    (committee,) = oneshot_task(api, "summed-once", 5).enrol(1, role="committee")
    fields = {"nobody": {}, "member": member.auth, "holder": holder.auth, "committee": committee.auth}
    for role in ("read-only", "operator", "admin"):
        made = api.http.post("/v1/operators", json={"name": role, "role": role}, headers=api.operator)
        assert made.status_code == 201, made.text
        fields[role] = {"Authorization": f"Bearer {made.json()['token']}"}
    api.clients = {"member": member, "holder": holder, "committee": committee}  # type: ignore[attr-defined]
    return fields


def call(api: Api, method: str, path: str, headers: dict[str, str], own: str) -> httpx.Response:
    """Make a call that changes nothing: its body is invalid, or what it names does not exist."""
    clients: dict[str, TestMember] = api.clients  # type: ignore[attr-defined]
    member = clients.get(own, clients["member"])
    known = {"task": member.task.id, "client": member.client_id, "number": "1", "stage": "advertise", "name": "nobody"}
    known["invitation"] = "i_" + "0" * 20
    if method == "DELETE" or path.endswith("/close"):
        known |= {"client": "c_" + "0" * 20, "task": "t_" + "0" * 20}
    filled = re.sub(r"\{(\w+)\}", lambda found: known[found.group(1)], path)
    if method in ("PUT", "PATCH"):
        body = {"Content-Digest": digest_field(b"x"), "Upload-Offset": "0", "Upload-Complete": "?0"}
        body |= {"Content-Type": "application/partial-upload"} if method == "PATCH" else {}
        return api.http.request(method, filled, content=b"x", headers={**headers, **body})
    return api.http.request(method, filled, json=[] if method == "POST" else None, headers=headers)


def test_the_documentation_lists_exactly_the_routes() -> None:
    assert {route for route in promised() if route[1] != "/openapi.json"} == set(ROUTES)


@pytest.mark.parametrize("caller", CALLERS)
@pytest.mark.parametrize(("method", "path"), ROUTES, ids=[f"{method} {path}" for method, path in ROUTES])
def test_every_role_at_every_route(
    api: Api, callers: dict[str, dict[str, str]], method: str, path: str, caller: str
) -> None:
    answer = call(api, method, path, callers[caller], caller)
    if caller in promised()[method, path]:
        assert answer.status_code not in (401, 403) or slug(answer) == "not-in-cohort", answer.text
    else:
        assert answer.status_code == (401 if caller == "nobody" else 403), answer.text


def slug(answer: httpx.Response) -> Any:
    return answer.json()["type"].rpartition(":")[2] if answer.content else None


def test_a_member_of_another_task_has_no_access(api: Api, callers: dict[str, dict[str, str]]) -> None:
    (stranger,) = api.create_task("other", cohort=2).enrol(1)
    for method, path in ROUTES:
        if "{task}" in path and "member" in promised()[method, path]:
            answer = call(api, method, path, stranger.auth, "member")
            assert answer.status_code in (403, 404), (method, path, answer.text)
            assert slug(answer) in ("forbidden", "not-found", None)
