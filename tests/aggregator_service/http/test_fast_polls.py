"""Polls that are answered from memory: they are authenticated and recorded like every other request."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import httpx
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from aggregator_service.clock import ManualClock
from aggregator_service.http import fast_polls
from tests.support.api import Api, TestMember
from tests.support.inside import aggregator_inside
from tests.support.signing import know


def poll(member: TestMember, **headers: str) -> httpx.Response:
    return member.task.api.http.get(f"{member.task.path}/rounds/current", headers={**member.auth, **headers})


def members_of_a_started_task(api: Api, count: int = 4) -> list[TestMember]:
    members = api.create_task(cohort=count).enrol(count)
    members[0].task.wait_round(1, "collecting")
    return members


@pytest.fixture
def answered(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What `poll_finder` finds in this test: an ETag and a body, or None where the route has to answer."""
    answers: list[Any] = []
    original = fast_polls._answer

    def recorded(*arguments: Any) -> Any:
        answers.append(original(*arguments))
        return answers[-1]

    monkeypatch.setattr(fast_polls, "_answer", recorded)
    return answers


def wait_until_cached(member: TestMember, answered: list[Any]) -> None:
    end = time.monotonic() + 30
    while not answered or answered[-1] is None:
        assert time.monotonic() < end, "the poll was never answered from memory"
        assert poll(member).status_code == 200
        time.sleep(0.01)


def test_a_poll_with_a_bad_signature_is_one_failed_attempt(tmp_path: Path, answered: list[Any]) -> None:
    with aggregator_inside(tmp_path / "data", failure_rate=0.2) as api:  # 4 failed attempts, and one in 5 seconds
        member = members_of_a_started_task(api)[0]
        wait_until_cached(member, answered)
        know(member.token, member.client_id, Ed25519PrivateKey.generate())
        answers = [poll(member) for _ in range(4)]
        assert [answer.status_code for answer in answers] == [401] * 4
        assert answers[0].json()["type"] == "urn:hushrec:problem:bad-signature"
        assert answers[0].headers["www-authenticate"] == 'Bearer realm="hushrec"'
        assert poll(member).status_code == 429
        assert answered[-5:] == [None] * 5


def test_a_poll_is_counted_once_against_the_rate_of_its_client(tmp_path: Path, answered: list[Any]) -> None:
    clock = ManualClock()
    with aggregator_inside(tmp_path / "data", clock=clock, client_rate=1.0, signature_window=60) as api:
        first, second, *_ = members_of_a_started_task(api)
        wait_until_cached(first, answered)
        old = api.http.build_request("GET", f"{second.task.path}/rounds/current", headers=second.auth)
        next(api.http.auth.sync_auth_flow(old))  # type: ignore[union-attr]
        clock.advance(61)
        stale = [api.http.send(old, auth=None) for _ in range(20)]
        assert [answer.json()["type"] for answer in stale] == ["urn:hushrec:problem:stale-signature"] * 20
        assert answered[-1] is None
        assert api.http.send(old, auth=None).status_code == 429  # a recording uses up its client's rate


def test_the_route_answers_if_the_cache_raises(
    tmp_path: Path, answered: list[Any], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with aggregator_inside(tmp_path / "data") as api:
        member = members_of_a_started_task(api)[0]
        wait_until_cached(member, answered)

        def fail(*_: object) -> None:
            raise RuntimeError("a defect")

        monkeypatch.setattr(fast_polls, "reliable_status", fail)
        assert poll(member).status_code == 200
        assert answered[-1] is None
        assert "cannot answer a poll from the cache; its route answers it" in caplog.text


def test_a_poll_from_memory_has_a_span(tmp_path: Path, answered: list[Any]) -> None:
    provider, exporter = TracerProvider(), InMemorySpanExporter()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    with aggregator_inside(tmp_path / "data", tracer_provider=provider) as api:
        member = members_of_a_started_task(api)[0]
        wait_until_cached(member, answered)
        exporter.clear()
        assert poll(member).headers["cache-control"] == "no-store"
        assert answered[-1] is not None
    span = next(span for span in exporter.get_finished_spans() if span.name.startswith("GET"))
    assert span.name == "GET /v1/tasks/{task}/rounds/current"
    assert dict(span.attributes or {})["hushrec.task"] == member.task.id
