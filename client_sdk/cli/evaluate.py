"""`hushrec evaluate`: ranking quality of the user's held-out items, or of simple controls on a data set."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final

import numpy as np
import typer
from numpy.typing import NDArray
from typer import Option

from client_sdk.cli.common import ColumnsText, DataDir, SkipBad, chosen_columns, console, say, table
from client_sdk.cli.membership import (
    READ_ONLY,
    AllowHttp,
    IdentityFile,
    InteractionsFile,
    TaskName,
    interactions_file,
    kept_membership,
    load_identity,
)
from client_sdk.client import Client
from client_sdk.lab.data.files import read_history
from client_sdk.lab.data.interactions import DataError, Interactions, LeaveOneOut
from client_sdk.lab.data.splits import Split, SplitKind, load_split
from client_sdk.lab.evaluation import controls, evaluate_full_scores, evaluate_scores, ranking_controls
from client_sdk.lab.evaluation.controls import ControlTable, control_row
from client_sdk.lab.evaluation.metrics import NEGATIVES, EvaluationResult, candidates_if_enough
from client_sdk.rounds.account import ClientOptions
from client_sdk.rounds.newest import own_scores
from protocols.catalogue import Catalogue
from protocols.errors import ParameterError

TestFile = Annotated[
    Path | None, Option("--test", help="File of test interactions; --dataset is then the training file.")
]
Splitting = Annotated[
    SplitKind | None,
    Option(
        "--split",
        help="leave-one-out (the latest interaction of each user), random (a fifth), or given (a test file).",
        show_default="by recipe and data",
    ),
]

_SEED: Final = 0


def evaluate(
    held_out: Annotated[
        list[str] | None,
        Option("--held-out", help="Number, or id in the task's catalogue, of an item not trained on; repeatable."),
    ] = None,
    dataset: Annotated[
        str | None, Option(help="Evaluate controls on this data set, file or folder instead of your items.")
    ] = None,
    data_dir: DataDir = None,
    columns: ColumnsText = None,
    skip_bad: SkipBad = 0,
    test: TestFile = None,
    split: Splitting = None,
    task: TaskName = None,
    interactions: InteractionsFile = None,
    k: Annotated[int, Option("-k", help="Length of the ranked list: HR@k and NDCG@k.")] = 10,
    identity: IdentityFile = None,
    allow_http: AllowHttp = False,
) -> None:
    """Rank your held-out items with the newest model, or evaluate simple controls on a data set.

    Each held-out item is ranked against 99 random items and against all items
    that you do not have. It must not be among your interactions, because the
    model was trained on those. Nothing is sent to the server.

    Example: hushrec evaluate --task movies --held-out 17 --held-out 256

    Example: hushrec evaluate --dataset ratings.csv --columns user=0,item=1
    """
    if (dataset is None) == (not held_out):
        raise typer.BadParameter("pass either --held-out items or --dataset", param_hint="'--held-out' / '--dataset'")
    if dataset is not None:
        chosen = chosen_columns(columns)
        data = load_split(
            dataset, data_dir, columns=chosen, skip_bad=skip_bad, test=test, kind=split, seed=_SEED, report=say
        )
        _evaluate_controls(dataset, data, k)
        return
    who = load_identity(identity)
    membership = kept_membership(who, task)
    path = interactions_file(who, membership, interactions)
    options = ClientOptions(allow_http=allow_http)
    with Client(membership.url, who, policy=READ_ONLY, options=options) as client:
        part = client.join(membership.task_id)
        catalogue = part.catalogue()
        wanted = [_item_number(text, catalogue) for text in held_out or []]
        history = read_history(path, part.terms.n_items, catalogue)
        trained = set(history.items.tolist())
        for text, item in zip(held_out or [], wanted, strict=True):
            if item in trained:
                raise DataError(
                    f"held-out item {text} is in the interactions file, so the model was trained on it", path
                )
        own = held_out_split(part.terms.n_items, history.items, wanted)
        state = part.model()
        scores = own_scores(part.part, state, part.part.history(history))
    rows = [control_row(f"model of round {state.round_number}", result) for result in measure(scores, own, k)]
    found = ControlTable((f"HR@{k}", f"NDCG@{k}"), tuple(rows))
    title = f"{len(wanted)} held-out items of one user, task {membership.task_name}"
    console.print(table(title, found.headings, found.cells))


def _item_number(text: str, catalogue: Catalogue | None) -> int:
    """Return the number of an item; `BadParameter` for text that is no number, in a task without a catalogue."""
    if catalogue is not None:
        return catalogue.number_of(text)
    try:
        return int(text)
    except ValueError:
        raise typer.BadParameter(f"{text!r} is no item number", param_hint="'--held-out'") from None


def held_out_split(n_items: int, seen: NDArray[np.int32], held_out: list[int]) -> LeaveOneOut:
    """Return a split with one row (user) for each held-out item.

    n_items: items of the task. seen: int32, the items trained on. The training items of a row are `seen` and the other
    held-out items, so that the row's item is not ranked against them. Raises `ParameterError` for a held-out item
    outside 0..n_items-1 or listed twice.
    """
    wanted = np.asarray(held_out, dtype=np.int64)
    if wanted.min() < 0 or wanted.max() >= n_items:
        raise ParameterError(f"held-out items must lie in 0..{n_items - 1}")
    if np.unique(wanted).size != wanted.size:
        raise ParameterError("a held-out item is listed twice")
    known = [np.concatenate([seen, np.delete(wanted, row)]) for row in range(wanted.size)]
    users = np.repeat(np.arange(wanted.size), seen.size + wanted.size - 1)
    train = Interactions.from_pairs(users, np.concatenate(known), n_users=wanted.size, n_items=n_items)
    return LeaveOneOut(train, wanted.astype(np.int32))


def measure(scores: NDArray[np.float32], split: LeaveOneOut, k: int) -> list[EvaluationResult]:
    """Return the results of full ranking and, with at least 99 negatives to draw, of sampled ranking.

    scores: float32 (items,), the scores of one user, used for every row of `split`.
    """
    full = evaluate_full_scores(lambda users: np.broadcast_to(scores, (users.size, scores.size)), split, k)
    candidates = candidates_if_enough(split, np.random.default_rng(_SEED))
    if candidates is None:
        return [full]
    return [full, evaluate_scores(lambda _, items: scores[items], split, candidates.negatives, k)]


def _evaluate_controls(dataset: str, split: Split, k: int) -> None:
    """Print the controls on one held-out item of each user, or on several test items."""
    rng = np.random.default_rng(_SEED)
    data = split.one_each
    if data is None:
        several = ranking_controls(split.train, split.test, rng, k)
        console.print(table(f"controls on {dataset}: {split.words}", several.headings, several.cells))
        return
    candidates = candidates_if_enough(data, rng)
    say(f"test interactions: {split.words}")
    found = controls(data, None if candidates is None else candidates.negatives, rng, k)
    console.print(table(f"controls on {dataset}", found.headings, found.cells))
    if candidates is None:
        say(f"Users have fewer than {NEGATIVES} other items, so items are ranked among all of them only.")
    elif candidates.replaced:
        console.print(f"{candidates.replaced} invalid negatives in the data set's file were replaced")
