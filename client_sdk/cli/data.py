"""`hushrec data`: list the data sets that can be fetched, fetch one, and summarise one on disk."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

from client_sdk.api.drivers import download
from client_sdk.cli.console import console, table
from client_sdk.cli.data_options import ColumnsText, DataDir, chosen_columns, say
from client_sdk.data.fetch import DOWNLOADS, describe, fetch
from client_sdk.data.loaders import load_dataset

__all__ = ["data"]

data = typer.Typer(no_args_is_help=True, help="List, download and inspect data sets.", rich_markup_mode=None)


@data.command("list")
def list_sets() -> None:
    """List the data sets that can be downloaded, with address, size and terms of use.

    Example: hushrec data list
    """
    for name in sorted(DOWNLOADS):
        console.print(describe(name), highlight=False)
        console.print()


@data.command("fetch")
def fetch_set(
    name: Annotated[str, typer.Argument(help="Data set: ml-100k or ml-1m.")],
    data_dir: Annotated[Path, typer.Option(help="Folder for the data set; created if it does not exist.")] = Path(
        "data"
    ),
) -> None:
    """Download a data set from its provider, verify its size and digests, and unpack it.

    Example: hushrec data fetch ml-100k --data-dir data
    """
    console.print(describe(name), highlight=False)
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, console=console) as progress:
        bar = progress.add_task(name, total=DOWNLOADS[name].size)
        folder = fetch(name, data_dir, download, lambda done: progress.update(bar, completed=done))
    usage = escape(f"hushrec demo --dataset {name} --data-dir {data_dir}")
    console.print(f"{name} is in [bold]{escape(str(folder))}[/]. To use it: {usage}", soft_wrap=True)


@data.command("show")
def show_set(
    name: Annotated[str, typer.Argument(help="Name of a data set, or path of a file or folder.")],
    data_dir: DataDir = None,
    columns: ColumnsText = None,
) -> None:
    """Load a data set or a file and print what was found: columns, users, items and interactions.

    Example: hushrec data show ml-100k --data-dir data

    Example: hushrec data show ratings.csv --columns user=0,item=1,time=3
    """
    loaded = load_dataset(name, data_dir, columns=chosen_columns(columns), report=say)
    train = loaded.train
    degrees = train.item_degrees()
    rows = {
        "users": f"{train.n_users:,}",
        "items": f"{train.n_items:,}",
        "training interactions": f"{train.items.size:,}",
        "held-out interactions": f"{int((loaded.test_items >= 0).sum()):,}",
        "training interactions per user": f"{train.items.size / train.n_users:.1f}",
        "share of the 10 % most popular items": f"{_head_share(degrees):.1%}",
    }
    console.print(table(name, ("", ""), list(rows.items())))


def _head_share(degrees: object) -> float:
    """Return the share of all interactions that belong to the most popular tenth of the items."""
    import numpy as np

    ordered = np.sort(np.asarray(degrees))[::-1]
    return float(ordered[: max(1, ordered.size // 10)].sum() / max(1, ordered.sum()))
