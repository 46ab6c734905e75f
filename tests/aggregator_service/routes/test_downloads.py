"""Aggregates and snapshots that many members download: the same bytes for all, and for members only."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.inside import aggregator_inside

COHORT = 3


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
