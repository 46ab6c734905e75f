"""The pages of the SDK's names and of their signatures, from the docstrings.

Only the introductions are written here.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable
from dataclasses import fields
from typing import Any, Final, get_args

import client_sdk
import client_sdk.organiser
from client_sdk.rounds.events import Event
from protocols.errors import HushRecError

_ALIASES: Final = ("Event", "Progress")
"""Names of types without a docstring; the section of events explains them."""

_SIMULATION: Final = (
    "fleet.Fleet",
    "fleet_rounds.FleetOptions",
    "fleet_rounds.FleetRound",
    "simulation.simulate",
    "simulated_task.SimulationRequest",
    "simulation.SimulationResult",
    "simulation.Point",
)
"""What researchers import from `client_sdk.lab`."""

_NAMES: Final = """\
# Names of the SDK

For app developers. Every class, function, event and error of the SDK in one sentence. [The guide](../sdk.md) shows
their use, [Signatures](api.md) has methods and fields; `help(client_sdk.Client)` prints the same in Python.
"""

_SIGNATURES: Final = """\
# Signatures

For app developers and researchers. Methods, parameters and fields of the [names of the SDK](names.md).
"""


def names() -> str:
    """Return the page of names: tables with one sentence on each."""
    return _joined(
        _NAMES,
        "## `from client_sdk import ...`",
        "How stable a name is: [What stays](../sdk.md#what-stays). Events are given, errors are stable.",
        _table(("name", "stability", "meaning"), ((one, client_sdk.STABILITY[one.__name__]) for one in _exported())),
        "## Events",
        "A function that is passed as `progress` gets them, in no fixed order. They are imported from `client_sdk`, as "
        "are the\ntypes `Event`, any of them, and `Progress`, such a function.",
        _table(
            ("event", "fields", "meaning"),
            ((kind, ", ".join(f"`{field.name}`" for field in fields(kind))) for kind in get_args(Event)),
        ),
        "## Errors",
        "They are imported from `client_sdk`. [Signatures](api.md#errors) has the attributes.",
        _table_of(one for name in client_sdk.__all__ if _is_error(one := getattr(client_sdk, name))),
        "## `from client_sdk.organiser import ...`",
        _table_of(getattr(client_sdk.organiser, name) for name in client_sdk.organiser.__all__),
    )


def signatures() -> str:
    """Return the page of signatures: what mkdocstrings replaces by the docstrings of every name."""
    return _joined(
        _SIGNATURES,
        "## `from client_sdk import ...`",
        *(f"::: client_sdk.{one.__name__}" for one in _exported()),
        "## Events",
        _module("client_sdk.rounds.events"),
        "## Errors",
        "Those of the SDK, one for each problem type of the server, then those of the protocols: values that break a "
        "rule.",
        _module("client_sdk.errors"),
        _module("protocols.errors"),
        "## `from client_sdk.organiser import ...`",
        *(f"::: client_sdk.organiser.{name}" for name in client_sdk.organiser.__all__),
        "## Simulation",
        *(f"::: client_sdk.lab.{name}" for name in _SIMULATION),
    )


def _exported() -> list[Any]:
    """Return what `client_sdk` exports beside events and errors."""
    found = [getattr(client_sdk, name) for name in client_sdk.__all__ if name not in _ALIASES]
    return [one for one in found if one not in get_args(Event) and not _is_error(one)]


def _module(name: str) -> str:
    return f"::: {name}\n    options:\n      show_root_heading: false"


def _joined(*parts: str) -> str:
    return "\n\n".join(part.strip("\n") for part in parts) + "\n"


def _is_error(one: Any) -> bool:
    return inspect.isclass(one) and issubclass(one, HushRecError)


def _table_of(found: Iterable[Any]) -> str:
    return _table(("name", "meaning"), ((one,) for one in found))


def _table(headings: tuple[str, ...], rows: Iterable[tuple[Any, ...]]) -> str:
    """Return a table whose rows have the name of an object first and its sentence last."""
    lines = [headings, ("---",) * len(headings)]
    for one, *between in rows:
        call = "()" if inspect.isfunction(one) else ""
        lines.append((f"`{one.__name__}{call}`", *between, _sentence(one)))
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |" for cells in lines)


def _sentence(one: Any) -> str:
    """Return the first sentence of the docstring on one line."""
    text = " ".join((one.__doc__ or "").split("\n\n")[0].split())
    return re.split(r"(?<=\.) ", text, maxsplit=1)[0]
