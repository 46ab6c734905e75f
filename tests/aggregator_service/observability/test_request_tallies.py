"""Tallies of requests: the same samples as those of prometheus_client's own counters and histograms."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest

from aggregator_service.observability.request_record import RequestRecord
from aggregator_service.observability.request_tallies import RequestTallies

UPLOAD = "/v1/tasks/{task}/rounds/{number}/contributions/{client}"
BOUNDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)


def lines(registry: CollectorRegistry, *names: str) -> list[str]:
    """The samples of these metrics as Prometheus reads them, in a fixed order."""
    found = generate_latest(registry).decode().splitlines()
    return sorted(line for line in found if line.startswith(names) and "_created" not in line)


def tallied(records: Iterable[RequestRecord]) -> CollectorRegistry:
    registry, tallies = CollectorRegistry(), RequestTallies()
    registry.register(tallies)
    for record in records:
        tallies.count(record)
    return registry


RECORDS = st.builds(
    RequestRecord,
    method=st.sampled_from(["GET", "PUT", "OTHER"]),
    route=st.sampled_from([UPLOAD, "/v1/tasks/{task}", "(no route)"]),
    status=st.sampled_from([200, 201, 304, 404, 0]),
    received=st.integers(0, 10**9),
    seconds=st.sampled_from([*BOUNDS, 0.0, 60.1, 3600.0]),
    waited=st.booleans(),
    problem=st.sampled_from([None, "not-found"]),
)


@given(st.lists(RECORDS, max_size=30))
def test_counts_and_durations_are_those_of_prometheus_client(records: list[RequestRecord]) -> None:
    registry = CollectorRegistry()
    requests = Counter("hushrec_requests", "Requests.", ["method", "route", "status"], registry=registry)
    labels = ["method", "route", "waited"]
    seconds = Histogram("hushrec_request_seconds", "Seconds.", labels, buckets=BOUNDS, registry=registry)
    for record in records:
        requests.labels(record.method, record.route, str(record.status)).inc()
        seconds.labels(record.method, record.route, "yes" if record.waited else "no").observe(record.seconds)
    names = "hushrec_requests_total", "hushrec_request_seconds_bucket", "hushrec_request_seconds_count"
    assert lines(tallied(records), *names) == lines(registry, *names)
    total = sum(record.seconds for record in records)
    sums = [float(line.rsplit(" ", 1)[1]) for line in lines(tallied(records), "hushrec_request_seconds_sum")]
    assert sum(sums) == pytest.approx(total)


def test_series_that_count_nothing_yet_are_shown() -> None:
    assert lines(tallied([]), "hushrec") == [
        'hushrec_contributions_total{reason="",result="accepted"} 0.0',
        'hushrec_contributions_total{reason="",result="conflict"} 0.0',
        'hushrec_contributions_total{reason="",result="repeated"} 0.0',
        'hushrec_upload_bytes_total{kind="committee-key"} 0.0',
        'hushrec_upload_bytes_total{kind="contribution"} 0.0',
        'hushrec_upload_bytes_total{kind="envelope"} 0.0',
        'hushrec_upload_bytes_total{kind="public-key"} 0.0',
        'hushrec_upload_bytes_total{kind="snapshot"} 0.0',
        'hushrec_upload_bytes_total{kind="stage"} 0.0',
    ]


@pytest.mark.parametrize(
    ("method", "status", "problem", "counted"),
    [
        ("PUT", 201, None, ("accepted", "")),
        ("PATCH", 200, None, ("repeated", "")),
        ("PUT", 409, "contribution-conflict", ("conflict", "")),
        ("PUT", 400, "body-too-short", ("refused", "body-too-short")),
        ("PUT", 0, None, ("refused", "no-answer")),
        ("PUT", 400, "not a type of ours", ("refused", "no-answer")),
        ("PATCH", 204, None, None),  # a chunk
        ("HEAD", 204, None, None),
        ("GET", 200, None, None),
    ],
)
def test_results_of_contributions(
    method: str, status: int, problem: str | None, counted: tuple[str, str] | None
) -> None:
    record = RequestRecord(method, UPLOAD, status=status, received=7, problem=problem)
    found = {line for line in lines(tallied([record]), "hushrec_contributions") if not line.endswith(" 0.0")}
    assert found == (
        {f'hushrec_contributions_total{{reason="{counted[1]}",result="{counted[0]}"}} 1.0'} if counted else set()
    )
    received = 7.0 if method in ("PUT", "PATCH") else 0.0
    assert f'hushrec_upload_bytes_total{{kind="contribution"}} {received}' in lines(tallied([record]), "hushrec_upload")
