"""The two kinds of split that tests of readers look at."""

from __future__ import annotations

from pathlib import Path

from client_sdk.lab.data.interactions import Interactions, LeaveOneOut
from client_sdk.lab.data.splits import load_split


def held_out(name: str, data_dir: Path | None = None, seed: int = 0) -> LeaveOneOut:
    """Return one held-out item of each user."""
    found = load_split(name, data_dir, kind="leave-one-out", seed=seed).one_each
    assert found is not None
    return found


def both_sides(name: str, data_dir: Path | None = None) -> tuple[Interactions, Interactions]:
    """Return the published training and test interactions."""
    split = load_split(name, data_dir, kind="given")
    return split.train, split.test
