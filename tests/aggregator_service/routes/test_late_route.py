"""FastAPI analyses a route at its first use, so here it analyses all of them."""

from __future__ import annotations

import pytest
from fastapi.routing import APIRoute

from aggregator_service.app import create_app
from aggregator_service.http.authentication import refuse_unknown_parameters
from aggregator_service.routes.late_route import LateRoute
from aggregator_service.routes.routers import API_ROUTERS
from aggregator_service.settings import Settings

ROUTES = [route for route in create_app(Settings()).routes if isinstance(route, APIRoute)]


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: f"{','.join(route.methods)} {route.path}")
def test_fastapi_accepts_every_declaration(route: APIRoute) -> None:
    assert isinstance(route, LateRoute)
    before = route.methods, route.path_format, route.path_regex
    assert {param.name for param in route.dependant.path_params} <= set(route.param_convertors)
    assert (route.methods, route.path_format, route.path_regex) == before
    with pytest.raises(AttributeError, match="nothing"):
        _ = route.nothing


def test_every_route_of_the_api_checks_its_query() -> None:
    for router in API_ROUTERS:
        for route in router.routes:
            assert isinstance(route, LateRoute)
            assert any(one.call is refuse_unknown_parameters for one in route.dependant.dependencies), route.path
