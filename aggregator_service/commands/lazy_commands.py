"""A command group that imports a command's module when the command runs, so that `--help` answers at once."""

from __future__ import annotations

import gc
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from types import ModuleType
from typing import Any, ClassVar

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command, get_group

__all__ = ["LazyCommand", "LazyGroup"]


@dataclass(frozen=True)
class LazyCommand:
    """A command: the module and the name of its function or `typer.Typer`, and the line that the help shows."""

    module: str
    name: str
    summary: str

    def load(self, called: str) -> Any:
        """Import the module and return the click command, which is `called` so."""
        found = getattr(_imported(self.module), self.name)
        if isinstance(found, typer.Typer):
            group = get_group(found)
            group.name = called
            return group
        single = typer.Typer(add_completion=False, rich_markup_mode=None)
        single.command(called)(found)
        return get_command(single)


class LazyGroup(TyperGroup):
    """A group of `lazy` commands. Subclasses set the table."""

    lazy: ClassVar[Mapping[str, LazyCommand]] = {}
    _for_help = False

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002 - click's signature
        """Return the names of the commands in the order of the table."""
        return list(self.lazy)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:  # noqa: ARG002 - click's signature
        """Return the command; None if there is none. While the help is printed, only its name and summary."""
        entry = self.lazy.get(cmd_name)
        if entry is None:
            return None
        if self._for_help:
            return TyperCommand(cmd_name, help=entry.summary)
        return entry.load(cmd_name)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Print the help without importing the commands."""
        self._for_help = True
        try:
            super().format_help(ctx, formatter)
        finally:
            self._for_help = False


def _imported(name: str) -> ModuleType:
    """Import a module. No garbage is collected meanwhile: almost all objects that imports make stay."""
    gc.disable()
    try:
        return import_module(name)
    finally:
        gc.freeze()  # later collections skip what was imported
        gc.enable()
