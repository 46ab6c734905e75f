"""Query parameters: an unknown one is refused, as an unknown field of a body is, so that no misspelt one is ignored."""

from __future__ import annotations

from typing import Final

from fastapi import Depends, Request
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute

__all__ = ["LONGEST_WAIT", "QueryChecked", "check_query"]

LONGEST_WAIT: Final = 30
"""Most seconds of a long poll."""


def check_query(request: Request) -> None:
    """Raise `RequestValidationError` (422) if the query has a parameter that the route does not know, or one twice."""
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
