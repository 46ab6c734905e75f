"""Answers that change seldom, made once and sent from memory, before routing.

A member asks for its task and for its ledger far more often than they change. Their routes (`routes.tasks.show`,
`routes.ledger.of_client`) leave the bytes of each answer in the task cache, and `FastAnswers` sends them again as long
as they are valid. The signature of each request is checked as by the route. Every other request is passed on.
"""

from __future__ import annotations

import logging
import re
from typing import Final, cast

from fastapi.routing import APIRoute
from starlette.types import ASGIApp, Receive, Scope, Send

from aggregator_service.access.tokens import hash_token
from aggregator_service.http.authentication import REFUSAL, verify_request
from aggregator_service.http.etags import JSON_CACHING, TaggedJson, not_modified
from aggregator_service.http.fast_polls import BEARER, plain_headers
from aggregator_service.problems import Problem
from aggregator_service.services import Services

__all__ = ["TASK_ANSWER", "FastAnswers", "ledger_answer"]

_LOG = logging.getLogger(__name__)
_PATH: Final = re.compile(r"/v1/tasks/(t_[0-9a-f]{20})(/members/me/ledger)?")
TASK_ANSWER: Final = "task"
"""Name of the answer of `GET /v1/tasks/{task}` in the task cache."""


def ledger_answer(client_id: str) -> str:
    """Return the name of the answer of `GET /v1/tasks/{task}/members/me/ledger` to this client, without a query."""
    return f"ledger {client_id}"


class FastAnswers:
    """ASGI middleware that sends cached answers. task, ledger: their routes, for the record of the request."""

    def __init__(self, app: ASGIApp, *, task: APIRoute, ledger: APIRoute) -> None:
        self._app, self._task, self._ledger = app, task, ledger

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, or pass it on."""
        if scope["type"] != "http" or scope["method"] != "GET" or scope["query_string"] or REFUSAL in scope:
            await self._app(scope, receive, send)
            return
        path = _PATH.fullmatch(scope["path"].removeprefix(scope.get("root_path", "")))
        found = None if path is None else _answer(scope["app"].state.services, scope, path[1], path[2] is not None)
        if path is None or found is None:
            await self._app(scope, receive, send)
            return
        scope["route"], scope["path_params"] = (self._ledger if path[2] else self._task), {"task": path[1]}
        answer, known = found
        headers = [(b"etag", answer.etag.encode()), (b"cache-control", JSON_CACHING.encode())]
        if not_modified(known, answer.etag):
            await send({"type": "http.response.start", "status": 304, "headers": headers})
            await send({"type": "http.response.body", "body": b""})
            return
        headers += [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(answer.body))]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": answer.body})


def _answer(services: Services, scope: Scope, task_id: str, ledger: bool) -> tuple[TaggedJson, str | None] | None:
    """Return the answer and the value of If-None-Match; None if the route has to answer."""
    try:
        headers = plain_headers(scope)
        if headers is None or not services.alone:  # another server's commits are noticed up to a second later
            return None
        token_hash = hash_token(headers[b"authorization"].removeprefix(BEARER).decode("latin-1"))
        client = services.task_cache.client(token_hash)
        if client is None or client.task_id != task_id:
            return None
        found = services.task_cache.answer(task_id, ledger_answer(client.client_id) if ledger else TASK_ANSWER)
        if found is None:
            return None
        verify_request(services, scope, client, token_hash)
        known = headers.get(b"if-none-match")
        return cast(TaggedJson, found), None if known is None else known.decode("latin-1")
    except Problem as refusal:
        scope[REFUSAL] = refusal
    except Exception:  # no response has been started, so the route can still answer
        _LOG.exception("cannot answer from the cache; the route answers")
    return None
