"""A cache of catalogues and model states that the followers of one task in one process share."""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Literal

from client_sdk.model.sync import Catalogue
from client_sdk.store.states import FollowedState

__all__ = [
    "ModelCache",
]


_Followed = tuple[str, int | None]
"""A task, and the device group whose view of its model is followed (None: the whole state)."""


@dataclass
class ModelCache:
    """Catalogues and model states that the followers of one task in one process share. Thread-safe.

    Each state is kept once a follower has made it, so that an aggregate is opened once; states of different device
    groups are kept apart where the groups follow their own views. Use it only for clients that trust each other with
    the model, such as a fleet or a test.

    downloads: "each": every follower downloads and checks all that it would need alone; "once": a follower whose state
    is kept here downloads nothing, and reports the bytes as `bytes_spared`. keep: states kept for each group.
    """

    downloads: Literal["each", "once"] = "each"
    keep: int = 4
    _states: dict[_Followed, OrderedDict[int, FollowedState]] = field(default_factory=dict, repr=False)
    _catalogues: dict[_Followed, Catalogue] = field(default_factory=dict, repr=False)
    _checked: set[tuple[str, int]] = field(default_factory=set, repr=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def claim_check(self, task_id: str, number: int) -> bool:
        """Whether the caller is to check the attestations of a round: each follower, or with "once" the first one."""
        with self._lock:
            is_first = (task_id, number) not in self._checked
            self._checked.add((task_id, number))
        return is_first or self.downloads == "each"

    def state(self, task_id: str, device_group: int | None, number: int) -> FollowedState | None:
        """Return the state after round `number`; None when it is not kept."""
        with self._lock:
            kept = self._states.get((task_id, device_group))
            return None if kept is None else kept.get(number)

    def put(self, task_id: str, device_group: int | None, followed: FollowedState) -> None:
        """Keep the state `followed`, made read-only, and drop the oldest beyond `keep` states."""
        followed.state.freeze()
        with self._lock:
            kept = self._states.setdefault((task_id, device_group), OrderedDict())
            kept[followed.state.round_number] = followed
            while len(kept) > self.keep:
                kept.popitem(last=False)

    def catalogue(self, task_id: str, device_group: int | None, upto: int) -> Catalogue | None:
        """Return the catalogue if it reaches exactly to round `upto`, else None."""
        with self._lock:
            found = self._catalogues.get((task_id, device_group))
        return found if found is not None and found.upto == upto else None

    def extend_catalogue(self, task_id: str, device_group: int | None, newer: Catalogue) -> None:
        """Add the completed rounds of `newer` to the catalogue, which starts at round 0, and take over its snapshot."""
        with self._lock:
            old = self._catalogues.get((task_id, device_group))
            known = old.completed if old else ()
            last = known[-1].number if known else 0
            completed = known + tuple(view for view in newer.completed if view.number > last)
            snapshot = newer.snapshot or (old.snapshot if old else None)
            self._catalogues[task_id, device_group] = Catalogue(newer.upto, completed, snapshot)
