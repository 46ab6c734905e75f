"""`hushrec risen`: items that rose most between a task's two newest models, for its operator."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import numpy as np
from typer import Argument, Option

from client_sdk.cli.common import ColumnsText, DataDir, SkipBad, chosen_columns, console, say, table
from client_sdk.cli.membership import AllowHttp, ServerUrl
from client_sdk.history import History
from client_sdk.lab.data.interactions import DataError, Interactions
from client_sdk.lab.data.published import load_interactions
from client_sdk.lab.risen_items import LIST, risen
from client_sdk.operator import Operator
from client_sdk.rounds.account import ClientOptions
from protocols.catalogue import Catalogue
from protocols.errors import ParameterError


def risen_items(
    url: ServerUrl,
    task: Annotated[str, Argument(help="Name or id of the task.")],
    profiles: Annotated[
        str, Argument(help="Public sample of profiles: a data set, or a file or folder with users and items.")
    ],
    token_file: Annotated[Path, Option(help="File with the operator's token.", exists=True, dir_okay=False)],
    users: Annotated[int, Option(min=1, help="Profiles to use, the first ones, at most.")] = 1000,
    most: Annotated[int, Option(min=1, help="Items to list, at most.")] = 10,
    k: Annotated[int, Option("-k", min=1, help="Length of a first list.")] = LIST,
    data_dir: DataDir = None,
    columns: ColumnsText = None,
    skip_bad: SkipBad = 0,
    allow_http: AllowHttp = False,
) -> None:
    """List the items whose share of first lists rose most from the model before the newest to the newest.

    A member that lies can promote an item; its rise shows in the lists that people
    would get. They are computed here, from the two models and from profiles that
    you choose: no member's data are needed. The items of the file are the task's
    item numbers, or the ids of its catalogue.

    Example: hushrec risen https://example.org films ratings.csv --token-file operator.token
    """
    sample = load_interactions(profiles, data_dir, chosen_columns(columns), say, skip_bad)
    with Operator(url, token_file.read_text("ascii").strip(), ClientOptions(allow_http=allow_http)) as operator:
        catalogue = operator.catalogue(task)
        found = risen(
            operator, task, _profiles(sample, catalogue, operator.task(task).recipe.parameters, users), most, k
        )
    title = f"rounds {found.before} to {found.after}: share of {found.profiles} first lists of {k}"
    rows = [
        (str(one.item) if catalogue is None else catalogue.ids[one.item], f"{one.before:.1%}", f"{one.after:.1%}")
        for one in found.items
    ]
    console.print(table(title, ("item", "before", "after"), rows))


def _profiles(
    sample: Interactions, catalogue: Catalogue | None, parameters: dict[str, Any], most: int
) -> list[History]:
    """Return profiles with the task's item numbers; `DataError` for an item that the task does not have."""
    ids = np.arange(sample.n_items) if sample.item_ids is None else sample.item_ids
    items, numbers = parameters.get("items"), np.empty(sample.n_items, np.int32)
    for index, one in enumerate(ids.tolist()):
        try:
            number = int(one) if catalogue is None else catalogue.number_of(str(one))
        except (ValueError, ParameterError):
            number = -1
        if number < 0 or (isinstance(items, int) and number >= items):
            raise DataError(f"item {one!r} of the profiles is none of the task's")
        numbers[index] = number
    chosen = sample.active_users[:most].tolist()
    return [History(numbers[sample.history(user).items], sample.history(user).ratings) for user in chosen]
