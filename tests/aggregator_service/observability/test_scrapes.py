"""`/metrics` while the stores do not answer, and the gauges that alerts need: blob store, certificate."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import httpx
import pytest
from cryptography import x509
from prometheus_client.parser import text_string_to_metric_families
from sqlalchemy import make_url

from tests.support.api import Api
from tests.support.certificates import Authority
from tests.support.inside import aggregator_inside
from tests.support.postgres import TestDatabase, connect
from tests.support.replicas import wait_until
from tests.support.server import AggregatorProcess, running_aggregator


def figures(text: str) -> dict[str, float]:
    """Return the samples that have no labels, by name."""
    return {
        sample.name: sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if not sample.labels
    }


@pytest.fixture
def url(postgres: TestDatabase) -> str:
    return postgres.schema()


@pytest.fixture
def server(tmp_path: Path, url: str) -> Iterator[AggregatorProcess]:
    with running_aggregator(tmp_path / "data", database_url=url) as running:
        yield running


@pytest.fixture
def api(server: AggregatorProcess) -> Iterator[Api]:
    with closing(Api(server.url, server.operator_token)) as made:
        yield made


class Scraper:
    """Prometheus with a token of its own, as the tutorial creates one."""

    def __init__(self, api: Api, name: str) -> None:
        made = api.http.post("/v1/operators", json={"name": name, "role": "read-only"}, headers=api.operator)
        assert made.status_code == 201, made.text
        self.headers = {"Authorization": f"Bearer {made.json()['token']}"}
        self.url = f"{api.http.base_url}/metrics"

    def __call__(self) -> httpx.Response:
        return httpx.get(self.url, headers=self.headers, timeout=10)  # as long as Prometheus waits


def test_the_token_of_a_scraper_reads_that_the_database_is_down(api: Api, postgres: TestDatabase) -> None:
    known, new = Scraper(api, "prometheus"), Scraper(api, "another")
    assert figures(known().text)["hushrec_database_up"] == 1
    with postgres.unavailable():
        answer = known()
        assert (answer.status_code, figures(answer.text)["hushrec_database_up"]) == (200, 0)
        assert "hushrec_rounds{" not in answer.text
        assert "hushrec_requests_total{" in answer.text
        assert new().status_code == 503  # whose it is cannot be asked
    wait_until(lambda: new().status_code == 200, "the database answers again")
    assert figures(known().text)["hushrec_database_up"] == 1


def test_a_revoked_token_reads_no_metrics_also_when_the_database_is_down(api: Api, postgres: TestDatabase) -> None:
    scraper = Scraper(api, "prometheus")
    assert scraper().status_code == 200
    assert api.http.delete("/v1/operators/prometheus", headers=api.operator).status_code == 200
    assert scraper().status_code == 401
    with postgres.unavailable():
        assert scraper().status_code == 503


def test_a_database_that_hangs_is_reported_within_the_time_of_a_scrape(api: Api, url: str) -> None:
    scraper = Scraper(api, "prometheus")
    assert scraper().status_code == 200
    with connect(make_url(url)) as connection:
        with connection.transaction():
            connection.execute("LOCK TABLE operators, rounds")  # queries wait for up to 15 seconds
            answers = [scraper(), httpx.get(scraper.url, headers=api.operator, timeout=10)]
        assert [(one.status_code, figures(one.text)["hushrec_database_up"]) for one in answers] == [(200, 0)] * 2
    assert figures(scraper().text)["hushrec_database_up"] == 1


def test_the_blob_directory_is_measured(tmp_path: Path) -> None:
    with aggregator_inside(tmp_path / "data") as api:
        seen = figures(api.http.get("/metrics", headers=api.operator).text)
        assert seen["hushrec_blobs_up"] == 1
        assert 0 < seen["hushrec_blobs_free_bytes"] < seen["hushrec_blobs_size_bytes"]
        (tmp_path / "data" / "blobs").rename(tmp_path / "elsewhere")
        seen = figures(api.http.get("/metrics", headers=api.operator).text)
        assert seen["hushrec_blobs_up"] == 0
        assert "hushrec_blobs_free_bytes" not in seen


def test_the_end_of_the_certificate_is_a_metric(tmp_path: Path) -> None:
    pair = Authority(tmp_path).sign("server", server=True)
    end = x509.load_pem_x509_certificate(pair.certificate.read_bytes()).not_valid_after_utc.timestamp()
    with aggregator_inside(tmp_path / "tls", tls_cert=pair.certificate, tls_key=pair.key) as api:
        seen = figures(api.http.get("/metrics", headers=api.operator).text)
        assert seen["hushrec_tls_certificate_expiry_timestamp_seconds"] == end
    with aggregator_inside(tmp_path / "plain") as api:
        assert "hushrec_tls" not in api.http.get("/metrics", headers=api.operator).text


def test_concurrent_scrapes_are_all_answered(tmp_path: Path) -> None:
    with running_aggregator(tmp_path / "data") as server, closing(Api(server.url, server.operator_token)) as api:
        scraper, answers = Scraper(api, "prometheus"), []
        threads = [threading.Thread(target=lambda: answers.append(scraper().status_code)) for _ in range(12)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert answers == [200] * 12
