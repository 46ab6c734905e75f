"""`hushrec demo`: the main job, end to end, on this machine."""

from __future__ import annotations

import secrets
import shutil
import webbrowser
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from client_sdk.cli.console import console, fail

if TYPE_CHECKING:
    from client_sdk.demo.privirec_run import PriviRecRequest
    from client_sdk.demo.run import DemoRequest

__all__ = ["demo"]


def demo(
    dataset: Annotated[str, typer.Option(help="synthetic, ml-100k or ml-1m.")] = "synthetic",
    data_dir: Annotated[Path | None, typer.Option(help="Folder with the data set's files.")] = None,
    recipe: Annotated[
        str, typer.Option(help="colr, scolr (clients of different ranks), privirec-k, privirec.")
    ] = "colr",
    rounds: Annotated[
        int | None, typer.Option(min=1, help="Rounds an arm, or power iterations; the data set's own by default.")
    ] = None,
    cohort: Annotated[int | None, typer.Option(min=3, help="Clients a round; in PriviRec always all of them.")] = None,
    rank: Annotated[int | None, typer.Option(min=1, help="Rank of the change, or singular vectors.")] = None,
    parameter_set: Annotated[
        Literal["compact", "standard", "precise"], typer.Option("--set", help="CKKS parameters.")
    ] = "standard",
    dropout: Annotated[float, typer.Option(min=0, max=0.9, help="Share of a cohort that never answers.")] = 0.0,
    seed: Annotated[int, typer.Option(help="Same seed, same data, cohorts and draws.")] = 0,
    output: Annotated[Path, typer.Option(help="Folder for the report and the server's data.")] = Path("hushrec-demo"),
    browse: Annotated[bool, typer.Option("--open", help="Open the report in a browser.")] = False,
) -> None:
    """Train a recommender from ciphertexts: a server process, a fleet of clients, a report.

    Four ways side by side: encrypted, the same in plain, full FedMF, and popularity. With privirec-k: masked sums, the
    spectrum as it converges, and a graph filter beside the same with all data in one place.
    Example: hushrec demo --dataset ml-100k --data-dir data
    """
    server_dir = output / f"server-{secrets.token_hex(4)}"
    if recipe in ("privirec", "privirec-k"):
        if cohort is not None:
            fail(f"{recipe} sums over everyone, in every round", "leave out --cohort")
        from client_sdk.demo.privirec_run import PriviRecRequest

        asked = PriviRecRequest(dataset, data_dir, recipe, rounds, rank, dropout, seed, server_dir=server_dir)
        _privirec(asked, output)
        return
    from client_sdk.demo.run import DemoRequest

    _factors(
        DemoRequest(dataset, data_dir, recipe, rounds, cohort, rank, parameter_set, dropout, seed, server_dir),
        output,
        browse,
    )


def _factors(request: DemoRequest, output: Path, browse: bool) -> None:
    """Ways of training item factors side by side, and the report."""
    from client_sdk.demo.display import result_table
    from client_sdk.demo.run import run_demo

    def started(url: str) -> None:
        console.print(
            f"Training on [bold]{request.dataset}[/]; contributions to an encrypted sum are CKKS ciphertexts."
        )
        console.print(f"Aggregator at {url}, data in {request.server_dir}", soft_wrap=True)

    result = run_demo(request, console, started)
    console.print(result_table(result))
    _keep_newest(output, request.server_dir)
    try:
        from client_sdk.demo.report import write_report

        path = write_report(result, output / f"report-{request.dataset}-{request.recipe}.html")
    except ImportError as error:
        fail(f"the report needs {error.name}", "pip install 'hushrec[bench]'")
    console.print(f"Report: [bold]{path}[/]", soft_wrap=True)
    if browse:
        webbrowser.open(path.as_uri())


def _privirec(request: PriviRecRequest, output: Path) -> None:
    """Masked sums and a graph filter: `make demo RECIPE=privirec-k`."""
    from client_sdk.demo.privirec_display import ranking_table
    from client_sdk.demo.privirec_files import write_results
    from client_sdk.demo.privirec_run import run_privirec_demo

    def started(url: str) -> None:
        console.print(
            f"{request.recipe} on [bold]{request.dataset}[/]: everyone in every sum, masked; nothing is trained."
        )
        console.print(f"Aggregator at {url}, data in {request.server_dir}", soft_wrap=True)

    result = run_privirec_demo(request, console, started)
    console.print(ranking_table(result))
    for warning in result.warnings:
        console.print(f"[yellow]To know:[/] {warning}")
    _keep_newest(output, request.server_dir)
    try:
        figures, plot = write_results(result, output)
    except ImportError as error:
        fail(f"the plot needs {error.name}", "pip install 'hushrec[bench]'")
    console.print(f"Figures: [bold]{figures}[/]\nPlot: [bold]{plot}[/]", soft_wrap=True)


def _keep_newest(output: Path, server_dir: Path) -> None:
    """Drop the data of earlier demos; the last one's stays, to be looked into, and so does one that still runs."""
    from client_sdk.demo.server import is_in_use

    for old in output.glob("server-*"):
        if old != server_dir and not is_in_use(old):
            shutil.rmtree(old, ignore_errors=True)
