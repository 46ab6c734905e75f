"""The Python SDK: join a task, train locally, contribute under encryption, recommend on the device.

from client_sdk import Client

with Client(url, home="~/.movieapp") as client:
    task = client.join("movies", invitation=..., certificate=...)
    task.take_part(interactions)
    print(task.recommend(10))
"""

from __future__ import annotations

import pkgutil
import re
from importlib import import_module
from typing import Any, Final

_LISTED: Final = re.findall(
    r"^from (\S+) import (\w+) as \w+  # (\w+)$", (pkgutil.get_data(__name__, "__init__.pyi") or b"").decode(), re.M
)
"""Module, name and stability of each public name: what type checkers read is the only list."""
_MODULES: Final = {name: module for module, name, _ in _LISTED}
STABILITY: Final = {name: stability for _, name, stability in _LISTED}
"""How stable each public name is: "stable", "given" or "provisional", as docs/sdk.md says."""

__all__ = sorted(_MODULES, key=lambda name: (name[0].islower(), name))  # noqa: PLE0605 - a list of strings


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used, so that commands start quickly."""
    module = _MODULES.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = getattr(import_module(module), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
