"""Checks of the components that a filter is given."""

from __future__ import annotations

from math import isclose

from client_sdk.filters.components import Components
from protocols.errors import ParameterError

__all__ = ["check_exponent"]


def check_exponent(components: Components, user_exponent: float) -> None:
    """Raise `ParameterError` unless the components were normalised with a = `user_exponent` and b = 1 - a."""
    found, wanted = (components.user_exponent, components.degree_exponent), (user_exponent, 1 - user_exponent)
    if not (isclose(found[0], wanted[0]) and isclose(found[1], wanted[1])):
        raise ParameterError(
            f"this filter needs components with user exponent {wanted[0]:g} and item exponent {wanted[1]:g}, but these "
            f"have {found[0]:g} and {found[1]:g}; aggregate them again"
        )
