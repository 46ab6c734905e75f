"""The typer app of `hushrec` and its error handling.

`HushRecError` and `OSError` are printed to standard error as one sentence, and the exit code is 1. The exit code is 2
for wrong usage and 130 for an interrupt. `hushrec --debug ...` prints the traceback instead, without local variables.
"""

from __future__ import annotations

import signal
from importlib import metadata
from types import FrameType
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperGroup

from client_sdk.cli.certificate import certificate
from client_sdk.cli.console import console, fail, stderr
from client_sdk.cli.cost import cost
from client_sdk.cli.data import data
from client_sdk.cli.demo import demo
from client_sdk.cli.doctor import doctor
from client_sdk.cli.evaluate import evaluate
from client_sdk.cli.hints import hint
from client_sdk.cli.keyring import keyring
from client_sdk.cli.ledger import ledger
from client_sdk.cli.organiser import organiser
from client_sdk.cli.participate import join, recommend
from client_sdk.cli.privacy import privacy
from protocols.errors import HushRecError

__all__ = ["app", "main"]


class _ClearErrors(TyperGroup):
    """The root group. Prints the errors of all commands."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command; print an expected error as one sentence."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            stderr.print("stopped")
            raise typer.Exit(130) from None
        except BrokenPipeError:  # the reader of the output has closed it: click exits without a message
            raise
        except (HushRecError, OSError) as error:
            if ctx.params.get("debug"):
                raise
            fail(str(error), hint(error))


app = typer.Typer(
    cls=_ClearErrors,
    help="Take part in a federated recommender whose server learns only sums.\n\nExample: hushrec demo",
    no_args_is_help=True,
    pretty_exceptions_show_locals=False,  # locals hold keys and interactions
    rich_markup_mode="rich",
)


def _version(wanted: bool) -> None:
    if wanted:
        console.print(f"hushrec {metadata.version('hushrec')}", highlight=False)
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


app.command()(demo)
app.command()(join)
app.command()(recommend)
app.command()(evaluate)
app.command()(ledger)
app.command()(cost)
app.command()(privacy)
app.add_typer(data, name="data")
app.command()(doctor)
app.add_typer(keyring, name="keyring")
app.add_typer(certificate, name="certificate")
app.add_typer(organiser, name="organiser")


def _exit_on_signal(number: int, _frame: FrameType | None) -> NoReturn:
    raise SystemExit(128 + number)


def main() -> None:
    """Run the command; the console script. SIGTERM and SIGHUP exit like Ctrl-C, so that the demo stops its server."""
    for name in ("SIGTERM", "SIGHUP"):  # SIGHUP: the terminal was closed; does not exist on Windows
        number = getattr(signal, name, None)
        if number is not None and signal.getsignal(number) is signal.SIG_DFL:  # ignored under nohup
            signal.signal(number, _exit_on_signal)
    app(prog_name="hushrec")
