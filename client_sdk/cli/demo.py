"""`hushrec demo`: train a recommender end to end on this machine."""

from __future__ import annotations

import secrets
import shutil
import webbrowser
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from rich.console import Console
from typer import Option

from client_sdk.cli.common import (
    ColumnsText,
    DataDir,
    SkipBad,
    chosen_columns,
    command_options,
    console,
    picked,
    say,
    stderr,
)
from client_sdk.cli.install import install_command
from protocols.errors import ParameterError

if TYPE_CHECKING:
    from client_sdk.lab.data.published import Report
    from client_sdk.lab.demo import DemoRequest, DemoResult
    from client_sdk.lab.demo.arms import FactorDemo
    from client_sdk.lab.demo.spectrum import SpectrumDemo


@dataclass(frozen=True)
class DemoOptions:
    """Options of `hushrec demo`."""

    dataset: Annotated[str, Option(help="Data set: synthetic (offline), ml-100k, ml-1m, or the path of a file.")] = (
        "synthetic"
    )
    data_dir: DataDir = None
    columns: ColumnsText = None
    skip_bad: SkipBad = 0
    recipe: Annotated[str, Option(help="Recipe: colr, privirec-k or privirec.")] = "colr"
    mechanism: Annotated[
        Literal["ckks", "masked", "oneshot"] | None,
        Option(
            help="How contributions are hidden: ckks or oneshot; with privirec, masked or oneshot.",
            show_default="ckks; masked with privirec",
        ),
    ] = None
    rounds: Annotated[
        int | None,
        Option(min=1, help="Rounds of each run; with privirec, power iterations.", show_default="by data set"),
    ] = None
    cohort: Annotated[
        int | None, Option(min=3, help="Clients in each round; with privirec always all.", show_default="by data set")
    ] = None
    rank: Annotated[
        int | None,
        Option(
            min=1, help="Rank of the update; with privirec, number of singular vectors.", show_default="by data set"
        ),
    ] = None
    parameter_set: Annotated[Literal["compact", "standard", "precise"], Option("--set", help="CKKS parameter set.")] = (
        "standard"
    )
    dropout: Annotated[float, Option(min=0, max=0.9, help="Share of the clients that drop out, 0 to 0.9.")] = 0.0
    seed: Annotated[int, Option(min=0, help="Seed of the data, cohorts and random draws.")] = 0
    output: Annotated[Path, Option(help="Folder for the report and the server's data.")] = Path("hushrec-demo")
    browse: Annotated[bool, Option("--open", help="Open the report in a browser.")] = False


@command_options
def demo(options: DemoOptions) -> None:
    """Train a recommender from encrypted sums: start a server, run many clients, write a report.

    Compares four runs: encrypted training, the same in plain, full FedMF in ciphertexts, and popularity. With
    privirec-k it runs masked sums, shows the spectrum as it converges and compares a graph filter with central data.
    With --mechanism oneshot a committee opens the sums, and each client sends one message.

    Example: hushrec demo --dataset ml-100k --data-dir data

    Example: hushrec demo --dataset ratings.csv
    """
    from client_sdk.lab.demo import DemoRequest
    from client_sdk.lab.demo.plots import plots_available
    from client_sdk.lab.demo.report import result_table, write_results

    if not plots_available():
        stderr.print(
            f"matplotlib is not installed: the report will have no curves; to change that: {install_command('plots')}",
            markup=False,
        )
    server_dir = options.output / f"server-{secrets.token_hex(4)}"
    request = DemoRequest(
        columns=chosen_columns(options.columns),
        skip_bad=options.skip_bad,
        server_dir=server_dir,
        **picked(options, "dataset", "data_dir", "recipe", "rounds", "cohort", "rank", "mechanism"),
        **picked(options, "parameter_set", "dropout", "seed"),
    )

    def on_start(url: str) -> None:
        console.print(f"Aggregator at {url}, data in {server_dir}", soft_wrap=True)

    result = run_demo(request, console, on_start, say)
    console.print(result_table(result))
    say(f"Verdict: {result.verdict}")
    for warning in result.warnings:
        console.print(f"[yellow]Warning:[/] {warning}")
    _delete_older_runs(options.output, server_dir)
    figures, report = write_results(result, options.output)
    console.print(f"Figures: [bold]{figures}[/]", soft_wrap=True)
    console.print(f"Report: [bold]{report}[/]", soft_wrap=True)
    if options.browse:
        webbrowser.open(report.as_uri())


def run_demo(
    request: DemoRequest,
    console: Console,
    on_start: Callable[[str], None] | None = None,
    report: Report | None = None,
) -> DemoResult:
    """Run every arm of the recipe through one server process and return the results.

    on_start: called with the server's URL when it is ready. report: called with what was found in a file. Before
    anything is written, raises `ParameterError` for an unknown recipe and settings that do not fit, and `DataError` for
    an unknown data set or missing files.
    """
    from client_sdk.lab.local_server import run_server

    demo: FactorDemo | SpectrumDemo
    if request.recipe == "colr":
        from client_sdk.lab.demo.arms import FactorDemo

        demo = FactorDemo(request, report)
    elif request.recipe in ("privirec-k", "privirec"):
        from client_sdk.lab.demo.spectrum import SpectrumDemo  # it needs scipy, which the other demo does not

        demo = SpectrumDemo(request, report)
    else:
        raise ParameterError(f"the demo runs colr, privirec-k or privirec, not {request.recipe!r}")
    console.print(demo.announcement(), soft_wrap=True)
    with run_server(request.server_dir) as server:
        if on_start:
            on_start(server.url)
        return demo.run(server, console)


def _delete_older_runs(output: Path, server_dir: Path) -> None:
    """Delete the server data of earlier runs in `output`. `server_dir` and servers that still run are kept."""
    from client_sdk.lab.local_server import is_in_use

    for old in output.glob("server-*"):
        if old != server_dir and not is_in_use(old):
            shutil.rmtree(old, ignore_errors=True)
