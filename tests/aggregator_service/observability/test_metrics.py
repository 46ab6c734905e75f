"""`/metrics`: values after whole rounds, access, labels without ids, stores that do not answer, clocks that differ."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from cryptography import x509
from prometheus_client.parser import text_string_to_metric_families
from sqlalchemy import event, make_url, text

from aggregator_service.clock import SystemClock
from aggregator_service.dashboard.facts import health_facts
from aggregator_service.observability.metrics import ExecutorGauges
from tests.support.api import Api, aggregator_inside, checked, contribute, digest_field, services, serving
from tests.support.dashboard import new_operator
from tests.support.replicas import TestDatabase, connect, wait_until
from tests.support.server import TLS, Authority
from tests.support.signing import Signatures


@pytest.fixture
def api(tmp_path: Path) -> Iterator[Api]:
    with aggregator_inside(tmp_path / "data", fold_batch=2) as running:
        yield running


def samples(text: str) -> dict[tuple[str, ...], float]:
    """Every sample: (name, label values in order of the labels' names) -> value."""
    return {
        (sample.name, *(value for _, value in sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def figures(api: Api) -> dict[tuple[str, ...], float]:
    answer = checked(api.http.get("/metrics", headers=api.operator))
    assert answer.headers["content-type"].startswith("text/plain")
    return samples(answer.text)


def test_metrics_of_a_whole_round(api: Api) -> None:
    task, members = api.begin(4, min_clients=3, collect_seconds=600)
    seen = figures(api)
    assert seen["hushrec_rounds", "collecting"] == 1
    assert seen["hushrec_members", "member"] == 4
    assert seen["hushrec_round_outcomes_total", "deadline_missed"] == 0  # the series exists before its first event
    assert seen["hushrec_tasks", "open"] == 1
    body = members[0].contribution(1, 5.0)
    assert members[0].put(1, body).status_code == 201
    assert members[0].put(1, body).status_code == 200
    assert members[0].put(1, members[0].contribution(1, 6.0)).status_code == 409
    assert members[1].put(1, body[:-1]).status_code == 400
    assert figures(api)["hushrec_queue_depth",] == 1
    received = figures(api)["hushrec_upload_bytes_total", "contribution"]
    assert members[1].put(1, body, {"Content-Digest": digest_field(b"x")}).status_code == 400
    assert figures(api)["hushrec_upload_bytes_total", "contribution"] == received + len(body)
    contribute(members[1:3], 1, 2.0)
    task.expire(1)
    task.wait_round(1, "complete")
    route = "/v1/tasks/{task}/rounds/{number}/aggregate"
    downloaded = len(checked(members[0].get("rounds/1/aggregate")).content)
    assert figures(api)["hushrec_response_bytes_total", route] == downloaded > 0
    closed = api.create_task("closed", cohort=2)
    closed.begin(2)
    closed.close()
    seen = figures(api)
    assert seen["hushrec_dropouts_total", "collecting"] == 1
    assert seen["hushrec_round_outcomes_total", "task_closed"] == 1
    contributions = {key[1:]: value for key, value in seen.items() if key[0] == "hushrec_contributions_total"}
    assert contributions == {
        ("", "accepted"): 3,
        ("", "repeated"): 1,
        ("", "conflict"): 1,
        ("body-too-short", "refused"): 1,
        ("bad-digest", "refused"): 1,
    }
    assert seen["hushrec_rounds", "complete"] == 1
    assert seen["hushrec_rounds", "collecting"] == 0
    assert seen["hushrec_round_outcomes_total", "released"] == 1
    assert seen["hushrec_fold_seconds_count",] == 2  # batches of two and one
    assert seen["hushrec_release_seconds_count",] == 1
    assert seen["hushrec_unmask_seconds_count",] == 0
    assert (seen["hushrec_queue_depth",], seen["hushrec_engine_jobs",]) == (0, 0)
    route = "/v1/tasks/{task}/rounds/{number}/contributions/{client}"
    assert seen["hushrec_requests_total", "PUT", route, "201"] == 3
    assert seen["hushrec_request_seconds_count", "PUT", route, "no"] == 7
    assert seen["process_resident_memory_bytes",] > 10_000_000
    assert seen["hushrec_database_up",] == 1


def test_refusals_are_counted_and_logged(api: Api, caplog: pytest.LogCaptureFixture) -> None:
    """Of the cohort's clients alone, with reasons of the list alone; the round goes on without the client."""
    task, members = api.begin(3, collect_seconds=600)
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


def test_no_label_holds_text_from_a_request(api: Api) -> None:
    task, (member, _) = api.begin(2)
    before = set(figures(api))
    places = [f"/somewhere/{number}" for number in range(20)]
    for path in (f"{task.path}/rounds/1", f"{task.path}/rounds/77", f"/v1/tasks/{task.id}x", *places):
        api.http.get(path, headers=member.auth)
    api.http.request("BREW", "/v1/tasks", headers=api.operator)
    seen = set(figures(api))
    text = " ".join(" ".join(key) for key in seen)
    assert "(no route)" in text
    assert not re.search(r"[tc]_[0-9a-f]{20}|somewhere|BREW|hr[oci]_", text)
    requests = ("hushrec_requests_", "hushrec_request_seconds_", "hushrec_response_bytes_")
    assert all(key[0].startswith(requests) for key in seen - before)
    assert len({key[2] for key in seen if key[0] == "hushrec_requests_total"}) <= 10


def test_the_open_task_that_is_idle_for_longest_is_a_metric(tmp_path: Path) -> None:
    """Since its last sum; before that, since its creation. What is over does not count."""
    with aggregator_inside(tmp_path / "data", clock=SystemClock()) as api:
        assert figures(api)["hushrec_task_idle_seconds",] == 0
        old, new = api.create_task("old", cohort=2, rounds=5), api.create_task("new", cohort=2)
        members = old.begin(2)
        contribute(members, 1)
        old.wait_round(1, "complete")

        def age(table: str, column: str, seconds: float, where: str) -> None:
            with services(api).database.write() as session:
                session.execute(text(f"UPDATE {table} SET {column} = {column} - {seconds} WHERE {where}"))  # noqa: S608

        age("tasks", "created_at", 9000, f"id = '{old.id}'")
        age("tasks", "created_at", 500, f"id = '{new.id}'")
        assert 500 <= figures(api)["hushrec_task_idle_seconds",] < 900
        age("rounds", "released_at", 3000, f"task_id = '{old.id}'")
        assert 3000 <= figures(api)["hushrec_task_idle_seconds",] < 3400
        old.close()
        assert 500 <= figures(api)["hushrec_task_idle_seconds",] < 900


def test_the_executor_is_up_and_ready_or_not() -> None:
    def down() -> str:
        raise RuntimeError("no scheduler")

    for check, expected in ((str, (1, 1)), (lambda: "waiting for workers", (1, 0)), (down, (0, 0))):
        (up, ready) = ExecutorGauges(check).collect()
        assert (up.samples[0].value, ready.samples[0].value) == expected
        assert (up.name, ready.name) == ("hushrec_executor_up", "hushrec_executor_ready")


def test_only_operators_may_read_by_default(api: Api, tmp_path: Path) -> None:
    (member,) = api.create_task(cohort=2).enrol(1)
    assert [api.http.get("/metrics", headers=headers).status_code for headers in ({}, member.auth)] == [401, 403]
    with aggregator_inside(tmp_path / "open", metrics="open") as opened:
        assert "hushrec_rounds" in opened.http.get("/metrics").text
    with aggregator_inside(tmp_path / "off", metrics="off") as closed:
        assert closed.http.get("/metrics", headers=closed.operator).status_code == 404


@pytest.fixture(scope="module")
def server_api(postgres: TestDatabase, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    with serving(tmp_path_factory.mktemp("metrics") / "data", database_url=postgres.schema()) as (_, made):
        yield made


class Scraper:
    """Prometheus with a token of its own, as the tutorial creates one."""

    def __init__(self, server_api: Api, name: str) -> None:
        self.headers = {"Authorization": f"Bearer {new_operator(server_api, name, 'read-only')}"}
        self.url = f"{server_api.http.base_url}/metrics"

    def __call__(self) -> httpx.Response:
        return httpx.get(self.url, headers=self.headers, timeout=10, verify=TLS)  # as long as Prometheus waits


def test_the_token_of_a_scraper_reads_that_the_database_is_down(server_api: Api, postgres: TestDatabase) -> None:
    known, new, revoked = (Scraper(server_api, name) for name in ("prometheus", "another", "revoked"))
    with ThreadPoolExecutor(12) as pool:  # as many at once are all answered
        assert [answer.status_code for answer in pool.map(lambda _: known(), range(12))] == [200] * 12
    assert samples(known().text)["hushrec_database_up",] == 1
    assert revoked().status_code == 200
    assert server_api.http.delete("/v1/operators/revoked", headers=server_api.operator).status_code == 200
    assert revoked().status_code == 401
    with postgres.unavailable():
        assert revoked().status_code == 503
        answer = known()
        assert (answer.status_code, samples(answer.text)["hushrec_database_up",]) == (200, 0)
        assert "hushrec_rounds{" not in answer.text
        assert "hushrec_requests_total{" in answer.text
        assert new().status_code == 503  # whose it is cannot be asked
    wait_until(lambda: new().status_code == 200, "the database answers again")
    assert samples(known().text)["hushrec_database_up",] == 1


def test_a_database_that_hangs_is_reported_within_the_time_of_a_scrape(server_api: Api) -> None:
    scraper = Scraper(server_api, "patient")
    assert scraper().status_code == 200
    with connect(make_url(server_api.database_url)) as connection:
        with connection.transaction():
            connection.execute("LOCK TABLE operators, rounds")  # queries wait for up to 15 seconds
            with ThreadPoolExecutor(2) as pool:
                both = pool.submit(scraper), pool.submit(server_api.http.get, "/metrics", headers=server_api.operator)
                answers = [one.result() for one in both]
        assert [(one.status_code, samples(one.text)["hushrec_database_up",]) for one in answers] == [(200, 0)] * 2
    assert samples(scraper().text)["hushrec_database_up",] == 1


def test_the_blob_directory_and_the_end_of_the_certificate_are_metrics(api: Api, tmp_path: Path) -> None:
    assert "hushrec_tls" not in api.http.get("/metrics", headers=api.operator).text
    pair = Authority(tmp_path).sign("server", server=True)
    end = x509.load_pem_x509_certificate(pair.certificate.read_bytes()).not_valid_after_utc.timestamp()
    with aggregator_inside(tmp_path / "tls", tls_cert=pair.certificate, tls_key=pair.key) as scraped:
        seen = figures(scraped)
        assert seen["hushrec_tls_certificate_expiry_timestamp_seconds",] == end
        assert seen["hushrec_blobs_up",] == 1
        assert 0 < seen["hushrec_blobs_free_bytes",] < seen["hushrec_blobs_size_bytes",]
        (tmp_path / "tls" / "blobs").rename(tmp_path / "elsewhere")
        seen = figures(scraped)
        assert seen["hushrec_blobs_up",] == 0
        assert ("hushrec_blobs_free_bytes",) not in seen


class WrongClock:
    def __init__(self, ahead: float) -> None:
        self.ahead = ahead

    def now(self) -> float:
        return time.time() + self.ahead


def test_a_clock_unlike_the_databases(tmp_path: Path, postgres: TestDatabase, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "aggregator_service")
    clock = WrongClock(-10.0)
    with aggregator_inside(tmp_path / "data", clock=clock, database_url=postgres.schema(), signature_window=60) as api:
        wait_until(lambda: services(api).clocks.offset != 0.0, "the first measurement")
        assert figures(api)["hushrec_clock_offset_seconds",] == pytest.approx(-10.0, abs=1.0)
        answer = checked(api.http.get("/readyz"))
        words = answer.json()["clock"]
        assert "behind the database's" in words
        assert {check.name: check.level for check in health_facts(services(api)).checks}["Clock"] == "attention"
        warnings = [record for record in caplog.records if "the clock of this machine" in record.getMessage()]
        assert [(one.levelno, words in one.getMessage()) for one in warnings] == [(logging.WARNING, True)]
        clock.ahead = 0.0
        services(api).clocks.measure()
        assert any("agrees with the database's again" in record.getMessage() for record in caplog.records)
        time.sleep(1.1)  # a result is kept for a second
        assert api.http.get("/readyz").json() == {"status": "ready"}
        # more than half of the window: two replicas at opposite ends would refuse signatures with the other's time
        clock.ahead = 31.0
        services(api).clocks.measure()
        time.sleep(1.1)
        answer = api.http.get("/readyz")
        assert (answer.status_code, answer.json()["type"]) == (503, "urn:hushrec:problem:unavailable")
        assert "ahead of the database's: set it" in answer.json()["detail"]


@pytest.mark.parametrize("ahead", [31.0, -31.0, 7 * 86_400.0])
def test_a_server_with_a_wrong_clock_judges_nothing_by_it_and_leads_no_rounds(
    tmp_path: Path, postgres: TestDatabase, caplog: pytest.LogCaptureFixture, ahead: float
) -> None:
    """It answers 503 to what has to do with time: signatures, deadlines, invitations, tokens that expire, new rows."""
    clock = WrongClock(0.0)
    with aggregator_inside(tmp_path / "data", clock=clock, database_url=postgres.schema(), signature_window=60) as api:
        task, members = api.begin(2, "clocks")
        hour = {"name": "hour", "role": "read-only", "expires_seconds": 3600}
        expiring = checked(api.http.post("/v1/operators", json=hour, headers=api.operator), 201).json()["token"]
        invitation = api.invite(task.id)
        wait_until(lambda: figures(api)["hushrec_engine_leading",] == 1.0, "it does not lead")
        clock.ahead = ahead
        services(api).clocks.measure()
        refused = [
            api.http.get(task.path, headers=members[0].auth),
            members[0].put(1, members[0].contribution(1, 1.0)),
            api.http.get("/v1/enrolments/task", headers={"Authorization": f"Bearer {invitation}"}),
            api.enrol(invitation),
            api.http.post(f"{task.path}/rounds/1/extend", json={"seconds": 60}, headers=api.operator),
            api.http.post(f"{task.path}/invitations", json={"uses": 1}, headers=api.operator),
        ]
        read = api.http.get(task.path, headers={"Authorization": f"Bearer {expiring}"})
        if ahead > hour["expires_seconds"]:
            refused.append(read)  # the token may be valid still
        assert read.status_code == (503 if ahead > hour["expires_seconds"] else 200)
        assert {(answer.status_code, answer.headers.get("retry-after")) for answer in refused} == {(503, "1")}
        assert all("the clock of this server is" in answer.json()["detail"] for answer in refused)
        wait_until(lambda: figures(api)["hushrec_engine_leading",] == 0.0, "it goes on leading")  # operators may read
        (line,) = [one for one in caplog.records if "drives no rounds" in one.getMessage()]
        assert line.levelno == logging.ERROR
        clock.ahead = 0.0
        services(api).clocks.measure()
        wait_until(lambda: figures(api)["hushrec_engine_leading",] == 1.0, "it does not lead again")
        contribute(members, 1)
        task.assert_sum(1, [1.0, 2.0])


def test_clients_clocks_are_counted_and_logged_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The clock of the database is this machine's with SQLite."""
    caplog.set_level(logging.INFO, "aggregator_service")
    with aggregator_inside(tmp_path / "data", clock=SystemClock()) as api:
        services(api).clocks.measure()
        assert figures(api)["hushrec_clock_offset_seconds",] == 0.0
        task = api.create_task(cohort=2)
        member = task.enrol(1)[0]
        before = figures(api)
        api.http.auth = Signatures(WrongClock(-20.0).now)
        for _ in range(3):
            assert api.http.get(task.path, headers=member.auth).status_code == 200
        seen = figures(api)
        within, counted = ("hushrec_client_clock_seconds_bucket", "10.0"), ("hushrec_client_clock_seconds_count",)
        assert (seen[within], seen[counted]) == (before[within], before[counted] + 3)
        (line,) = [record for record in caplog.records if "clock of a client" in record.getMessage()]
        assert member.client_id in str(vars(line))


def test_a_database_whose_disk_is_full_is_not_ready(tmp_path: Path) -> None:
    """SQLite is told that it may have no more pages, which it reports as a full disk."""
    with aggregator_inside(tmp_path / "data") as api:
        assert checked(api.http.get("/readyz")).json() == {"status": "ready"}
        assert figures(api)["hushrec_database_disk_full",] == 0

        def allow_no_page(connection: Any, *_: object) -> None:
            connection.execute("PRAGMA max_page_count = 1")  # it takes this for the present number

        event.listen(services(api).database.engine, "checkout", allow_no_page)
        body = {"name": "x" * 40, "role": "operator"}
        statuses = {
            api.http.post("/v1/operators", json={**body, "name": f"{n}-{'x' * 40}"}, headers=api.operator).status_code
            for n in range(200)
        }
        assert statuses == {201, 503}
        time.sleep(1.1)  # a result is kept for a second
        answer = api.http.get("/readyz")
        assert answer.status_code == 503 and "the disk of the database is full" in answer.json()["detail"]
        seen = figures(api)
        assert (seen["hushrec_database_up",], seen["hushrec_database_disk_full",]) == (0, 1)
