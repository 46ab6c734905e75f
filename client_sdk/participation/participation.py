"""A client's part in a task until the task ends: follow the rounds, take part in them, recommend from the model."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from client_sdk.api.effects import Program, Traffic, work
from client_sdk.errors import (
    ContributionConflict,
    GaveUp,
    ModelUnavailable,
    NotInCohort,
    PolicyRefused,
    RoundClosed,
    RoundLost,
)
from client_sdk.history import History
from client_sdk.model.recommendation import Recommendations, top_items
from client_sdk.participation.events import (
    ModelBehind,
    Progress,
    RoundMissed,
    RoundReport,
    TaskEnded,
    Waiting,
)
from client_sdk.participation.follow_rounds import (
    NothingNew,
    RoundChange,
    RoundChanged,
    await_start,
    follow_rounds,
    is_over,
)
from client_sdk.participation.local_work import LocalWork, Stop
from client_sdk.participation.masked_rounds import take_masked_part
from client_sdk.participation.unmasked_rounds import take_unmasked_part
from client_sdk.training.base import ChecksHistory
from protocols.errors import ParameterError, RefusalError, ThresholdError
from protocols.messages import RoundView
from protocols.messages.stages import opening_state
from protocols.recipes.base import ModelState
from protocols.sums.base import WorksAhead

__all__ = ["Participation"]

_MISSED = (
    *(PolicyRefused, RoundClosed, NotInCohort, ContributionConflict, GaveUp, ModelUnavailable),
    *(RoundLost, RefusalError, ThresholdError),
)
"""Errors that end a round for this client, but not its part in the task."""


@dataclass
class Participation(LocalWork):
    """One client of one task. seen: the interactions of the last `run_until_closed`."""

    seen: History | None = None

    def run_round(self, view: RoundView, history: History, progress: Progress | None = None) -> Program[RoundReport]:
        """Take part in the round `view` and return the report.

        Raises `PolicyRefused`, the errors of the upload, `RoundLost`, `RefusalError` and `ThresholdError` in masked
        rounds, and `ParameterError` when training diverges.
        """
        if self.terms.mechanism.interactive:
            return take_masked_part(self, view, history, progress)
        return take_unmasked_part(self, view, history, progress, Traffic())

    # --- until the task ends -------------------------------------------------------------------------------------

    def history(self, interactions: object) -> History:
        """Return the interactions as a `History`; `ParameterError` if there are none or the recipe cannot use them."""
        history = History.of(interactions, self.terms.n_items)
        if not len(history):
            raise ParameterError("interactions must not be empty: there is nothing to train on")
        if isinstance(self.half, ChecksHistory):
            self.half.check(history)
        return history

    def run_until_closed(
        self,
        interactions: object,
        progress: Progress | None = None,
        stop: Stop | None = None,
        poll_seconds: float = 20.0,
    ) -> Program[list[RoundReport]]:
        """Take part in every round that asks this client, until the task ends or `stop()` returns True.

        Errors of a round are reported as `RoundMissed`, and the next round is awaited. `stop` is called before each
        long poll of `poll_seconds`. Returns the reports of the rounds.
        """
        self.seen = self.history(interactions)
        if not (yield from self.ready(progress, stop, poll_seconds)):
            return []
        with self._working_ahead():
            return (yield from self._run_rounds(self.seen, progress, stop, poll_seconds))

    def _working_ahead(self) -> AbstractContextManager[None]:
        """Let the mechanism precompute between rounds, if it can."""
        mechanism, keyring = self.terms.mechanism, self.follower.keyring
        if isinstance(mechanism, WorksAhead) and keyring is not None:
            return mechanism.working_ahead(self.terms.sum_plan, keyring)
        return nullcontext()

    def _run_rounds(
        self, history: History, progress: Progress | None, stop: Stop | None, poll_seconds: float
    ) -> Program[list[RoundReport]]:
        reports: list[RoundReport] = []
        change: RoundChange | None = None
        waiting: Waiting | None = None
        handled = 0
        while not (stop and stop()):
            # The first poll does not wait, so that what round 1 waits for is reported at once.
            wait = 0.0 if change is None else poll_seconds
            change = yield from follow_rounds(self.calls, self.terms.task_id, change, wait)
            match change:
                case TaskEnded():
                    yield from self._fetch_final_model(progress)
                    if progress:
                        progress(change)
                    break
                case RoundChanged(view) if view.number > handled and self._is_asked(view):
                    handled = view.number
                    report = yield from self._attempt_round(view, history, progress)
                    if report is not None:
                        reports.append(report)
                case NothingNew(task, etag=None):
                    waiting = yield from await_start(task, self.terms.mechanism.needs_keyring, waiting, progress)
        return reports

    def _is_asked(self, view: RoundView) -> bool:
        """Whether the round awaits this client's first message; an earlier process may have sent it already."""
        opening = opening_state(self.terms.mechanism.interactive)
        return view.state == opening and bool(view.in_cohort) and not (view.contributed or view.delivered)

    def _attempt_round(
        self, view: RoundView, history: History, progress: Progress | None
    ) -> Program[RoundReport | None]:
        try:
            report = yield from self.run_round(view, history, progress)
        except _MISSED as error:
            if progress:
                progress(RoundMissed(view.number, str(error)))
            return None
        if progress:
            progress(report)
        return report

    def _fetch_final_model(self, progress: Progress | None) -> Program[None]:
        try:
            yield from self.newest(snapshot_wait=60.0)
        except ModelUnavailable as error:
            if progress:
                progress(ModelBehind(str(error)))

    def newest(self, snapshot_wait: float = 0.0) -> Program[ModelState]:
        """Return the model after the last completed round, as this client's device group sees it.

        snapshot_wait: see `ModelFollower.follow`. Raises `ModelUnavailable`.
        """
        yield from self.ready()
        current = yield from self.calls.current_round(self.terms.task_id)
        upto = 0 if current is None else current.round.number - (not is_over(current.round))
        return self.follower.view((yield from self.follower.follow(upto, snapshot_wait)).state)

    # --- recommending --------------------------------------------------------------------------------------------

    def recommend(self, k: int, interactions: object | None, refresh: bool) -> Program[Recommendations]:
        """Return the `k` best items for this user among those not in `interactions`.

        interactions: None for those of `run_until_closed`. refresh: whether to update the model first; without, the
        newest model on the device is used and no request is made. The factor of a user that never took part comes from
        local training, of which nothing is sent.
        """
        seen = self.seen if interactions is None else History.of(interactions, self.terms.n_items)
        if seen is None:
            raise ParameterError("interactions are required: call recommend(k, interactions=...)")
        if refresh:
            state = yield from self.newest()
        else:
            state = self.follower.view(self.follower.at_hand())
        scores = yield from work(lambda: self.scores(state, seen))
        return top_items(scores, seen.items, k)

    def scores(self, state: ModelState, history: History) -> NDArray[np.float32]:
        """Return this user's score of every item, float32 (items,), from its device group's view of the model."""
        client_state = self.client_state()
        if client_state is None:
            spec = self.terms.recipe.round_spec(self.terms.seed, max(1, state.round_number))
            client_state = self.half.prepare(spec, state, history, self.rng)
            self.keep_client_state(client_state)
        return self.half.scores(state, client_state, history)
