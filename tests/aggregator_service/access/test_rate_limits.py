"""Rate limits by token and, for failed attempts, by address."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from aggregator_service.access import rate_limits
from aggregator_service.access.rate_limits import Buckets, Limits
from aggregator_service.problems import Problem
from aggregator_service.settings import Settings
from tests.support.api import Api, signed_enrolment
from tests.support.inside import aggregator_inside


class Time:
    """A monotonic clock that tests set."""

    def __init__(self) -> None:
        self.seconds = 100.0

    def __call__(self) -> float:
        return self.seconds


def test_a_bucket_allows_a_burst_and_then_its_rate() -> None:
    time = Time()
    buckets = Buckets(2.0, time)
    assert [buckets.take("a") for _ in range(41)] == [0.0] * 40 + [0.5]
    assert buckets.take("b") == 0.0  # another key's bucket is full
    time.seconds += 0.25
    assert buckets.take("a") == pytest.approx(0.25)
    time.seconds += 0.25
    assert buckets.wait("a") == 0.0
    assert (buckets.take("a"), buckets.take("a")) == (0.0, 0.5)
    time.seconds += 1000.0
    assert sum(not buckets.take("a") for _ in range(100)) == 40  # the capacity is one burst
    assert not any(Buckets(0.0).take("a") for _ in range(1000))  # no limit
    slow = Buckets(0.001, Time())
    assert (slow.take("a"), slow.take("a")) == (0.0, pytest.approx(1000.0))


def test_the_number_of_buckets_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rate_limits, "_MAX_BUCKETS", 10)
    time = Time()
    buckets = Buckets(1.0, time)
    for number in range(50):
        buckets.take(f"caller {number}")
    assert len(buckets._levels) == 10
    time.seconds += 60.0
    buckets.wait("caller 49")  # it is full again, so it is dropped
    assert len(buckets._levels) == 9


def test_threads_share_a_bucket() -> None:
    buckets = Buckets(5.0, Time())
    with ThreadPoolExecutor(8) as pool:
        taken = list(pool.map(lambda _: buckets.take("a"), range(500)))
    assert taken.count(0.0) == 100


def test_addresses_of_one_ipv6_network_share_a_limit() -> None:
    strict = Limits(Settings(failure_rate=0.05), Time())
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
    with aggregator_inside(tmp_path / "data", client_rate=0.2) as api:
        task = api.create_task(cohort=4, mechanism_name="ckks", recipe_name="colr", dim=8, clip=1.0)
        busy, other = task.enrol(2)
        answers = [api.http.get(task.path, headers=busy.auth) for _ in range(6)]
        assert [answer.status_code for answer in answers[:4]] == [200] * 4
        refused(answers[-1])
        assert api.http.get(task.path, headers=other.auth).status_code == 200
        assert all(api.http.get(task.path, headers=api.operator).status_code == 200 for _ in range(20))
        (holder,) = task.enrol(1, role="holder")
        assert all(api.http.get(task.path, headers=holder.auth).status_code == 200 for _ in range(20))


def test_an_operator_over_the_rate_gets_429(tmp_path: Path) -> None:
    with aggregator_inside(tmp_path / "data", operator_rate=0.2) as api:
        statuses = [api.http.get("/v1/tasks", headers=api.operator).status_code for _ in range(6)]
        assert (statuses[:4], statuses[-1]) == ([200] * 4, 429)


def wrong_invitation(api: Api) -> httpx.Response:
    body = signed_enrolment("hri_wrong", Ed25519PrivateKey.generate(), X25519PrivateKey.generate())
    return api.http.post("/v1/enrolments", json=body)


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
