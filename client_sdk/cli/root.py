"""The typer app of `hushrec`, and what becomes of errors.

Every error that HushRec raises on purpose, and every error of the file system, becomes one sentence on standard error
and exit code 1; wrong usage is 2, an interrupt 130. `hushrec --debug ...` shows the traceback instead, without locals.
"""

from __future__ import annotations

import signal
from importlib import metadata
from types import FrameType
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperGroup

from client_sdk.cli.console import console, fail, stderr
from client_sdk.cli.cost import cost
from client_sdk.cli.data import data
from client_sdk.cli.demo import demo
from client_sdk.cli.doctor import doctor
from client_sdk.cli.evaluate import evaluate
from client_sdk.cli.hints import hint
from client_sdk.cli.keyring import keyring
from client_sdk.cli.ledger import ledger
from client_sdk.cli.participate import join, recommend
from client_sdk.cli.privacy import privacy
from protocols.errors import HushRecError

__all__ = ["app", "main"]


class _ClearErrors(TyperGroup):
    """The root group; it sees what every command under it raises."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command and tell an expected error in one sentence."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            stderr.print("stopped")
            raise typer.Exit(130) from None
        except BrokenPipeError:  # whoever read the output has gone: click ends quietly
            raise
        except (HushRecError, OSError) as error:
            if ctx.params.get("debug"):
                raise
            fail(str(error), hint(error))


app = typer.Typer(
    cls=_ClearErrors,
    help="Take part in a federated recommender whose server learns sums, and nothing else.",
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
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Take part in a federated recommender whose server learns sums, and nothing else."""
    del debug, version  # read by the group above, and by the callback


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


def _end(number: int, _frame: FrameType | None) -> NoReturn:
    raise SystemExit(128 + number)


def main() -> None:
    """The console script. Told to end, it unwinds like on Ctrl-C: the demo takes its server with it."""
    for name in ("SIGTERM", "SIGHUP"):  # SIGHUP is the terminal being closed; Windows has none
        number = getattr(signal, name, None)
        if number is not None and signal.getsignal(number) is signal.SIG_DFL:  # not under nohup
            signal.signal(number, _end)
    app(prog_name="hushrec")
