"""Clocks that differ from the database's or from a client's are seen: log, metrics, `/readyz`."""

from __future__ import annotations

import logging
import time
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from aggregator_service.clock import SystemClock
from aggregator_service.dashboard.facts import health_facts
from tests.support.api import Api
from tests.support.inside import aggregator_inside, services
from tests.support.postgres import TestDatabase
from tests.support.replicas import wait_until
from tests.support.signing import Signatures


class WrongClock:
    """A machine's clock that is `ahead` seconds ahead."""

    def __init__(self, ahead: float) -> None:
        self.ahead = ahead

    def now(self) -> float:
        return time.time() + self.ahead


def samples(api: Api) -> dict[tuple[str, ...], float]:
    text = api.http.get("/metrics", headers=api.operator).text
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


@pytest.mark.parametrize("ahead", [10.0, -10.0])
def test_a_clock_that_differs_from_the_databases_is_reported(
    tmp_path: Path, postgres: TestDatabase, caplog: pytest.LogCaptureFixture, ahead: float
) -> None:
    caplog.set_level(logging.INFO, "aggregator_service")
    clock = WrongClock(ahead)
    with aggregator_inside(tmp_path / "data", clock=clock, database_url=postgres.schema()) as api:
        wait_until(lambda: services(api).clocks.offset != 0.0, "the first measurement")
        assert samples(api)["hushrec_clock_offset_seconds",] == pytest.approx(ahead, abs=1.0)
        answer = api.http.get("/readyz")
        assert answer.status_code == 200
        words = answer.json()["clock"]
        assert ("ahead of the database's" if ahead > 0 else "behind the database's") in words
        assert {check.name: check.level for check in health_facts(services(api)).checks}["Clock"] == "attention"
        warnings = [record for record in caplog.records if "the clock of this machine" in record.getMessage()]
        assert [(one.levelno, words in one.getMessage()) for one in warnings] == [(logging.WARNING, True)]
        clock.ahead = 0.0
        services(api).clocks.measure()
        assert any("agrees with the database's again" in record.getMessage() for record in caplog.records)
        time.sleep(1.1)  # a result is kept for a second
        assert api.http.get("/readyz").json() == {"status": "ready"}


def test_a_clock_beyond_half_of_the_window_makes_a_replica_unready(tmp_path: Path, postgres: TestDatabase) -> None:
    """Of two replicas at 120 s before and behind the time, each refuses signatures with the other's time for ever."""
    url = postgres.schema()
    with aggregator_inside(tmp_path / "data", clock=WrongClock(31.0), database_url=url, signature_window=60) as api:
        wait_until(lambda: services(api).clocks.offset != 0.0, "the first measurement")
        answer = api.http.get("/readyz")
        assert (answer.status_code, answer.json()["type"]) == (503, "urn:hushrec:problem:unavailable")
        assert "ahead of the database's: set it" in answer.json()["detail"]


def test_sqlite_has_no_clock_of_its_own(tmp_path: Path) -> None:
    with aggregator_inside(tmp_path / "data", clock=WrongClock(300.0)) as api:
        services(api).clocks.measure()
        assert samples(api)["hushrec_clock_offset_seconds",] == 0.0
        assert api.http.get("/readyz").json() == {"status": "ready"}


def test_clients_clocks_are_counted_and_logged_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "aggregator_service")
    with aggregator_inside(tmp_path / "data", clock=SystemClock()) as api:
        task = api.create_task(cohort=2)
        member = task.enrol(1)[0]
        before = samples(api)
        api.http.auth = Signatures(WrongClock(-20.0).now)
        for _ in range(3):
            assert api.http.get(task.path, headers=member.auth).status_code == 200
        seen = samples(api)
        within, counted = ("hushrec_client_clock_seconds_bucket", "10.0"), ("hushrec_client_clock_seconds_count",)
        assert (seen[within], seen[counted]) == (before[within], before[counted] + 3)
        (line,) = [record for record in caplog.records if "clock of a client" in record.getMessage()]
        assert member.client_id in str(vars(line))
