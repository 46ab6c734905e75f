"""The routes of the API: what all of them check, and the routers that they are declared on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from fastapi import APIRouter, Depends, Request
from fastapi.exceptions import RequestValidationError
from fastapi.params import Depends as Dependency
from fastapi.routing import APIRoute

__all__ = ["LONGEST_WAIT", "QueryChecked", "api_router", "check_query"]

LONGEST_WAIT: Final = 30
"""Most seconds of a long poll."""


def api_router(prefix: str = "", *, tag: str, dependencies: Sequence[Dependency] = ()) -> APIRouter:
    """Return a router of the API. dependencies: of all its routes."""
    return APIRouter(prefix=prefix, tags=[tag], dependencies=dependencies)


def check_query(request: Request) -> None:
    """Raise `RequestValidationError` (422) if the query has a parameter that the route does not know, or one twice.

    No misspelt parameter is ignored, as no unknown field of a body is.
    """
    if not request.scope["query_string"]:
        return
    route = request.scope["route"]
    known = {one.alias for one in route.dependant.query_params} if isinstance(route, APIRoute) else set()
    given = [name for name, _ in request.query_params.multi_items()]
    wrong = [name for place, name in enumerate(given) if name not in known or name in given[:place]]
    if wrong:
        text = "the query has an unknown parameter, or one twice"
        raise RequestValidationError(
            [{"type": "extra_forbidden", "loc": ("query", name), "msg": text} for name in wrong]
        )


QueryChecked: Final = Depends(check_query)
"""Dependency of routes that anybody may call. Where a token is needed, `authenticate` checks the query, after it."""
