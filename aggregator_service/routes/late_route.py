"""Routes that FastAPI analyses when they are first used, and the routers of the API, which are made of them.

An analysis takes about 3 ms, and there are 80 routes: all of them would add 0.2 s to the start of a server.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from fastapi import APIRouter, Depends
from fastapi.params import Depends as Dependency
from fastapi.routing import APIRoute
from starlette.routing import compile_path

from aggregator_service.http.authentication import refuse_unknown_parameters

__all__ = ["LateRoute", "api_router"]


class LateRoute(APIRoute):
    """A route whose path and methods are known at once; all else follows from its declaration at the first use.

    That is the first request, which the event loop begins, or the OpenAPI document. `tests/aggregator_service` analyses
    all routes, so a declaration that FastAPI refuses is found there.
    """

    def __init__(self, path: str, endpoint: Callable[..., Any], **declared: Any) -> None:
        """declared: the other arguments of `APIRoute`."""
        self.path, self.endpoint = path, endpoint
        self.path_regex, self.path_format, self.param_convertors = compile_path(path)
        self.methods = {method.upper() for method in declared.get("methods") or ("GET",)}
        self._declared = declared

    def __getattr__(self, name: str) -> Any:
        """Analyse the route, whose attribute `name` does not exist before that."""
        declared = self.__dict__.pop("_declared", None)
        if declared is None:
            raise AttributeError(f"{type(self).__name__} has no attribute {name}")
        super().__init__(self.path, self.endpoint, **declared)
        return getattr(self, name)


def api_router(prefix: str = "", *, tag: str, dependencies: Sequence[Dependency] = ()) -> APIRouter:
    """Return a router of the API. Its routes refuse a query that they do not know.

    dependencies: of all its routes, besides.
    """
    checks = [Depends(refuse_unknown_parameters), *dependencies]
    return APIRouter(prefix=prefix, tags=[tag], dependencies=checks, route_class=LateRoute)
