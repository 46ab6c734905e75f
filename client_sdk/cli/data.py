"""`hushrec data`: list the data sets that can be fetched, fetch one, look at a file, and write it anew."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import numpy as np
from rich.markup import escape
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn
from typer import Argument, Option

from client_sdk.api.http import download
from client_sdk.cli.common import ColumnsText, DataDir, SkipBad, chosen_columns, command_group, console, say, table
from client_sdk.lab.data.fetch import DOWNLOADS, describe, fetch
from client_sdk.lab.data.files import read_data_file, write_data_file
from client_sdk.lab.data.splits import load_split

data = command_group("List, download, inspect and convert data sets.")


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
    name: Annotated[str, Argument(help="Data set: ml-100k or ml-1m.")],
    data_dir: Annotated[Path, Option(help="Folder for the data set; created if it does not exist.")] = Path("data"),
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
    name: Annotated[str, Argument(help="Name of a data set, or path of a file or folder.")],
    data_dir: DataDir = None,
    columns: ColumnsText = None,
    skip_bad: SkipBad = 0,
) -> None:
    """Load a data set or a file and print what was found: columns and why, the first interactions, what was not read.

    Example: hushrec data show ml-100k --data-dir data

    Example: hushrec data show ratings.csv --columns user=0,item=1,time=3
    """
    split = load_split(name, data_dir, columns=chosen_columns(columns), skip_bad=skip_bad, report=say)
    train = split.train
    degrees = np.sort(train.item_degrees())[::-1]
    of_head = degrees[: max(1, degrees.size // 10)].sum() / max(1, degrees.sum())
    rows = {
        "users": f"{train.n_users:,}",
        "items": f"{train.n_items:,}",
        "training interactions": f"{train.size:,}",
        "held-out interactions": f"{split.test.size:,}",
        "training interactions per user": f"{train.size / max(1, train.n_users):.1f}",
        "share of the 10 % most popular items": f"{of_head:.1%}",
    }
    console.print(table(name, ("", ""), list(rows.items())))
    say(f"held out: {split.words}")


@data.command("convert")
def convert(
    file: Annotated[Path, Argument(help="File of interactions.")],
    target: Annotated[Path, Argument(help="CSV file to write; it must not exist.")],
    columns: ColumnsText = None,
    skip_bad: SkipBad = 0,
) -> None:
    """Write a file anew as CSV with the headings user, item, rating and time, as far as it has them.

    Each pair of user and item is there once, so that what the reader took is seen
    once, here, and needs no options later.

    Example: hushrec data convert orders.txt orders.csv --columns user=0,item=2 --skip-bad 20
    """
    found = read_data_file(file, chosen_columns(columns), skip_bad=skip_bad)
    say(str(found))
    write_data_file(found, target)
    say(f"wrote {found.interactions.size:,} interactions to {target}")
