"""Answers that are sent from memory: equal to the route's, authenticated, and never older than a change."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from aggregator_service.http import fast_answers
from tests.support.inside import aggregator_inside
from tests.support.signing import know


@pytest.fixture
def answered(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What `answer_finder` finds in this test; None where the route has to answer."""
    answers: list[Any] = []
    original = fast_answers._answer

    def recorded(*arguments: Any) -> Any:
        answers.append(original(*arguments))
        return answers[-1]

    monkeypatch.setattr(fast_answers, "_answer", recorded)
    return answers


@pytest.mark.parametrize("resource", ["", "/members/me/ledger"])
def test_the_second_answer_comes_from_memory_and_is_the_same(
    tmp_path: Path, answered: list[Any], resource: str
) -> None:
    with aggregator_inside(tmp_path / "data") as api:
        first, second = api.create_task(cohort=3, min_clients=3).enrol(2)
        path = first.task.path + resource
        made = api.http.get(path, headers=first.auth)
        assert (made.status_code, answered) == (200, [None])
        while answered[-1] is None:  # each commit of the engine makes the answer again
            sent = api.http.get(path, headers=first.auth)
            assert (sent.status_code, sent.json()) == (200, made.json())
        assert answered[-1][0].body == sent.content
        for name in ("content-type", "cache-control"):
            assert sent.headers[name] == made.headers[name]
        assert sent.headers["cache-control"] == "private, no-cache"
        tagged = {**first.auth, "If-None-Match": sent.headers["etag"]}
        unchanged = api.http.get(path, headers=tagged)
        assert (unchanged.status_code, unchanged.content, unchanged.headers["etag"]) == (304, b"", sent.headers["etag"])
        by_route = api.http.get(f"{path}?limit=100" if resource else path, headers=tagged)
        assert (by_route.status_code, by_route.headers["etag"]) == (304, sent.headers["etag"])
        assert api.http.get(path, headers={**first.auth, "If-None-Match": '"other"'}).status_code == 200
        if resource:  # a ledger is its client's own
            assert api.http.get(path, headers=second.auth).status_code == 200
            assert answered[-1] is None


def test_a_change_is_seen_at_once(tmp_path: Path, answered: list[Any]) -> None:
    with aggregator_inside(tmp_path / "data") as api:
        task = api.create_task(cohort=3, min_clients=3)
        (member,) = task.enrol(1)

        def members() -> int:
            return int(api.http.get(task.path, headers=member.auth).json()["members"])

        assert members() == 1
        while answered[-1] is None:  # each commit of the engine makes the answer again
            assert members() == 1
        task.enrol(1)
        assert members() == 2
        assert api.http.post(f"{task.path}/close", headers=api.operator).status_code == 200
        assert api.http.get(task.path, headers=member.auth).json()["state"] == "closed"


def test_a_wrong_signature_and_another_task_get_nothing_from_memory(tmp_path: Path, answered: list[Any]) -> None:
    with aggregator_inside(tmp_path / "data") as api:
        (member,), (stranger,) = (api.create_task(name, cohort=3, min_clients=3).enrol(1) for name in ("one", "two"))
        while not answered or answered[-1] is None:
            assert api.http.get(member.task.path, headers=member.auth).status_code == 200
        assert api.http.get(member.task.path, headers=stranger.auth).status_code == 404
        know(member.token, member.client_id, Ed25519PrivateKey.generate())
        assert api.http.get(member.task.path, headers=member.auth).status_code == 401
        assert answered[-2:] == [None, None]
