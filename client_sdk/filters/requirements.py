"""Checks of the components that a filter is given."""

from __future__ import annotations

from math import isclose

from client_sdk.filters.components import Components
from protocols.errors import ParameterError

__all__ = ["check_exponent"]


def check_exponent(components: Components, user_exponent: float) -> None:
    """Raise `ParameterError` unless the components were normalised with `user_exponent`."""
    if not isclose(components.user_exponent, user_exponent):
        raise ParameterError(
            f"this filter needs components with user exponent {user_exponent:g}, but these have "
            f"{components.user_exponent:g}; aggregate them again"
        )
