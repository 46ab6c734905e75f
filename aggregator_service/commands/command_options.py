"""Commands whose arguments and options are the fields of one dataclass."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import MISSING, fields
from functools import wraps
from inspect import Parameter, Signature
from typing import Any, TypeVar, get_type_hints

__all__ = ["command_options"]

T = TypeVar("T")


def command_options(kind: type[T]) -> Callable[[Callable[[T], None]], Callable[..., None]]:
    """Return a decorator that makes a typer command of a function with one parameter of type `kind`.

    kind: a dataclass. Each field is an argument or option of the command, in order; its type is
    `Annotated[type, typer.Option(...)]` or `Annotated[type, typer.Argument(...)]`, its default is the option's default.
    The command's help is the docstring of the decorated function.
    """
    hints = get_type_hints(kind, include_extras=True)
    parameters = [
        Parameter(
            field.name,
            Parameter.KEYWORD_ONLY,
            default=Parameter.empty if field.default is MISSING else field.default,
            annotation=hints[field.name],
        )
        for field in fields(kind)  # type: ignore[arg-type]
    ]

    def decorate(function: Callable[[T], None]) -> Callable[..., None]:
        @wraps(function)
        def command(**values: Any) -> None:
            function(kind(**values))

        # typer reads the options from the signature
        command.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
        command.__annotations__ = hints
        return command

    return decorate
