"""Liveness, readiness, and metrics for Prometheus."""

from __future__ import annotations

import asyncio
import logging
from typing import Any, Final

from cachetools import LRUCache
from fastapi import Request
from fastapi.responses import JSONResponse, Response

from aggregator_service.access.principals import hash_token
from aggregator_service.http.authentication import Bearer, authenticate, require_operator
from aggregator_service.http.fields import QueryChecked
from aggregator_service.observability.metrics import MEDIA_TYPE, Metrics
from aggregator_service.problems import Problem, responses
from aggregator_service.routes.common import api_router, guarded
from aggregator_service.services import Services, ServicesOf
from aggregator_service.storage.blobs import BlobsUnavailableError, store_trouble
from aggregator_service.storage.database import DATABASE_GONE
from aggregator_service.storage.dialects import DISK_FULL, database_cause

_LOG = logging.getLogger(__name__)
_DATABASE_SECONDS: Final = 4.0
"""Time that a scrape waits for the database: Prometheus ends a scrape after ten seconds."""
router = api_router(tag="health", dependencies=[QueryChecked])


def _answers(title: str, *slugs: str) -> dict[int | str, dict[str, Any]]:
    """Describe the answers of a route. They have no model: building it would delay the first answer after a start."""
    schema = {"type": "object", "additionalProperties": {"type": "string"}, "title": title}
    return {200: {"content": {"application/json": {"schema": schema}}}, **responses(*slugs)}


@router.get(
    "/healthz",
    summary="Is the process alive?",
    responses=_answers("Response Alive Healthz Get", "invalid-parameters", "internal-error"),
)
async def alive() -> JSONResponse:
    """Return ok while the process answers requests."""
    return JSONResponse({"status": "ok"})


@router.get(
    "/readyz",
    summary="Is the server ready?",
    responses=_answers("Response Ready Readyz Get", "invalid-parameters", "unavailable", "internal-error"),
)
async def ready(services: ServicesOf) -> JSONResponse:
    """Check database, blob store, executor and clock without writing anything. 503 names the part that fails.

    A Dask cluster without workers counts as ready, because it may start workers on demand; `executor` then says that
    workers are missing. `clock` says by how much the server's clock differs from the database's; if that is more than
    half of the window for signatures, the server is not ready, and answers no client. In the process that drives the
    rounds, `rounds` says why some cannot go on. Concurrent requests share one check, and its result is kept for a
    second.
    """
    found = await services.readiness.get(lambda: _check(services))
    if isinstance(found, Problem):
        raise found.with_traceback(None)
    return JSONResponse(found)


def _check(services: Services) -> dict[str, str] | Problem:
    try:
        services.database.ping()
    except Exception as error:
        _LOG.error("not ready: %s", database_cause(error))
        return Problem("unavailable", "the database does not answer", headers={"Retry-After": "5"})
    if services.database.is_full:
        _LOG.error("not ready: %s", DISK_FULL)
        return Problem("unavailable", DISK_FULL, headers={"Retry-After": "5"})
    try:
        services.blobs.check()
    except Exception as error:
        _LOG.error("not ready: %s", error if isinstance(error, BlobsUnavailableError) else type(error).__name__)
        return Problem("unavailable", store_trouble(error), headers={"Retry-After": "5"})
    try:
        remark = services.workers.check()
    except Exception as error:
        _LOG.error("not ready: executor check failed: %s", error)
        return Problem("unavailable", "the executor does not work", headers={"Retry-After": "5"})
    if services.clocks.too_far:
        return Problem("unavailable", f"the clock is {services.clocks.remark}", headers={"Retry-After": "5"})
    remarks = {"executor": remark, "clock": services.clocks.remark, "rounds": services.engine.remark}
    return {"status": "ready"} | {name: text for name, text in remarks.items() if text}


@router.get(
    "/metrics",
    summary="Read the metrics",
    response_class=Response,
    responses={
        200: {"description": "Prometheus' text format.", "content": {"text/plain": {"schema": {"type": "string"}}}},
        **guarded(),
    },
)
async def read(services: ServicesOf, request: Request, credentials: Bearer) -> Response:
    """Return the metrics. The setting `metrics` decides who may read them: operators, everyone, or nobody (404).

    While the database does not answer, a token that has read them before is accepted.
    """
    if services.settings.metrics == "off":
        raise Problem("not-found", "metrics are switched off on this server")
    answers = True
    if services.settings.metrics == "token":
        answers = await _check_reader(services.metrics_readers, request, credentials)
    text = await asyncio.to_thread(services.metrics.text)
    return Response(text + await _database_text(services.metrics, answers), headers={"Content-Type": MEDIA_TYPE})


async def _check_reader(readers: LRUCache[str, bool], request: Request, credentials: Bearer) -> bool:
    """Check that the token may read the metrics; return whether the database answered, or was not needed.

    A token that the database accepted at its last answer is accepted while it does not answer: otherwise nobody would
    see that. Raises `Problem`, and what the database raised for other tokens.
    """
    token = "" if credentials is None else hash_token(credentials.credentials)
    check = asyncio.create_task(authenticate(request))
    check.add_done_callback(_retrieve)
    done, _ = await asyncio.wait((check,), timeout=_DATABASE_SECONDS)
    try:
        if done:
            require_operator(check.result(), "read-only")
            readers[token] = True
        elif token not in readers:
            raise Problem("unavailable", "the database does not answer; try again", headers={"Retry-After": "2"})
    except DATABASE_GONE:
        if token not in readers:
            raise
        return False
    except Problem as problem:
        if problem.slug in ("unauthenticated", "forbidden"):
            readers.pop(token, None)
        raise
    return bool(done)


def _retrieve(check: asyncio.Task[Any]) -> None:
    """Take the result of a check that nobody waits for any more: asyncio would log its error as not retrieved."""
    if not check.cancelled():
        check.exception()


async def _database_text(metrics: Metrics, answers: bool) -> bytes:
    if answers:
        try:
            return await asyncio.wait_for(asyncio.to_thread(metrics.database_text), _DATABASE_SECONDS)
        except TimeoutError:
            _LOG.warning("the database did not answer within %g s: its metrics are left out", _DATABASE_SECONDS)
    return metrics.database_text(answers=False)
