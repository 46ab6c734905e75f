"""Answers that change seldom, made once and sent from memory, before routing.

A member asks for its task and for its ledger far more often than they change. Their routes (`routes.tasks.show`,
`routes.ledger.of_client`) leave the bytes of each answer in the task cache, and `answer_finder` finds them again as
long as they are valid. The signature of each request is checked as by the route.
"""

from __future__ import annotations

import logging
import re
from typing import Final, cast

from fastapi.routing import APIRoute
from starlette.types import Scope

from aggregator_service.access.tokens import hash_token
from aggregator_service.http.authentication import REFUSAL, verify_request
from aggregator_service.http.etags import JSON_CACHING, TaggedJson, not_modified
from aggregator_service.http.fast_polls import BEARER, plain_headers
from aggregator_service.http.fast_responses import FastResponse, Finder
from aggregator_service.http.json_bytes import json_headers
from aggregator_service.problems import Problem
from aggregator_service.services import Services

__all__ = ["TASK_ANSWER", "answer_finder", "ledger_answer"]

_LOG = logging.getLogger(__name__)
_PATH: Final = re.compile(r"/v1/tasks/(t_[0-9a-f]{20})(/members/me/ledger)?")
_CACHING: Final = b"cache-control", JSON_CACHING.encode()
TASK_ANSWER: Final = "task"
"""Name of the answer of `GET /v1/tasks/{task}` in the task cache."""


def ledger_answer(client_id: str) -> str:
    """Return the name of the answer of `GET /v1/tasks/{task}/members/me/ledger` to this client, without a query."""
    return f"ledger {client_id}"


def answer_finder(task: APIRoute, ledger: APIRoute) -> Finder:
    """Return the finder of cached answers. task, ledger: their routes, for the record of the request."""

    def find(scope: Scope) -> FastResponse | None:
        path = _PATH.fullmatch(scope["path"].removeprefix(scope.get("root_path", "")))
        if path is None or scope["query_string"]:
            return None
        found = _answer(scope["app"].state.services, scope, path[1], path[2] is not None)
        if found is None:
            return None
        answer, known = found
        body = b"" if not_modified(known, answer.etag) else answer.body
        headers = ((b"etag", answer.etag.encode()), _CACHING, *json_headers(body))
        return FastResponse(ledger if path[2] else task, {"task": path[1]}, headers, body)

    return find


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
