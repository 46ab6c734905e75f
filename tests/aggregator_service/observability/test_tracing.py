"""Spans of a whole round, in OpenTelemetry's in-memory exporter; none without the setting."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import NoOpTracerProvider, StatusCode

from aggregator_service.observability.tracing import tracing
from protocols.errors import ParameterError
from tests.support.inside import aggregator_inside

CALLER = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.fixture
def spans() -> Iterator[tuple[TracerProvider, InMemorySpanExporter]]:
    exporter, provider = InMemorySpanExporter(), TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    yield provider, exporter
    provider.shutdown()


def test_spans_of_a_whole_round(tmp_path: Path, spans: tuple[TracerProvider, InMemorySpanExporter]) -> None:
    provider, exporter = spans
    with aggregator_inside(tmp_path / "data", tracer_provider=provider) as api:
        task = api.create_task(cohort=2)
        members = task.enrol(2)
        task.wait_round(1, "collecting")
        for member in members:
            body = member.contribution(1, 2.0)
            headers = {"traceparent": CALLER, "X-Request-Id": "upload"}
            assert member.put(1, body, headers).status_code == 201
        task.wait_round(1, "complete")
        assert api.http.get("/v1/tasks/t_secretname/rounds/1?wait=0&x=hri_secret").status_code == 401
    found = exporter.get_finished_spans()
    by_name = {span.name: span for span in found}
    upload = by_name["PUT /v1/tasks/{task}/rounds/{number}/contributions/{client}"]
    assert upload.attributes is not None
    assert dict(upload.attributes) == {
        "http.request.method": "PUT",
        "http.route": "/v1/tasks/{task}/rounds/{number}/contributions/{client}",
        "http.response.status_code": 201,
        "hushrec.request_id": "upload",
        "hushrec.task": task.id,
        "hushrec.round": 1,
    }
    assert upload.parent is not None
    assert f"{upload.parent.trace_id:032x}" in CALLER
    assert upload.status.status_code is not StatusCode.ERROR
    for name, numbers in {"fold": {"hushrec.batch": 2}, "release": {"hushrec.survivors": 2}}.items():
        attributes = by_name[name].attributes
        assert attributes is not None
        assert dict(attributes) == {"hushrec.task": task.id, "hushrec.round": 1, **numbers}
    everything = " ".join(span.to_json() for span in found)
    assert "secret" not in everything
    assert members[0].token not in everything


def test_no_spans_are_recorded_by_default() -> None:
    provider, _ = tracing("none")
    assert isinstance(provider, NoOpTracerProvider)


def test_the_error_names_the_missing_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)
    with pytest.raises(ParameterError, match=r"hushrec\[otel\]"):
        tracing("otlp")


def test_spans_are_exported_to_a_collector(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    provider, flush = tracing("otlp")
    assert provider.get_tracer("x").start_span("y").is_recording()
    flush()  # no span has ended, so none is exported
