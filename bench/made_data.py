"""Small made-up data sets in the layouts of the published ones, so that every benchmark can run without them."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import numpy as np

__all__ = ["write_data"]

USERS: Final = 160
ITEMS: Final = 160
RATED: Final = 40


def write_data(folder: Path) -> None:
    """Write FilmTrust, Goodreads-100, Gowalla, MovieLens-100K and MovieLens-1M of 120 users and 160 items each."""
    rng = np.random.default_rng(0)
    popularity = rng.permutation(np.arange(1, ITEMS + 1) ** -0.6)
    popularity /= popularity.sum()
    rated = [rng.choice(ITEMS, RATED - user % 8, replace=False, p=popularity) for user in range(USERS)]
    pairs = [(user, int(item)) for user, items in enumerate(rated) for item in items]
    rows = [(user, item, 1 + (user + item) % 5, time) for time, (user, item) in enumerate(pairs)]
    for name in ("filmtrust", "goodreads-100", "gowalla", "ml-100k", "ml-1m"):
        (folder / name).mkdir(parents=True)
    _write(folder / "ml-100k/u.data", (f"{user}\t{item}\t{stars}\t{time}" for user, item, stars, time in rows))
    _write(folder / "ml-1m/ratings.dat", (f"{user}::{item}::{stars}::{time}" for user, item, stars, time in rows))
    _write(folder / "filmtrust/ratings.txt", (f"{user} {item} {stars}" for user, item, stars, _ in rows))
    for name in ("goodreads-100", "gowalla"):
        for file, cut in (("train.txt", slice(5, None)), ("test.txt", slice(5))):
            lines = (f"{user} {' '.join(map(str, items[cut]))}" for user, items in enumerate(rated))
            _write(folder / name / file, lines)
    held = [int(items[0]) for items in rated]
    _write(folder / "ml-1m/ml-1m.train.rating", (f"{u}\t{i}\t{s}\t{t}" for u, i, s, t in rows if i != held[u]))
    _write(folder / "ml-1m/ml-1m.test.rating", (f"{user}\t{item}\t5\t0" for user, item in enumerate(held)))
    negatives = [sorted(set(range(ITEMS)) - set(items.tolist()))[:99] for items in rated]
    lines = (f"({u},{held[u]})\t" + "\t".join(map(str, found)) for u, found in enumerate(negatives))
    _write(folder / "ml-1m/ml-1m.test.negative", lines)


def _write(path: Path, lines: object) -> None:
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")  # type: ignore[call-overload]
