"""`/metrics`: values after whole rounds, access, and labels without ids."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families
from sqlalchemy.exc import OperationalError

from protocols.messages.stages import RoundState
from tests.support.api import Api, digest_field
from tests.support.inside import aggregator_inside
from tests.support.server import running_aggregator


@pytest.fixture
def api(tmp_path: Path) -> Iterator[Api]:
    with aggregator_inside(tmp_path / "data", fold_batch=2) as running:
        yield running


def figures(api: Api) -> dict[tuple[str, ...], float]:
    """Return every sample: (name, label values in order of the labels' names) -> value."""
    answer = api.http.get("/metrics", headers=api.operator)
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"].startswith("text/plain")
    return {
        (sample.name, *(value for _, value in sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(answer.text)
        for sample in family.samples
    }


def test_metrics_of_a_whole_round(api: Api) -> None:
    task = api.create_task(cohort=3, collect_seconds=600)
    members = task.enrol(3)
    task.wait_round(1, "collecting")
    seen = figures(api)
    assert seen["hushrec_rounds", "collecting"] == 1
    assert seen["hushrec_members", "member"] == 3
    assert seen["hushrec_tasks", "open"] == 1
    body = members[0].contribution(1, 5.0)
    assert members[0].put(1, body).status_code == 201
    assert members[0].put(1, body).status_code == 200
    assert members[0].put(1, members[0].contribution(1, 6.0)).status_code == 409
    assert members[1].put(1, body[:-1]).status_code == 400
    assert figures(api)["hushrec_queue_depth",] == 1
    for member in members[1:]:
        assert member.put(1, member.contribution(1, 2.0)).status_code == 201
    task.wait_round(1, "complete")
    seen = figures(api)
    contributions = {key[1:]: value for key, value in seen.items() if key[0] == "hushrec_contributions_total"}
    assert contributions == {
        ("", "accepted"): 3,
        ("", "repeated"): 1,
        ("", "conflict"): 1,
        ("body-too-short", "refused"): 1,
    }
    assert seen["hushrec_rounds", "complete"] == 1
    assert seen["hushrec_rounds", "collecting"] == 0
    assert seen["hushrec_round_outcomes_total", "released"] == 1
    assert seen["hushrec_upload_bytes_total", "contribution"] >= 3 * len(body)
    assert seen["hushrec_fold_seconds_count",] == 2  # batches of two and one
    assert seen["hushrec_release_seconds_count",] == 1
    assert seen["hushrec_unmask_seconds_count",] == 0
    assert (seen["hushrec_queue_depth",], seen["hushrec_engine_jobs",]) == (0, 0)
    route = "/v1/tasks/{task}/rounds/{number}/contributions/{client}"
    assert seen["hushrec_requests_total", "PUT", route, "201"] == 3
    assert seen["hushrec_request_seconds_count", "PUT", route, "no"] == 6
    assert seen["process_resident_memory_bytes",] > 10_000_000
    assert seen["hushrec_database_up",] == 1


def test_bytes_of_bodies_are_counted_also_when_refused(tmp_path: Path) -> None:
    with running_aggregator(tmp_path / "data") as server:
        api = Api(server.url, server.operator_token)
        task = api.create_task(items=30_000, cohort=2, collect_seconds=600)
        member = task.enrol(2)[0]
        task.wait_round(1, "collecting")
        body = member.contribution(1, 5.0)
        assert len(body) > 300_000
        for digest, status, times in ((digest_field(b"x"), 400, 1), (digest_field(body), 201, 2)):
            answer = api.http.put(member.path(1), content=body, headers={**member.auth, "Content-Digest": digest})
            assert answer.status_code == status, answer.text
            assert figures(api)["hushrec_upload_bytes_total", "contribution"] == times * len(body)
        api.close()


def test_dropouts_are_counted(api: Api) -> None:
    task = api.create_task(cohort=4, collect_seconds=1)
    members = task.enrol(4)
    task.wait_round(1, "collecting")
    for member in members[:3]:
        assert member.put(1, member.contribution(1, 2.0)).status_code == 201
    task.wait_round(1, "complete")
    assert figures(api)["hushrec_dropouts_total", "collecting"] == 1


def test_refusals_are_counted_and_logged(api: Api, caplog: pytest.LogCaptureFixture) -> None:
    """Of the cohort's clients alone, with reasons of the list alone; the round goes on without the client."""
    task = api.create_task(cohort=3, collect_seconds=600)
    members = task.enrol(3)
    task.wait_round(1, "collecting")
    late = task.enrol(1)[0]
    path = f"{task.path}/rounds/1/refusals"
    assert figures(api)["hushrec_refusals_total", "roster"] == 0
    answer = api.http.post(path, json={"reason": "roster"}, headers=members[0].auth)
    assert (answer.status_code, answer.json()["state"]) == (200, "collecting")
    assert api.http.post(path, json={"reason": "a secret"}, headers=members[0].auth).status_code == 422
    assert api.http.post(path, json={"reason": "roster"}, headers=late.auth).status_code == 403
    assert api.http.post(path, json={"reason": "roster"}, headers=api.operator).status_code == 403
    assert figures(api)["hushrec_refusals_total", "roster"] == 1
    again = api.http.post(path, json={"reason": "policy"}, headers=members[0].auth)
    assert again.status_code == 200  # a repeated notice changes nothing
    assert figures(api)["hushrec_refusals_total", "policy"] == 0
    assert (answer.json()["refusals"], task.round(1)["refusals"]) == ({}, {"roster": 1})
    (line,) = [record for record in caplog.records if record.getMessage() == "client refused the round"]
    assert members[0].client_id in str(vars(line))


def test_the_outcome_of_a_failed_round_is_counted(api: Api) -> None:
    task = api.create_task(cohort=2)
    task.enrol(2)
    task.wait_round(1, "collecting")
    api.http.post(f"{task.path}/close", headers=api.operator)
    seen = figures(api)
    assert seen["hushrec_round_outcomes_total", "task_closed"] == 1
    assert seen["hushrec_round_outcomes_total", "deadline_missed"] == 0  # the series exists before its first event


def test_no_label_holds_text_from_a_request(api: Api) -> None:
    task = api.create_task(cohort=2)
    (member, _) = task.enrol(2)
    task.wait_round(1, "collecting")
    before = set(figures(api))
    for path in (f"{task.path}/rounds/1", f"{task.path}/rounds/77", f"/v1/tasks/{task.id}x", "/v1/nothing/here"):
        api.http.get(path, headers=member.auth)
    api.http.request("BREW", "/v1/tasks", headers=api.operator)
    text = " ".join(" ".join(key) for key in figures(api))
    assert "(no route)" in text
    assert not re.search(r"[tc]_[0-9a-f]{20}|nothing|BREW|hr[oci]_", text)
    for path in (f"/somewhere/{number}" for number in range(20)):
        api.http.get(path)
    later = {key[:1] for key in set(figures(api)) - before}
    assert later <= {(name,) for name in (
        "hushrec_requests_total", "hushrec_requests_created", "hushrec_request_seconds_bucket",
        "hushrec_request_seconds_count", "hushrec_request_seconds_sum", "hushrec_request_seconds_created",
    )}  # fmt: skip
    routes = {key[2] for key in figures(api) if key[0] == "hushrec_requests_total"}
    assert len(routes) <= 10


def test_only_operators_may_read_by_default(api: Api, tmp_path: Path) -> None:
    (member,) = api.create_task(cohort=2).enrol(1)
    assert api.http.get("/metrics").status_code == 401
    assert api.http.get("/metrics", headers=member.auth).status_code == 403
    with aggregator_inside(tmp_path / "open", metrics="open") as opened:
        assert "hushrec_rounds" in opened.http.get("/metrics").text
    with aggregator_inside(tmp_path / "off", metrics="off") as closed:
        assert closed.http.get("/metrics", headers=closed.operator).status_code == 404


def test_an_unavailable_database_is_reported(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    def unavailable() -> None:
        raise OperationalError("SELECT", {}, Exception("gone"))

    services = api.http.app.state.services  # type: ignore[attr-defined]
    headers = {"Authorization": "Bearer " + services.settings.operator_token.get_secret_value()}
    monkeypatch.setattr(services.database, "read", unavailable)
    text = api.http.get("/metrics", headers=headers).text
    assert "hushrec_database_up 0.0" in text
    assert "hushrec_requests_total" in text
    assert "hushrec_rounds{" not in text


def test_every_metric_is_on_the_monitoring_page(api: Api) -> None:
    page = (Path(__file__).parents[3] / "docs" / "monitoring.md").read_text(encoding="utf-8")
    text = api.http.get("/metrics", headers=api.operator).text
    names = re.findall(r"^# TYPE (hushrec_\w+) (?!gauge$)|^# TYPE (hushrec_\w+) gauge$", text, re.M)
    for name in {first or second for first, second in names if not (first or second).endswith("_created")}:
        assert f"`{name}" in page, name
    assert all(f"`{state}`" in page for state in RoundState)
