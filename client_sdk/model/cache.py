"""What followers of one task in one process may share: the way to the model, and the model."""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Literal

from protocols.messages import RoundView, SnapshotView
from protocols.recipes.base import ModelState

__all__ = ["Catalogue", "ModelCache"]

_Followed = tuple[str, int | None]
"""A task, and the group whose view of its model is followed (None: the whole state)."""


@dataclass(frozen=True)
class Catalogue:
    """What the server offers for catching up to the end of round `upto`.

    completed: completed rounds, ascending, from some known round on. snapshot: the newest, if it may be of use.
    """

    upto: int
    completed: tuple[RoundView, ...]
    snapshot: SnapshotView | None


@dataclass
class ModelCache:
    """What followers of one task in one process may share. Thread-safe.

    Shared: the list of completed rounds, and each model state once one follower has made it, so that an aggregate is
    opened once; apart for each `device_group` whose members follow a view of their own (None: the whole state). With
    `downloads="each"` every follower still downloads and checks all it would need alone; with `"once"` followers that
    find their state here download nothing, and what they would have is reported as `bytes_spared`. Only for clients
    that trust each other with the model: a fleet, a test.
    """

    downloads: Literal["each", "once"] = "each"
    keep: int = 4
    _states: dict[_Followed, OrderedDict[int, ModelState]] = field(default_factory=dict, repr=False)
    _catalogues: dict[_Followed, Catalogue] = field(default_factory=dict, repr=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def state(self, task_id: str, device_group: int | None, number: int) -> ModelState | None:
        """The state after round `number`, if it is kept."""
        with self._lock:
            kept = self._states.get((task_id, device_group))
            return None if kept is None else kept.get(number)

    def put(self, task_id: str, device_group: int | None, state: ModelState) -> None:
        """Keep a state, read-only, with the `keep` newest."""
        state.freeze()
        with self._lock:
            kept = self._states.setdefault((task_id, device_group), OrderedDict())
            kept[state.round_number] = state
            while len(kept) > self.keep:
                kept.popitem(last=False)

    def catalogue(self, task_id: str, device_group: int | None, upto: int) -> Catalogue | None:
        """What `extend_catalogue` left, if it reaches to `upto`."""
        with self._lock:
            found = self._catalogues.get((task_id, device_group))
        return found if found is not None and found.upto == upto else None

    def extend_catalogue(self, task_id: str, device_group: int | None, news: Catalogue) -> None:
        """Add newly completed rounds to the list that starts at round 0."""
        with self._lock:
            old = self._catalogues.get((task_id, device_group))
            known = old.completed if old else ()
            last = known[-1].number if known else 0
            completed = known + tuple(view for view in news.completed if view.number > last)
            snapshot = news.snapshot or (old.snapshot if old else None)
            self._catalogues[task_id, device_group] = Catalogue(news.upto, completed, snapshot)
