"""An aggregator in the process of the test, without a socket; folds run in a thread."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fastapi.testclient import TestClient
from opentelemetry.trace import TracerProvider
from sqlalchemy import select

from aggregator_service.app import create_app
from aggregator_service.clock import Clock
from aggregator_service.services import Services
from aggregator_service.settings import Settings
from aggregator_service.storage.schema import ClientRow
from tests.support.api import Api, TestTask
from tests.support.server import OPERATOR_TOKEN, tuned
from tests.support.signing import SIGNED, Signatures

__all__ = ["aggregator_inside", "retired", "services"]


@contextmanager
def aggregator_inside(
    data_dir: Path, *, clock: Clock | None = None, tracer_provider: TracerProvider | None = None, **settings: Any
) -> Iterator[Api]:
    """Run an aggregator within the block and yield an operator's client; settings: fields of `Settings` or `Tuning`."""
    given = Settings(data_dir=data_dir, operator_token=OPERATOR_TOKEN, **tuned({"recheck_seconds": 0.1, **settings}))
    with ThreadPoolExecutor(1) as executor:
        app = create_app(given, clock=clock, executor=executor, tracer_provider=tracer_provider)
        api = Api("http://test", OPERATOR_TOKEN)
        api.http.close()
        with TestClient(app, base_url="http://test") as api.http:  # type: ignore[assignment]
            api.http.auth = Signatures(clock.now) if clock is not None else SIGNED
            yield api


def services(api: Api) -> Services:
    """Return the services of this aggregator."""
    found: Services = api.http.app.state.services  # type: ignore[attr-defined]
    return found


def retired(task: TestTask) -> set[str]:
    """The ids of the clients that are asked no more, because they were found at fault."""
    with services(task.api).database.read() as session:
        query = select(ClientRow.id).where(ClientRow.task_id == task.id, ClientRow.retired_in.is_not(None))
        return set(session.scalars(query))
