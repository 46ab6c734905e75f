"""Where a follower keeps the model state that it has reached: by itself, or in a cache shared with other followers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from client_sdk.agreement.terms import TaskTerms
from client_sdk.local_state.client_store import ClientStore
from client_sdk.local_state.followed_state import FollowedState
from client_sdk.model.cache import ModelCache
from client_sdk.model.catalogue import Catalogue

__all__ = ["OwnSource", "SharedSource", "StateSource"]


class StateSource(Protocol):
    """The state that one follower has reached, and what other followers have made already."""

    @property
    def known(self) -> int:
        """Round number of the state that the follower has reached; 0 at first."""

    @property
    def skips_downloads(self) -> bool:
        """Whether a state that another follower has made replaces the downloads that lead to it."""

    def current(self) -> FollowedState | None:
        """Return the state of round `known`; None when it is not kept."""

    def made_by_others(self, number: int) -> FollowedState | None:
        """Return the state after round `number` if another follower has made it."""

    def catalogue(self, upto: int) -> Catalogue | None:
        """Return a catalogue that reaches to round `upto` if another follower has fetched one."""

    def keep(self, followed: FollowedState) -> None:
        """Keep `followed` as the one that the follower has reached."""

    def forget(self) -> None:
        """Go back to the beginning."""


@dataclass
class OwnSource:
    """One follower's own state, in memory and, with `client_store`, on the device.

    view_group: the device group whose view of the model is kept; None for the whole state.
    """

    terms: TaskTerms
    view_group: int | None
    client_store: ClientStore | None = None
    skips_downloads: bool = field(default=False, init=False)
    _forgotten: bool = field(default=False, init=False)
    _followed: FollowedState | None = field(default=None, init=False, repr=False)

    @property
    def known(self) -> int:
        """Round number of the state that the follower has reached; 0 at first."""
        followed = self.current()
        return 0 if followed is None else followed.state.round_number

    def current(self) -> FollowedState | None:
        """Return the newest state, read from the store the first time; `LocalFileError` when it is damaged there."""
        if self._followed is None and self.client_store is not None and not self._forgotten:
            self._followed = self.client_store.item_state(
                self.terms.task_id, self.terms.recipe, self.view_group, self.terms.chained
            )
        return self._followed

    def made_by_others(self, number: int) -> None:
        """Return None: nothing is shared."""

    def catalogue(self, upto: int) -> None:
        """Return None: nothing is shared."""

    def keep(self, followed: FollowedState) -> None:
        """Keep `followed`, and write it to the store if it is of another round than the one before."""
        last = self._followed
        self._followed = followed
        if self.client_store is not None and (last is None or last.state.round_number != followed.state.round_number):
            self.client_store.keep_item_state(self.terms.task_id, self.terms.recipe, followed, self.view_group)

    def forget(self) -> None:
        """Drop the state in memory, and ignore the one in the store."""
        self._followed, self._forgotten = None, True


@dataclass
class SharedSource:
    """A position in the states that a `ModelCache` keeps for all followers of a task. It holds no state of its own."""

    cache: ModelCache
    task_id: str
    view_group: int | None
    known: int = field(default=0, init=False)

    @property
    def skips_downloads(self) -> bool:
        """Whether a state that another follower has made replaces the downloads that lead to it."""
        return self.cache.downloads == "once"

    def current(self) -> FollowedState | None:
        """Return the state of round `known`; None when the cache no longer keeps it."""
        return self.cache.state(self.task_id, self.view_group, self.known)

    def made_by_others(self, number: int) -> FollowedState | None:
        """Return the state after round `number` if the cache keeps it."""
        return self.cache.state(self.task_id, self.view_group, number)

    def catalogue(self, upto: int) -> Catalogue | None:
        """Return the cache's catalogue if it reaches to round `upto`."""
        return self.cache.catalogue(self.task_id, self.view_group, upto)

    def keep(self, followed: FollowedState) -> None:
        """Put `followed` into the cache."""
        self.known = followed.state.round_number
        self.cache.put(self.task_id, self.view_group, followed)

    def forget(self) -> None:
        """Go back to round 0."""
        self.known = 0
