"""`hushrec evaluate`: how well held-out items are found, on the device; or what a data set gives to controls."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final

import numpy as np
import typer
from numpy.typing import NDArray

from client_sdk.cli.console import console, table
from client_sdk.cli.item_files import read_history
from client_sdk.cli.membership import (
    READING,
    IdentityFile,
    TaskName,
    interactions_file,
    kept_membership,
    load_identity,
)
from client_sdk.client import Client
from client_sdk.data.errors import DataError
from client_sdk.data.interactions import Interactions, LeaveOneOut
from client_sdk.data.loaders import load_dataset
from client_sdk.evaluation import (
    LEAK_WARNING,
    candidates_of,
    controls,
    evaluate_full_scores,
    evaluate_scores,
)
from client_sdk.evaluation.leave_one_out import NEGATIVES, EvaluationResult
from protocols.errors import ParameterError

__all__ = ["evaluate", "held_out_split", "measure"]

_SEED: Final = 0


def evaluate(
    held_out: Annotated[
        list[int] | None, typer.Option("--held-out", help="An item you like that was not trained on; repeatable.")
    ] = None,
    dataset: Annotated[
        str | None, typer.Option(help="Instead of your items: a data set's name, or a CSV file.")
    ] = None,
    data_dir: Annotated[Path | None, typer.Option(help="Folder that holds the data set.")] = None,
    task: TaskName = None,
    interactions: Annotated[
        Path | None, typer.Option(help="Your items; the file that was joined with when not given.")
    ] = None,
    k: Annotated[int, typer.Option("-k", help="Length of the list that a hit is looked for in.")] = 10,
    identity: IdentityFile = None,
) -> None:
    """Rank your held-out items with the newest model, or show what controls reach on a data set.

    Held-out items are ranked among 99 items drawn at random and among all items you do not have.
    They must not be in the interactions: an item that was trained on measures nothing.
    The figures are of one user and stay here.

    Example: hushrec evaluate --task movies --held-out 17 --held-out 256

    Example: hushrec evaluate --dataset ml-100k --data-dir data
    """
    if (dataset is None) == (not held_out):
        raise typer.BadParameter("pass either --held-out items or --dataset", param_hint="'--held-out' / '--dataset'")
    if dataset is not None:
        _controls(dataset, data_dir, k)
    else:
        _own_items(held_out or [], task, interactions, k, identity)


def _own_items(held_out: list[int], task: str | None, interactions: Path | None, k: int, identity: Path | None) -> None:
    who = load_identity(identity)
    membership = kept_membership(who, task)
    path = interactions_file(who, membership, interactions)
    history = read_history(path)
    seen = history.items
    trained = sorted(set(held_out) & set(seen.tolist()))
    if trained:
        raise DataError(f"item {trained[0]} is held out and in the interactions: it was trained on", path)
    with Client(membership.url, who, policy=READING) as client:
        part = client.join(membership.task_id)
        split = held_out_split(part.terms.n_items, seen, held_out)
        state = part.model()
        scores = part.core.scores(state, part.core.history(history))
    rows = [_row(f"model of round {state.round_number}", result) for result in measure(scores, split, k)]
    title = f"{len(held_out)} held-out items of one user, task {membership.task_name}"
    console.print(table(title, _headings(k), rows))


def held_out_split(n_items: int, seen: NDArray[np.int32], held_out: list[int]) -> LeaveOneOut:
    """One row a held-out item, with `seen` and the other held-out items as what it is not compared with.

    Raises `ParameterError` for a held-out item outside 0..n_items-1 or listed twice.
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
    """Full ranking and, with enough items to draw 99 from, sampled ranking, of one user's scores (items,)."""
    full = evaluate_full_scores(lambda users: np.broadcast_to(scores, (users.size, scores.size)), split, k)
    if scores.size - split.train.positives(0).size - 1 < NEGATIVES:
        return [full]
    negatives = candidates_of(split, np.random.default_rng(_SEED)).negatives
    return [full, evaluate_scores(lambda _, items: scores[items], split, negatives, k)]


def _controls(dataset: str, data_dir: Path | None, k: int) -> None:
    data = load_dataset(dataset, data_dir)
    rng = np.random.default_rng(_SEED)
    candidates = candidates_of(data, rng)
    found = controls(data, candidates.negatives, rng, k)
    console.print(table(f"controls on {dataset}", found.headings, found.cells))
    console.print("Drawn as a negative: ranked by how seldom training would draw an item, with nothing learned.")
    console.print(LEAK_WARNING)
    if candidates.replaced:
        console.print(f"{candidates.replaced} faulty negatives of the data set's own file were replaced")


def _headings(k: int) -> tuple[str, ...]:
    return ("", "ranked against", "tested", f"HR@{k}", f"NDCG@{k}")


def _row(name: str, result: EvaluationResult) -> tuple[str, ...]:
    return (name, result.protocol, f"{result.users:,}", f"{result.hr:.4f}", f"{result.ndcg:.4f}")
