"""`hushrec demo`: the main job, end to end, on this machine."""

from __future__ import annotations

import secrets
import shutil
import webbrowser
from pathlib import Path
from typing import Annotated, Literal

import typer

from client_sdk.cli.console import console, fail

__all__ = ["demo"]


def demo(
    dataset: Annotated[str, typer.Option(help="synthetic, ml-100k or ml-1m.")] = "synthetic",
    data_dir: Annotated[Path | None, typer.Option(help="Folder with the data set's files.")] = None,
    recipe: Annotated[str, typer.Option(help="colr, or scolr (clients of different ranks).")] = "colr",
    rounds: Annotated[int | None, typer.Option(min=1, help="Rounds an arm; the data set's own by default.")] = None,
    cohort: Annotated[int | None, typer.Option(min=3, help="Clients a round.")] = None,
    rank: Annotated[int | None, typer.Option(min=1, help="Rank of the change.")] = None,
    parameter_set: Annotated[
        Literal["compact", "standard", "precise"], typer.Option("--set", help="CKKS parameters.")
    ] = "standard",
    dropout: Annotated[float, typer.Option(min=0, max=0.9, help="Share of a cohort that never answers.")] = 0.0,
    seed: Annotated[int, typer.Option(help="Same seed, same data, cohorts and draws.")] = 0,
    output: Annotated[Path, typer.Option(help="Folder for the report and the server's data.")] = Path("hushrec-demo"),
    browse: Annotated[bool, typer.Option("--open", help="Open the report in a browser.")] = False,
) -> None:
    """Train a recommender from ciphertexts: a server process, a fleet of clients, a report.

    Four ways side by side: encrypted, the same in plain, full FedMF, and popularity.
    Example: hushrec demo --dataset ml-100k --data-dir data
    """
    from client_sdk.demo.display import result_table
    from client_sdk.demo.run import DemoRequest, run_demo

    server_dir = output / f"server-{secrets.token_hex(4)}"
    request = DemoRequest(dataset, data_dir, recipe, rounds, cohort, rank, parameter_set, dropout, seed, server_dir)

    def started(url: str) -> None:
        console.print(f"Training on [bold]{dataset}[/]; contributions to an encrypted sum are CKKS ciphertexts.")
        console.print(f"Aggregator at {url}, data in {server_dir}", soft_wrap=True)

    result = run_demo(request, console, started)
    console.print(result_table(result))
    _keep_newest(output, server_dir)
    try:
        from client_sdk.demo.report import write_report

        path = write_report(result, output / f"report-{dataset}-{recipe}.html")
    except ImportError as error:
        fail(f"the report needs {error.name}", "pip install 'hushrec[bench]'")
    console.print(f"Report: [bold]{path}[/]", soft_wrap=True)
    if browse:
        webbrowser.open(path.as_uri())


def _keep_newest(output: Path, server_dir: Path) -> None:
    """Drop the data of earlier demos; the last one's stays, to be looked into, and so does one that still runs."""
    from client_sdk.demo.server import is_in_use

    for old in output.glob("server-*"):
        if old != server_dir and not is_in_use(old):
            shutil.rmtree(old, ignore_errors=True)
