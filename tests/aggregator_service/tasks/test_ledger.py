"""The ledger over HTTP: released sums, their number of survivors, and a client's own contributions."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from aggregator_service.clock import ManualClock
from tests.support.api import Api, TestMember, TestTask
from tests.support.inside import aggregator_inside


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(1_700_000_000.0)


@pytest.fixture
def api(tmp_path: Path, clock: ManualClock) -> Iterator[Api]:
    with aggregator_inside(tmp_path / "data", clock=clock) as inside:
        yield inside


def play(task: TestTask, members: list[TestMember], rounds: int, away: dict[int, int] | None = None) -> None:
    """All members but number `away[round]` contribute."""
    for number in range(1, rounds + 1):
        task.wait_round(number, "collecting")
        for place, member in enumerate(members):
            if (away or {}).get(number) != place:
                assert member.put(number, member.contribution(number, 1.0)).status_code == 201
        if number in (away or {}):
            clock: ManualClock = task.api.http.app.state.services.clock  # type: ignore[attr-defined]
            clock.advance(601.0)
        task.wait_round(number, "complete", "failed")


def mine(member: TestMember, **query: int) -> dict[str, Any]:
    answer = member.task.api.http.get(f"{member.task.path}/members/me/ledger", headers=member.auth, params=query)
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


def test_a_client_sees_the_sums_that_contain_it(api: Api) -> None:
    task = api.create_task(cohort=3, rounds=3)
    members = task.enrol(3)
    play(task, members, 3, away={2: 0})
    assert [entry["round"] for entry in mine(members[0])["entries"]] == [1, 3]
    entries = mine(members[1])["entries"]
    assert [(entry["round"], entry["step"], entry["survivors"]) for entry in entries] == [
        (1, 1, 3),
        (2, 2, 2),
        (3, 3, 3),
    ]
    body = members[1].contribution(2, 1.0)
    assert entries[1]["contribution_digest"] == hashlib.sha256(body).hexdigest()
    assert entries[0]["survivors_digest"] == entries[2]["survivors_digest"] != entries[1]["survivors_digest"]
    assert (entries[0]["recipe"], entries[0]["mechanism"], entries[0]["data_set"]) == ("fedmf", "plain", None)
    assert [entry["released_at"] for entry in entries] == [1_700_000_000.0, 1_700_000_601.0, 1_700_000_601.0]


def test_operators_see_every_sum_and_no_failed_round(api: Api) -> None:
    task = api.create_task(cohort=2, rounds=2, data_set="ratings")
    members = task.enrol(2)
    play(task, members, 3, away={2: 0})  # below the floor: fails
    assert task.round(2)["state"] == "failed"
    answer = api.http.get(f"{task.path}/ledger", headers=api.operator).json()
    assert [(entry["round"], entry["step"], entry["data_set"]) for entry in answer["entries"]] == [
        (1, 1, "ratings"),
        (3, 2, "ratings"),
    ]
    assert all(entry["contribution_digest"] is None for entry in answer["entries"])
    # It contributed to round 2, too, which failed.
    assert [entry["round"] for entry in mine(members[1])["entries"]] == [1, 3]


def test_the_ledger_has_pages(api: Api) -> None:
    task = api.create_task(cohort=2, rounds=5)
    members = task.enrol(2)
    play(task, members, 5)
    first = mine(members[0], limit=2)
    assert ([entry["round"] for entry in first["entries"]], first["more"]) == ([1, 2], True)
    last = mine(members[0], after=3, limit=2)
    assert ([entry["round"] for entry in last["entries"]], last["more"]) == ([4, 5], False)
    everything = api.http.get(f"{task.path}/ledger", headers=api.operator, params={"after": 4}).json()
    assert ([entry["round"] for entry in everything["entries"]], everything["more"]) == ([5], False)
