"""`hushrec data`: which data sets there are, fetching one from its provider, and looking at what is on disk."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

from client_sdk.api.drivers import download
from client_sdk.cli.console import console, table
from client_sdk.data.fetch import DOWNLOADS, describe, fetch
from client_sdk.data.loaders import load_dataset

__all__ = ["data"]

data = typer.Typer(no_args_is_help=True, help="Data sets: list them, fetch one from its provider, look at one on disk.")


@data.command("list")
def list_sets() -> None:
    """Name the data sets that can be fetched, with their terms.

    Example: hushrec data list
    """
    for name in sorted(DOWNLOADS):
        console.print(describe(name), highlight=False)
        console.print()


@data.command("fetch")
def fetch_set(
    name: Annotated[str, typer.Argument(help="ml-100k or ml-1m")],
    data_dir: Annotated[Path, typer.Option(help="Folder to put it in.")] = Path("data"),
) -> None:
    """Download a data set from its provider, check it, unpack it.

    Example: hushrec data fetch ml-100k
    """
    console.print(describe(name), highlight=False)
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, console=console) as progress:
        bar = progress.add_task(name, total=DOWNLOADS[name].size)
        folder = fetch(name, data_dir, download, lambda done: progress.update(bar, completed=done))
    usage = escape(f"hushrec demo --dataset {name} --data-dir {data_dir}")
    console.print(f"{name} is in [bold]{escape(str(folder))}[/]: {usage}", soft_wrap=True)


@data.command("show")
def show_set(
    name: Annotated[str, typer.Argument(help="A data set's name, or a CSV file.")],
    data_dir: Annotated[Path | None, typer.Option(help="Folder that holds it.")] = None,
) -> None:
    """Load a data set and say what is in it.

    Example: hushrec data show ml-100k --data-dir data
    """
    loaded = load_dataset(name, data_dir)
    train = loaded.train
    degrees = train.item_degrees()
    rows = {
        "users": f"{train.n_users:,}",
        "items": f"{train.n_items:,}",
        "training interactions": f"{train.items.size:,}",
        "held-out interactions": f"{int((loaded.test_items >= 0).sum()):,}",
        "interactions a user": f"{train.items.size / train.n_users:.1f}",
        "share of the 10 % most popular items": f"{_head_share(degrees):.1%}",
    }
    console.print(table(name, ("", ""), list(rows.items())))


def _head_share(degrees: object) -> float:
    import numpy as np

    ordered = np.sort(np.asarray(degrees))[::-1]
    return float(ordered[: max(1, ordered.size // 10)].sum() / max(1, ordered.sum()))
