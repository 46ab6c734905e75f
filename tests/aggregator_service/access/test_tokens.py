"""Operators' tokens and what each role may call; rate limits by token and, for failed attempts, by address."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import httpx
import pytest
from sqlalchemy import select
from sqlalchemy.orm import Session

from aggregator_service.access import rate_limits
from aggregator_service.access.principals import (
    create_admin,
    create_operator,
    hash_token,
    list_operators,
    revoke_operator,
    rotate_operator,
)
from aggregator_service.access.rate_limits import Buckets, Limits
from aggregator_service.problems import Problem
from aggregator_service.settings import Settings
from aggregator_service.storage.database import Database
from aggregator_service.storage.schema import OperatorRow
from protocols.messages import OperatorRequest, OperatorToken
from tests.support.api import (
    Api,
    TestMember,
    aggregator_inside,
    digest_field,
    services,
    signed_enrolment,
    slug,
)
from tests.support.callers import CALLERS, promised
from tests.support.clock import ManualClock
from tests.support.dashboard import new_operator
from tests.support.oneshot import oneshot_task
from tests.support.world import an_operator


def works(api: Api, token: str) -> bool:
    answer = api.http.get("/v1/tasks", headers={"Authorization": f"Bearer {token}"})
    assert answer.status_code in (200, 401), answer.text
    return answer.status_code == 200


def test_a_token_is_shown_once_and_stored_as_a_hash(api: Api, tmp_path: Path) -> None:
    token = new_operator(api, "grafana", "read-only")
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


def test_a_token_expires_and_its_rotation_voids_it_and_restarts_the_lifetime(api: Api, clock: ManualClock) -> None:
    old = new_operator(api, "guest", "operator", expires_seconds=60)
    clock.advance(59.0)
    assert works(api, old)
    answer = api.http.post("/v1/operators/guest/rotation", headers=api.operator)
    assert (answer.status_code, answer.json()["role"], answer.json()["expires_seconds"]) == (200, "operator", 60.0)
    new = answer.json()["token"]
    assert (works(api, old), works(api, new)) == (False, True)
    clock.advance(59.0)
    assert works(api, new)
    clock.advance(1.0)
    assert not works(api, new)
    (view,) = api.http.get("/v1/operators", headers=api.operator).json()["operators"]
    assert (view["age_seconds"], view["expires_seconds"]) == (60.0, 0.0)
    assert api.http.post("/v1/operators/nobody/rotation", headers=api.operator).status_code == 404


ROOT = Path(__file__).parents[3]
DOCUMENT = json.loads((ROOT / "openapi" / "openapi.json").read_text(encoding="utf-8"))
ROUTES = sorted((method.upper(), path) for path, methods in DOCUMENT["paths"].items() for method in methods)


@pytest.fixture(scope="module")
def roles_api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    with aggregator_inside(tmp_path_factory.mktemp("roles") / "data") as inside:
        yield inside


@pytest.fixture(scope="module")
def callers(roles_api: Api) -> dict[str, dict[str, str]]:
    """Request headers by caller; member and holder belong to one keyed task, the committee to one of its own."""
    task = roles_api.create_task("mine", cohort=2, recipe_name="colr", mechanism_name="ckks", dim=8, clip=1.0)
    (holder,), (member,) = task.enrol(1, role="holder"), task.enrol(1)
    assert holder.deliver(f"keyring/{member.client_id}", b"sealed").status_code == 201
    (committee,) = oneshot_task(roles_api, "summed-once", 5).enrol(1, role="committee")
    fields = {"nobody": {}, "member": member.auth, "holder": holder.auth, "committee": committee.auth}
    for role in ("read-only", "operator", "admin"):
        fields[role] = {"Authorization": f"Bearer {new_operator(roles_api, role, role)}"}
    roles_api.clients = {"member": member, "holder": holder, "committee": committee}
    return fields


def call(roles_api: Api, method: str, path: str, headers: dict[str, str], own: str) -> httpx.Response:
    """Make a call that changes nothing: its body is invalid, or what it names does not exist."""
    clients: dict[str, TestMember] = roles_api.clients
    member = clients.get(own, clients["member"])
    known = {"task": member.task.id, "client": member.client_id, "number": "1", "stage": "advertise", "name": "nobody"}
    known["invitation"] = "i_" + "0" * 20
    if method == "DELETE" or path.endswith("/close"):
        known |= {"client": "c_" + "0" * 20, "task": "t_" + "0" * 20}
    filled = re.sub(r"\{(\w+)\}", lambda found: known[found.group(1)], path)
    if method in ("PUT", "PATCH"):
        body = {"Content-Digest": digest_field(b"x"), "Upload-Offset": "0", "Upload-Complete": "?0"}
        body |= {"Content-Type": "application/partial-upload"} if method == "PATCH" else {}
        return roles_api.http.request(method, filled, content=b"x", headers={**headers, **body})
    return roles_api.http.request(method, filled, json=[] if method == "POST" else None, headers=headers)


def test_the_documentation_lists_exactly_the_routes() -> None:
    assert {route for route in promised() if route[1] != "/openapi.json"} == set(ROUTES)


@pytest.mark.parametrize("caller", CALLERS)
def test_every_role_at_every_route(roles_api: Api, callers: dict[str, dict[str, str]], caller: str) -> None:
    for method, path in ROUTES:
        answer = call(roles_api, method, path, callers[caller], caller)
        if caller in promised()[method, path]:
            assert answer.status_code not in (401, 403) or "not-in-cohort" in answer.text, (method, path, answer.text)
        else:
            assert answer.status_code == (401 if caller == "nobody" else 403), (method, path, answer.text)
    assert not list((services(roles_api).settings.data_dir / "uploads").glob("body*")), "a body is kept"


def test_a_member_of_another_task_has_no_access(roles_api: Api, callers: dict[str, dict[str, str]]) -> None:
    (stranger,) = roles_api.create_task("other", cohort=2).enrol(1)
    for method, path in ROUTES:
        if "{task}" in path and "member" in promised()[method, path]:
            answer = call(roles_api, method, path, stranger.auth, "member")
            assert answer.status_code == 404, (method, path, answer.text)  # it learns nothing of the task
            assert not answer.content or slug(answer) == "not-found"


AT_ONCE = 8
Made = TypeVar("Made")


def at_once(database: Database, work: Callable[[Session], Made]) -> list[Made | Exception]:
    """Call `work` in transactions that begin together; return what each returned or raised."""
    barrier = threading.Barrier(AT_ONCE, timeout=30)

    def run(_: int) -> Made | Exception:
        barrier.wait()
        try:
            return database.transact(work)
        except Exception as error:
            return error

    with ThreadPoolExecutor(AT_ONCE) as pool:
        return list(pool.map(run, range(AT_ONCE)))


def tokens(database: Database) -> dict[str, str]:
    with database.read() as session:
        return {row.name: row.token_hash for row in session.scalars(select(OperatorRow))}


def test_servers_that_start_together_create_one_first_token(database: Database) -> None:
    made = at_once(database, lambda session: create_admin(session, an_operator(), only_first=True))
    (first,) = [one for one in made if isinstance(one, OperatorToken)]
    assert tokens(database) == {"admin": hash_token(first.token)}
    more = at_once(database, lambda session: create_admin(session, an_operator()))  # each gets a name of its own
    hashes = {hash_token(one.token) for one in (first, *more) if isinstance(one, OperatorToken)}
    assert hashes == set(tokens(database).values())
    assert set(tokens(database)) == {"admin", *(f"admin-{number}" for number in range(2, AT_ONCE + 2))}


def test_a_name_is_taken_once_its_last_rotation_counts_and_it_is_revoked_once(database: Database) -> None:
    request = OperatorRequest(name="anna", role="operator")
    made = at_once(database, lambda session: create_operator(session, request, an_operator()))
    (shown,) = [one for one in made if not isinstance(one, Exception)]
    assert [one.slug for one in made if isinstance(one, Problem)] == ["conflict"] * (AT_ONCE - 1)
    assert tokens(database) == {"anna": hash_token(shown.token)}
    rotated = at_once(database, lambda session: rotate_operator(session, "anna", an_operator(1.0)).token)
    assert len({hash_token(str(one)) for one in rotated}) == AT_ONCE
    assert tokens(database)["anna"] in {hash_token(str(one)) for one in rotated}
    ended = at_once(database, lambda session: revoke_operator(session, "anna", an_operator(1.0)))
    assert sorted(type(one).__name__ for one in ended) == ["OperatorView", *["Problem"] * (AT_ONCE - 1)]
    with database.read() as session:
        assert not list_operators(session, 2.0).operators


def test_a_bucket_allows_a_burst_and_then_its_rate(clock: ManualClock) -> None:
    buckets = Buckets(2.0, clock.now)
    assert [buckets.take("a") for _ in range(41)] == [0.0] * 40 + [0.5]
    assert buckets.take("b") == 0.0  # another key's bucket is full
    clock.advance(0.25)
    assert buckets.take("a") == pytest.approx(0.25)
    clock.advance(0.25)
    assert buckets.wait("a") == 0.0
    assert (buckets.take("a"), buckets.take("a")) == (0.0, 0.5)
    clock.advance(1000.0)
    assert sum(not buckets.take("a") for _ in range(100)) == 40  # the capacity is one burst
    assert not any(Buckets(0.0).take("a") for _ in range(1000))  # no limit
    slow = Buckets(0.001, clock.now)
    assert (slow.take("a"), slow.take("a")) == (0.0, pytest.approx(1000.0))


def test_the_number_of_buckets_is_limited_and_threads_share_one(
    clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared = Buckets(5.0, clock.now)
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(lambda _: shared.take("a"), range(500))).count(0.0) == 100
    monkeypatch.setattr(rate_limits, "_MAX_BUCKETS", 10)
    buckets = Buckets(1.0, clock.now)
    for number in range(50):
        buckets.take(f"caller {number}")
    assert len(buckets._levels) == 10
    clock.advance(60.0)
    buckets.wait("caller 49")  # it is full again, so it is dropped
    assert len(buckets._levels) == 9


def test_addresses_of_one_ipv6_network_share_a_limit(clock: ManualClock) -> None:
    strict = Limits(Settings(failure_rate=0.05), clock.now)
    strict.failure("2001:db8::1")
    with pytest.raises(Problem) as refused:
        strict.failure("2001:db8::ffff:2")
    assert (refused.value.slug, refused.value.headers) == ("too-many-requests", {"Retry-After": "20"})
    strict.failure("2001:db8:0:1::1")
    strict.failure("192.0.2.1")
    strict.failure("192.0.2.2")
    strict.failure("a unix socket")


def refused(answer: httpx.Response) -> None:
    assert answer.status_code == 429, answer.text
    assert answer.json()["type"] == "urn:hushrec:problem:too-many-requests"
    assert int(answer.headers["retry-after"]) >= 1


def test_a_client_over_its_rate_gets_429_and_others_do_not(tmp_path: Path) -> None:
    with aggregator_inside(tmp_path / "data", client_rate=0.2, operator_rate=1) as api:
        task = api.create_task(cohort=4, mechanism_name="ckks", recipe_name="colr", dim=8, clip=1.0)
        (busy, other), (holder,) = task.enrol(2), task.enrol(1, role="holder")
        answers = [api.http.get(task.path, headers=busy.auth) for _ in range(6)]
        assert [answer.status_code for answer in answers[:4]] == [200] * 4
        refused(answers[-1])
        assert api.http.get(task.path, headers=other.auth).status_code == 200
        assert all(api.http.get(task.path, headers=holder.auth).status_code == 200 for _ in range(20))
        refused([api.http.get("/v1/tasks", headers=api.operator) for _ in range(30)][-1])


def wrong_invitation(api: Api) -> httpx.Response:
    return api.http.post("/v1/enrolments", json=signed_enrolment("hri_wrong"))


def test_failed_attempts_are_limited_and_valid_tokens_from_the_same_address_are_not(tmp_path: Path) -> None:
    with aggregator_inside(tmp_path / "data", failure_rate=0.25) as api:
        task = api.create_task(cohort=4)
        members = task.enrol(10)  # many clients from one address; successful enrolments are not counted
        assert [wrong_invitation(api).status_code for _ in range(2)] == [403] * 2
        tries = [api.http.get(task.path, headers={"Authorization": f"Bearer hrc_{n}"}) for n in range(2)]
        assert [answer.status_code for answer in tries] == [401] * 2
        assert api.http.get(task.path).status_code == 401
        refused(api.http.get(task.path, headers={"Authorization": "Bearer hrc_guess"}))
        refused(api.http.get(task.path))
        refused(wrong_invitation(api))
        assert all(api.http.get(task.path, headers=member.auth).status_code == 200 for member in members)
        assert api.http.get("/healthz").status_code == 200


def test_no_token_is_named_as_the_log_names_that_of_the_settings(database: Database) -> None:
    request = OperatorRequest(name="environment", role="admin")
    with pytest.raises(Problem, match="conflict"), database.write() as session:
        create_operator(session, request, an_operator())
