"""Readiness, settings and logs."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from pydantic import ValidationError

from aggregator_service.logs import JsonFormatter, TextFormatter, fields
from aggregator_service.settings import Settings
from tests.support.api import Api
from tests.support.server import running_aggregator


def test_readiness_is_checked_for_real(tmp_path: Path) -> None:
    with running_aggregator(tmp_path / "data") as server:
        api = Api(server.url, server.operator_token)
        assert api.http.get("/healthz").json() == {"status": "ok"}
        assert api.http.get("/readyz").json() == {"status": "ready"}
        blobs = tmp_path / "data" / "blobs"
        before = sorted(blobs.rglob("*"))
        assert api.http.get("/readyz").status_code == 200
        assert sorted(blobs.rglob("*")) == before  # a look leaves nothing behind
        blobs.rename(tmp_path / "elsewhere")
        answer = api.http.get("/readyz")
        assert (answer.status_code, answer.json()["type"]) == (503, "urn:hushrec:problem:unavailable")
        assert answer.json()["fault"] == "server"
        assert "blob" in answer.json()["detail"]
        assert api.http.get("/healthz").status_code == 200
        api.close()


def test_settings_come_from_flags_then_environment_then_defaults() -> None:
    loaded = Settings.load(
        {"HUSHREC_PORT": "9000", "HUSHREC_FOLD_BATCH": "7", "HUSHREC_HOST": ""}, port=9001, host=None
    )
    assert (loaded.port, loaded.fold_batch, loaded.host) == (9001, 7, "127.0.0.1")
    for variable in ("HUSHREC_OPERATOR_TOKEN", "HUSHREC_DATABASE_URL"):
        assert "secret" not in repr(Settings.load({variable: "postgresql://me:secret@db/name"}))
    with pytest.raises(ValidationError):
        Settings.load({"HUSHREC_BLOBS": "ftp://somewhere"})
    with pytest.raises(ValidationError):
        Settings.load({"HUSHREC_WORKERS": "0"})


def test_logs_are_structured() -> None:
    record = logging.LogRecord("aggregator_service.x", logging.INFO, "", 0, "round opened", None, None)
    for name, value in fields(task="t_1", round=3, digest=None).items():
        setattr(record, name, value)
    line = JsonFormatter().format(record)
    assert '"message": "round opened"' in line
    assert '"round": 3' in line
    assert "digest" not in line
    assert TextFormatter("%(message)s").format(record) == "round opened task=t_1 round=3"
