"""Readiness, settings and logs."""

from __future__ import annotations

import logging
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from pydantic import ValidationError

from aggregator_service.logs import JsonFormatter, TextFormatter, fields
from aggregator_service.settings import Settings, setting_fault
from protocols.parameter_text import first_fault
from tests.support.api import Api
from tests.support.inside import aggregator_inside, services
from tests.support.server import running_aggregator


def test_readiness_checks_the_blob_store(tmp_path: Path) -> None:
    with running_aggregator(tmp_path / "data") as server:
        api = Api(server.url, server.operator_token)
        assert api.http.get("/healthz").json() == {"status": "ok"}
        assert api.http.get("/readyz").json() == {"status": "ready"}
        blobs = tmp_path / "data" / "blobs"
        before = sorted(blobs.rglob("*"))
        assert api.http.get("/readyz").status_code == 200
        assert sorted(blobs.rglob("*")) == before  # the check writes nothing
        blobs.rename(tmp_path / "elsewhere")
        time.sleep(1.1)  # a result is kept for a second
        answer = api.http.get("/readyz")
        assert (answer.status_code, answer.json()["type"]) == (503, "urn:hushrec:problem:unavailable")
        assert answer.json()["fault"] == "server"
        assert "blob" in answer.json()["detail"]
        assert api.http.get("/healthz").status_code == 200
        api.close()


def test_readiness_is_checked_once_a_second_however_many_ask(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with aggregator_inside(tmp_path) as api:
        checks, ping = [], services(api).database.ping

        def slow() -> None:
            checks.append(1)
            time.sleep(0.2)
            ping()

        monkeypatch.setattr(services(api).database, "ping", slow)
        with ThreadPoolExecutor(8) as pool:
            answers = list(pool.map(lambda _: api.http.get("/readyz"), range(24)))
        assert {answer.status_code for answer in answers} == {200}
        assert len(checks) == 1
        time.sleep(1.1)
        assert api.http.get("/readyz").status_code == 200
        assert len(checks) == 2


def test_settings_come_from_flags_then_environment_then_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"HUSHREC_PORT": "9000", "HUSHREC_TUNING": '{"fold_batch": 7}', "HUSHREC_HOST": ""}.items():
        monkeypatch.setenv(name, value)
    loaded = Settings.load(port=9001, host=None)
    assert (loaded.port, loaded.tuning.fold_batch, loaded.host) == (9001, 7, "127.0.0.1")
    assert Settings().port == 9000


@pytest.mark.parametrize(
    ("value", "fault"),
    [
        ('{"fold', "HUSHREC_TUNING: must be a JSON object"),
        ("[1]", "HUSHREC_TUNING: must be an object"),
        ('{"folds": 1}', "HUSHREC_TUNING: folds: unknown name"),
        ('{"wait_max_seconds": 900}', "HUSHREC_TUNING: wait_max_seconds: must be at most 30"),
    ],
)
def test_a_wrong_tuning_is_named(monkeypatch: pytest.MonkeyPatch, value: str, fault: str) -> None:
    monkeypatch.setenv("HUSHREC_TUNING", value)
    with pytest.raises(ValidationError) as caught:
        Settings()
    assert setting_fault(caught.value).startswith(fault)


@pytest.mark.parametrize("variable", ["HUSHREC_OPERATOR_TOKEN", "HUSHREC_DATABASE_URL"])
def test_secret_settings_are_not_shown(monkeypatch: pytest.MonkeyPatch, variable: str) -> None:
    monkeypatch.setenv(variable, "postgresql://me:secret@db/name")
    loaded = Settings()
    assert "secret" not in repr(loaded)
    assert "secret" not in loaded.model_dump_json()
    monkeypatch.setenv("HUSHREC_PORT", "secret")
    with pytest.raises(ValidationError) as caught:
        Settings()
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("variable", "value", "field"),
    [
        ("HUSHREC_BLOBS", "ftp://somewhere", "blobs"),
        ("HUSHREC_WORKERS", "0", "workers"),
        ("HUSHREC_PORT", "http", "port"),
        ("HUSHREC_SIGNATURES", "on", "signatures"),
    ],
)
def test_a_wrong_variable_is_named(monkeypatch: pytest.MonkeyPatch, variable: str, value: str, field: str) -> None:
    monkeypatch.setenv(variable, value)
    with pytest.raises(ValidationError) as caught:
        Settings.load()
    assert first_fault(caught.value).startswith(f"{field}: ")


@pytest.mark.parametrize(
    "token", ["hro_short", "change-me", "change-me-change-me-change-me", "hro_example-token-of-24-characters"]
)
def test_short_and_example_operator_tokens_are_refused(monkeypatch: pytest.MonkeyPatch, token: str) -> None:
    monkeypatch.setenv("HUSHREC_OPERATOR_TOKEN", token)
    with pytest.raises(ValidationError) as caught:
        Settings.load()
    assert first_fault(caught.value).startswith("operator_token: ")
    assert "openssl rand -hex 32" in str(caught.value)
    assert token not in str(caught.value)


def test_unknown_settings_are_refused_and_unknown_variables_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HUSHREC_CRASH_AT", "nowhere")
    Settings()
    with pytest.raises(ValidationError, match="ports"):
        Settings(ports=8000)  # type: ignore[call-arg]


def test_logs_are_structured() -> None:
    record = logging.LogRecord("aggregator_service.x", logging.INFO, "", 0, "round opened", None, None)
    for name, value in fields(task="t_1", round=3, digest=None).items():
        setattr(record, name, value)
    line = JsonFormatter().format(record)
    assert '"message": "round opened"' in line
    assert '"round": 3' in line
    assert "digest" not in line
    assert TextFormatter().format(record).endswith(" INFO round opened task=t_1 round=3")
