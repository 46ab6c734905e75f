"""The command `hushrec`: its subcommands, imported when they are used, and how errors are printed.

`HushRecError` and `OSError` are printed to standard error as one sentence, with the remedy on a second line, and the
exit code is 1. It is 2 for wrong usage and 130 for an interrupt. `hushrec --debug ...` prints the traceback instead,
without local variables. scripts/reference_pages.py describes the subcommands in the docs.
"""

from __future__ import annotations

import signal
from importlib import import_module
from types import FrameType
from typing import Annotated, Any, Final, NoReturn

import typer
from typer import Option
from typer.core import TyperGroup
from typer.main import get_command

from protocols.errors import HushRecError

_COMMANDS: Final = {
    "demo": ("demo:demo", "Train a recommender from encrypted sums on this machine."),
    "join": ("take_part:join", "Enrol in a task and take part in its rounds."),
    "recommend": ("take_part:recommend", "Recommend items with the newest model."),
    "evaluate": ("evaluate:evaluate", "Rank your held-out items, or evaluate controls."),
    "simulate": ("simulate:simulate", "Train any recipe on any data set in one process."),
    "ledger": ("take_part:ledger", "List the released sums that contain your data, and their costs."),
    "receipt": ("receipt:receipt", "Prove that a contribution was counted, or left out."),
    "cost": ("cost:cost", "Estimate what a task costs a client or the server."),
    "risen": ("risen:risen_items", "List the items that rose most between two models of a task."),
    "privacy": ("privacy:privacy", "Plan the noise of a task."),
    "doctor": ("doctor:doctor", "Check this installation, and say what is missing."),
    "data": ("data:data", "List, download, inspect and convert data sets."),
    "keyring": ("serving:keyring", "Create and hand out the keys of an encrypted task."),
    "committee": ("serving:committee", "Take the masks off one-shot sums."),
    "membership": ("membership:memberships", "List what you have joined, and follow a server that moved."),
    "certificate": ("membership:certificate", "Request a membership certificate."),
    "organiser": ("organiser:organiser", "Certify the members of an app's tasks."),
}
"""Command -> its module below `client_sdk.cli` and its function or `typer.Typer` there, and its line in the help."""

_EXTRA_OF: Final = {
    "dp_accounting": "privacy",
    "fastapi": "organiser",
    "gmpy2": "paillier",
    "jinja2": "demo",
    "matplotlib": "plots",
    "phe": "paillier",
    "polars": "data",
    "scipy": "lab",
    "tenseal": "ckks",
    "uvicorn": "organiser",
    "zstandard": "ckks",
}
"""Package that a command did not find -> the extra of HushRec that brings it."""


class _Commands(TyperGroup):
    """The root group: imports a command when it is used (click's LazyGroup), and prints the errors of all."""

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002 - click's signature
        """Return the names of the commands in the order of the help."""
        return list(_COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:  # noqa: ARG002 - click's signature
        """Import the command and return it, None if there is none of that name."""
        if cmd_name not in _COMMANDS:
            return None
        module, _, name = _COMMANDS[cmd_name][0].partition(":")
        found = getattr(import_module(f"client_sdk.cli.{module}"), name)
        if not isinstance(found, typer.Typer):
            function, found = found, typer.Typer(add_completion=False, rich_markup_mode=None)
            found.command(cmd_name)(function)
        command = get_command(found)
        command.name = cmd_name
        return command

    def format_commands(self, ctx: Any, formatter: Any) -> None:  # noqa: ARG002 - click's signature
        """Print the commands in the help without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, summary) for name, (_, summary) in _COMMANDS.items()])

    def invoke(self, ctx: Any) -> Any:
        """Run the command; print an expected error as one sentence. rich is imported by what prints with it."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            raise _stopped() from None
        except typer.BadParameter as error:
            from protocols.parameter_text import cause_text

            error.message = cause_text(error) or error.message
            raise
        except BrokenPipeError:  # the reader of the output has closed it: click exits without a message
            raise
        except (HushRecError, OSError, ModuleNotFoundError) as error:
            from client_sdk.cli.common import fail
            from client_sdk.cli.install import install_command

            if _interrupted(error):
                raise _stopped() from None
            if ctx.params.get("debug"):
                raise
            if not isinstance(error, ModuleNotFoundError):
                named = isinstance(error, OSError) and error.filename and error.strerror
                text = f"{error.filename}: {error.strerror}" if named else str(error)  # type: ignore[union-attr]
                extra = getattr(error, "extra", None)
                fail(text, install_command(extra) if extra else getattr(error, "remedy", None))
            extra = _EXTRA_OF.get((error.name or "").partition(".")[0])
            if extra is None:
                raise
            fail(f"this command needs {error.name}, which is not installed", install_command(extra))


def _stopped() -> typer.Exit:
    from client_sdk.cli.common import stderr

    stderr.print("stopped")
    return typer.Exit(130)


def _interrupted(error: BaseException | None) -> bool:
    """Return whether an error follows from Ctrl-C, which TenSEAL, while it loads, turns into a missing module."""
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__cause__ or error.__context__
    return error is not None


app = typer.Typer(
    cls=_Commands,
    no_args_is_help=True,
    pretty_exceptions_show_locals=False,  # locals hold keys and interactions
    rich_markup_mode=None,  # rich takes longer to import than all the rest of the help
)


def _version(wanted: bool) -> None:
    if wanted:
        from importlib import metadata

        typer.echo(f"hushrec {metadata.version('hushrec')}")
        raise typer.Exit


@app.callback()
def options(
    debug: Annotated[bool, Option("--debug", help="Print the traceback of an error.")] = False,
    version: Annotated[
        bool, Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
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
