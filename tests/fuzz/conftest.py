"""The real server that all fuzz tests over HTTP share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.fuzz.honest import LIVES
from tests.fuzz.world import World
from tests.support.server import running_aggregator

_UNLIMITED = {"client_rate": 0, "operator_rate": 0, "failure_rate": 0}
_BRISK = {"wait_max_seconds": 0.02, "body_idle_seconds": 2.0}


@pytest.fixture(scope="module")
def world(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """A server with tasks of every kind or of those in the module's `KINDS`; at the end it must be healthy, and its
    log free of faults."""
    with running_aggregator(tmp_path_factory.mktemp("fuzz") / "data", **_UNLIMITED, **_BRISK) as server:
        made = World(server)
        try:
            for life in getattr(request.module, "KINDS", LIVES):
                life(made, f"open-{life.__name__}", False)
            yield made
            assert made.api.http.get("/readyz").status_code == 200
        finally:
            made.close()
    log = server.log()
    assert '"level": "ERROR"' not in log and "Traceback" not in log, log[-4000:]
    for secret in (*made.callers, *made.invitations):
        assert secret not in log, "a token or an invitation is in the log"
