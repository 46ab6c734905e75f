"""The command `hushrec`: its subcommands, imported when they are used, and what a missing package is told."""

from __future__ import annotations

import gc
import signal
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from types import FrameType, ModuleType
from typing import Annotated, Any, ClassVar, Final, NoReturn

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command, get_group

from protocols.errors import HushRecError

__all__ = [
    "EXTRA_OF",
    "LazyCommand",
    "LazyGroup",
    "app",
    "install_command",
    "main",
]


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


# --- which extra brings a package that a command did not find --------------------------------------------------------

EXTRA_OF: Final = {
    "alembic": "server",
    "fastapi": "server",
    "gmpy2": "paillier",
    "h11": "server",
    "jinja2": "demo",
    "matplotlib": "plots",
    "multipart": "server",
    "opentelemetry": "server",
    "phe": "paillier",
    "polars": "data",
    "prometheus_client": "server",
    "pydantic_settings": "server",
    "scipy": "filters",
    "sqlalchemy": "server",
    "starlette": "server",
    "tenseal": "ckks",
    "uvicorn": "server",
    "zstandard": "ckks",
}
"""Name of an imported package -> the extra of HushRec that brings it."""


def install_command(error: ImportError) -> str | None:
    """Return the command that installs the package of an `ImportError`; None if no extra brings it."""
    package = (error.name or "").partition(".")[0]
    extra = EXTRA_OF.get(package)
    return None if extra is None else f"pip install 'hushrec[{extra}]'"


# --- the typer app of `hushrec` and its error handling ---------------------------------------------------------------
# `HushRecError` and `OSError` are printed to standard error as one sentence, and the exit code is 1. The exit code is 2
# for wrong usage and 130 for an interrupt. `hushrec --debug ...` prints the traceback instead, without local variables.
#
# Help is plain text, and rich is imported by what prints with it: both imports take longer than all the rest of
# `--help`.

_HERE: Final = "client_sdk.cli"


class _Commands(LazyGroup):
    """The root group. Prints the errors of all commands."""

    lazy: ClassVar = {
        "demo": LazyCommand(f"{_HERE}.demo", "demo", "Train a recommender from encrypted sums on this machine."),
        "join": LazyCommand(f"{_HERE}.member", "join", "Enrol in a task and take part in its rounds."),
        "recommend": LazyCommand(f"{_HERE}.member", "recommend", "Recommend items with the newest model."),
        "evaluate": LazyCommand(f"{_HERE}.evaluate", "evaluate", "Rank your held-out items, or evaluate controls."),
        "simulate": LazyCommand(f"{_HERE}.simulate", "simulate", "Train any recipe on any data set in one process."),
        "ledger": LazyCommand(f"{_HERE}.member", "ledger", "List the released sums that contain your data."),
        "cost": LazyCommand(f"{_HERE}.cost", "cost", "Estimate the network traffic of one client."),
        "privacy": LazyCommand(f"{_HERE}.privacy", "privacy", "Compute the privacy cost (epsilon) of Laplace noise."),
        "doctor": LazyCommand(f"{_HERE}.doctor", "doctor", "Check this installation, and say what is missing."),
        "data": LazyCommand(f"{_HERE}.evaluate", "data", "List, download and inspect data sets."),
        "keyring": LazyCommand(f"{_HERE}.keyholder", "keyring", "Create and hand out the keys of an encrypted task."),
        "committee": LazyCommand(f"{_HERE}.committee", "committee", "Take the masks off one-shot sums."),
        "certificate": LazyCommand(f"{_HERE}.membership", "certificate", "Request a membership certificate."),
        "organiser": LazyCommand(f"{_HERE}.organiser", "organiser", "Certify the members of an app's tasks."),
    }

    def invoke(self, ctx: Any) -> Any:
        """Run the command; print an expected error as one sentence."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            from client_sdk.cli.common import stderr

            stderr.print("stopped")
            raise typer.Exit(130) from None
        except typer.BadParameter as error:
            from protocols.parameter_text.first_fault import cause_text

            error.message = cause_text(error) or error.message
            raise
        except BrokenPipeError:  # the reader of the output has closed it: click exits without a message
            raise
        except (HushRecError, OSError) as error:
            if ctx.params.get("debug"):
                raise
            from client_sdk.cli.common import fail

            fail(str(error), getattr(error, "remedy", None))
        except ModuleNotFoundError as error:
            from client_sdk.cli.app import install_command
            from client_sdk.cli.common import fail

            install = install_command(error)
            if install is None or ctx.params.get("debug"):
                raise
            fail(f"this command needs {error.name}, which is not installed", install)


app = typer.Typer(
    cls=_Commands,
    help="Take part in a federated recommender whose server learns only sums.\n\nExample: hushrec demo",
    no_args_is_help=True,
    pretty_exceptions_show_locals=False,  # locals hold keys and interactions
    rich_markup_mode=None,
)


def _version(wanted: bool) -> None:
    if wanted:
        from importlib import metadata

        typer.echo(f"hushrec {metadata.version('hushrec')}")
        raise typer.Exit


@app.callback()
def options(
    debug: Annotated[bool, typer.Option("--debug", help="Print the traceback of an error.")] = False,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Take part in a federated recommender whose server learns only sums.

    Example: hushrec demo
    """
    del debug, version  # used by the group above and by the callback


def _exit_on_signal(number: int, _frame: FrameType | None) -> NoReturn:
    raise SystemExit(128 + number)


def main() -> None:
    """Run the command; the console script. SIGTERM and SIGHUP exit like Ctrl-C, so that the demo stops its server."""
    for name in ("SIGTERM", "SIGHUP"):  # SIGHUP: the terminal was closed; does not exist on Windows
        number = getattr(signal, name, None)
        if number is not None and signal.getsignal(number) is signal.SIG_DFL:  # ignored under nohup
            signal.signal(number, _exit_on_signal)
    app(prog_name="hushrec")
