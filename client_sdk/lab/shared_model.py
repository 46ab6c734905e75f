"""A model that the clients of a fleet share: a follower and a part that spare each of them what another one has done.

Only for many clients in one process that trust each other: a device follows the model by itself.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Literal, cast

from client_sdk.api.wire import Program
from client_sdk.model.follow import CaughtUp, ModelFollower
from client_sdk.model.sync import MissedRounds, SyncPlan, plan_sync
from client_sdk.rounds.part import Part
from client_sdk.store.states import FollowedState

_Followed = tuple[str, int | None]
"""A task, and the device group whose view of its model is followed (None: the whole state)."""


@dataclass
class ModelCache:
    """Missed rounds and model states that the followers of one task in one process share. Thread-safe.

    Each state is kept once a follower has made it, so that an aggregate is opened once; states of different device
    groups are kept apart where the groups follow their own views. Use it only for clients that trust each other with
    the model, such as a fleet or a test.
    """

    downloads: Literal["each", "once"] = "each"
    """"each": every follower downloads and checks all that it would need alone; "once": a follower whose state is kept
    here downloads nothing, and counts the bytes in `spared`."""
    keep: int = 4
    """States kept for each group."""
    _states: dict[_Followed, OrderedDict[int, FollowedState]] = field(default_factory=dict, repr=False)
    _missed: dict[_Followed, MissedRounds] = field(default_factory=dict, repr=False)
    _checked: set[tuple[str, int]] = field(default_factory=set, repr=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def claim_check(self, task_id: str, number: int) -> bool:
        """Whether the caller is the first to ask about the attestations of a round, or every follower checks them."""
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

    def missed(self, task_id: str, device_group: int | None, upto: int) -> MissedRounds | None:
        """Return the missed rounds if they reach exactly to round `upto`, else None."""
        with self._lock:
            found = self._missed.get((task_id, device_group))
        return found if found is not None and found.upto == upto else None

    def extend_missed(self, task_id: str, device_group: int | None, newer: MissedRounds) -> None:
        """Add the completed rounds of `newer` to those from round 1 on, and take over its snapshot."""
        with self._lock:
            old = self._missed.get((task_id, device_group))
            known = old.completed if old else ()
            last = known[-1].number if known else 0
            completed = known + tuple(view for view in newer.completed if view.number > last)
            snapshot = newer.snapshot or (old.snapshot if old else None)
            self._missed[task_id, device_group] = MissedRounds(newer.upto, completed, snapshot)


@dataclass
class SharedFollower(ModelFollower):
    """A position in the states that a `ModelCache` keeps for all followers of a task; it holds no state of its own."""

    cache: ModelCache = field(default_factory=ModelCache)
    spared: int = 0
    """Bytes that the cache saved this follower."""
    _known: int = field(default=0, init=False)

    @property
    def known(self) -> int:
        """Round number of the state that this client has reached; 0 at first."""
        return self._known

    def current(self) -> FollowedState | None:
        """Return the state of round `known`; None when the cache no longer keeps it."""
        return self.cache.state(self.terms.task_id, self.view_group, self._known)

    def keep(self, followed: FollowedState) -> None:
        """Put `followed` into the cache."""
        self._known = followed.state.round_number
        self.cache.put(self.terms.task_id, self.view_group, followed)

    def start_again(self) -> None:
        """Go back to round 0."""
        self._known = 0

    def _follow(self, upto: int) -> Program[CaughtUp]:
        missed = self.cache.missed(self.terms.task_id, self.view_group, upto)
        if missed is not None:
            caught_up = yield from self._carry_out(plan_sync(self._known, missed, self.terms.by_snapshot))
            if caught_up is not None:
                return caught_up
        return (yield from super()._follow(upto))

    def _carry_out(self, plan: SyncPlan) -> Program[CaughtUp | None]:
        target = self._known if plan.target is None else plan.target
        made = self.cache.state(self.terms.task_id, self.view_group, target)
        if made is not None:
            return (yield from self._take_over(plan, made))
        if self._known and self.current() is None:
            self.start_again()  # the cache has dropped the state that the plan starts from
            return None
        return (yield from super()._carry_out(plan))

    def another(self) -> SharedFollower:
        """Return another follower of the same model, at round 0."""
        return SharedFollower(self.calls, self.terms, device_group=self.device_group, cache=self.cache)

    def _take_over(self, plan: SyncPlan, made: FollowedState) -> Program[CaughtUp | None]:
        """Keep `made`, which another follower made. With "each", download the bodies of `plan` and check their digests.

        None when the snapshot is no longer kept.
        """
        if self.cache.downloads == "once":
            self.spared += plan.bytes
        else:
            if plan.snapshot is not None and (yield from self.download_snapshot(plan.snapshot)) is None:
                return None
            for view in plan.rounds:
                yield from self.download_aggregate(view)
        self.keep(made)
        return CaughtUp(made, plan)


@dataclass
class FleetPart(Part):
    """A client of a fleet. What all of them would check about the same model, the first one checks."""

    @property
    def shared(self) -> SharedFollower:
        """The client's position in the shared model."""
        return cast(SharedFollower, self.follower)

    def checks_aggregates(self, caught_up: CaughtUp) -> bool:
        """Whether to check the attestations: not if another client of the fleet has done so for the same model."""
        is_first = self.shared.cache.claim_check(self.member.task_id, caught_up.state.round_number)
        return is_first and super().checks_aggregates(caught_up)
