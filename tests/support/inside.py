"""An aggregator in the process of the test, without a socket; folds run in a thread."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import httpx
from fastapi.testclient import TestClient
from opentelemetry.trace import TracerProvider

from aggregator_service.app import create_app
from aggregator_service.clock import Clock
from aggregator_service.services import Services
from aggregator_service.settings import Settings
from tests.support.api import Api
from tests.support.server import OPERATOR_TOKEN, tuned
from tests.support.signing import SIGNED, Signatures


@contextmanager
def aggregator_inside(
    data_dir: Path, *, clock: Clock | None = None, tracer_provider: TracerProvider | None = None, **settings: Any
) -> Iterator[Api]:
    """Run an aggregator within the block and yield an operator's client; settings: fields of `Settings` or `Tuning`."""
    given = Settings(data_dir=data_dir, operator_token=OPERATOR_TOKEN, **tuned({"recheck_seconds": 0.1, **settings}))
    with ThreadPoolExecutor(1) as executor:
        app = create_app(given, clock=clock, executor=executor, tracer_provider=tracer_provider)
        with TestClient(app, base_url="http://test") as http:
            http.auth = Signatures(clock.now) if clock is not None else SIGNED
            yield Api("http://test", OPERATOR_TOKEN, given.database, cast("httpx.Client", http))


def services(api: Api) -> Services:
    """Return the services of this aggregator."""
    found: Services = api.http.app.state.services  # type: ignore[attr-defined]
    return found
