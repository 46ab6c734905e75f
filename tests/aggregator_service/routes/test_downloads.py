"""Aggregates and snapshots that many members download: the same bytes for all, and for members only."""

from __future__ import annotations

from contextlib import ExitStack, closing
from pathlib import Path

import httpx
import pytest

from tests.support.api import Api, TestMember
from tests.support.inside import aggregator_inside
from tests.support.replicas import wait_until
from tests.support.server import running_aggregator

COHORT = 3
LONG = 3_000_000
"""Items of a task whose aggregate of 12 MB does not fit the buffers on the way to a client that reads nothing."""


@pytest.mark.parametrize("resource", ["rounds/1/aggregate", "snapshots/1"])
def test_all_members_get_the_same_bytes_and_nobody_else_does(tmp_path: Path, resource: str) -> None:
    with aggregator_inside(tmp_path / "data") as api:
        stranger = api.create_task("other", cohort=COHORT).enrol(1)[0]
        task = api.create_task("downloads", cohort=COHORT, rounds=1)
        members = task.enrol(COHORT)
        path = f"{task.path}/{resource}"
        assert api.http.get(path, headers=members[0].auth).status_code == 404
        task.wait_round(1, "collecting")
        for member in members:
            assert member.put(1, member.contribution(1, 1.0)).status_code == 201
        task.wait_round(1, "complete")
        made = api.http.get(path, headers=members[0].auth)
        assert made.status_code == 200, made.text
        sent = api.http.get(path, headers=members[1].auth)
        assert (sent.status_code, sent.content) == (200, made.content)
        tagged = {**members[2].auth, "If-None-Match": made.headers["etag"]}
        unchanged = api.http.get(path, headers=tagged)
        assert (unchanged.status_code, unchanged.content) == (304, b"")
        assert made.headers["cache-control"] == unchanged.headers["cache-control"] == "private, immutable"
        assert api.http.get(path, headers=stranger.auth).status_code == 404
        assert api.http.get(path).status_code == 401
        assert api.http.get(path, headers=api.operator).content == made.content
        revoked = api.http.delete(f"{task.path}/members/{members[1].client_id}", headers=api.operator)
        assert revoked.status_code == 200
        assert api.http.get(path, headers=members[1].auth).status_code == 401


def test_a_client_has_eight_downloads_open_at_most(tmp_path: Path) -> None:
    with running_aggregator(tmp_path / "data") as server, ExitStack() as resources:
        api = resources.enter_context(closing(Api(server.url, server.operator_token)))
        task = api.create_task(items=LONG, cohort=2, rounds=1, min_clients=2)
        members = task.enrol(2)
        task.wait_round(1, "collecting")
        for member in members:
            assert member.put(1, member.contribution(1, 1.0)).status_code == 201
        task.wait_round(1, "complete")
        path = f"{task.path}/rounds/1/aggregate"

        def opened(member: TestMember) -> httpx.Response:
            """A response of which nothing is read until the test ends."""
            return resources.enter_context(api.http.stream("GET", path, headers=member.auth))

        first = [opened(members[0]) for _ in range(8)]
        assert [one.status_code for one in first] == [200] * 8
        refused = api.http.get(path, headers=members[0].auth)
        assert (refused.status_code, refused.json()["type"]) == (429, "urn:hushrec:problem:too-many-requests")
        assert "Retry-After" in refused.headers
        assert opened(members[1]).status_code == 200  # each client has its own
        first[0].close()
        wait_until(lambda: api.http.get(path, headers=members[0].auth).status_code == 200, "one has ended", 30)
