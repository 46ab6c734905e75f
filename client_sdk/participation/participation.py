"""A client's part in a task until the task ends: follow the rounds, take part in them, recommend from the model."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from client_sdk.api.effects import Program, Traffic, work
from client_sdk.errors import (
    Abstained,
    AggregateMismatch,
    ContributionConflict,
    GaveUp,
    ModelUnavailable,
    NotAttested,
    NotFound,
    NotInCohort,
    PolicyRefused,
    RoundClosed,
    RoundLost,
    TaskFailed,
)
from client_sdk.history import History
from client_sdk.model.best import curve_of, ends_with_best
from client_sdk.model.recommendation import Recommendations, top_items
from client_sdk.participation.events import (
    ModelBehind,
    Progress,
    RoundAbstained,
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
    report_waiting,
    until_stopped,
)
from client_sdk.participation.local_work import LocalWork, Stop
from client_sdk.participation.masked_rounds import take_masked_part
from client_sdk.participation.oneshot_rounds import take_oneshot_part
from client_sdk.participation.refusals import tell_refusals
from client_sdk.participation.restored_server import SeenRounds
from client_sdk.participation.unmasked_rounds import report_rejected, take_unmasked_part
from client_sdk.training.base import ChecksHistory, ReadsInteractions
from protocols.errors import ParameterError, RefusalError, ThresholdError
from protocols.messages import RoundView
from protocols.messages.stages import opening_state
from protocols.recipes.arrays.recipe import Arrays
from protocols.recipes.base import ModelState
from protocols.recipes.evaluation_curve import Curve
from protocols.sums.base import WorksAhead

__all__ = ["Participation"]

_MISSED = (
    *(PolicyRefused, RoundClosed, NotFound, NotInCohort, ContributionConflict, GaveUp, ModelUnavailable),
    *(RoundLost, RefusalError, ThresholdError, AggregateMismatch, NotAttested),
)
"""Errors that end a round for this client, but not its part in the task. A restored server does not find the round."""


@dataclass
class Participation(LocalWork):
    """One client of one task.

    seen: the interactions of the last `run_until_closed`. final: the best model of a task that ended with it.
    """

    seen: History | None = None
    final: ModelState | None = None

    def run_round(self, view: RoundView, history: History, progress: Progress | None = None) -> Program[RoundReport]:
        """Take part in the round `view` and return the report.

        Raises `PolicyRefused`, the errors of the upload, `RoundLost`, `RefusalError` and `ThresholdError` in masked and
        one-shot rounds, `Abstained`, and `ParameterError` when training diverges. The server is told when this client
        refuses the round or abstains.
        """
        match self.terms.mechanism.name:
            case "masked":
                part = take_masked_part(self, view, history, progress)
            case "oneshot":
                part = take_oneshot_part(self, view, history, progress)
            case _:
                part = take_unmasked_part(self, view, history, progress, Traffic())
        return tell_refusals(self, view.number, part)

    # --- until the task ends -------------------------------------------------------------------------------------

    def history(self, interactions: object) -> History:
        """Return the interactions as a `History`; `ParameterError` if there are none or the recipe cannot use them."""
        if isinstance(self.half, ReadsInteractions):
            return self.half.read(interactions)
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
        patience: float | None = None,
    ) -> Program[list[RoundReport]]:
        """Take part in every round that asks this client, until the task ends or `stop()` returns True.

        Errors of a round are reported as `RoundMissed` or `RoundAbstained`, and the next round is awaited. `stop` is
        called before each long poll of `poll_seconds`. An unreachable server is waited for, at most `patience` seconds
        at a time when it is given (`GaveUp`). Returns the reports of the rounds; `TaskFailed` if it failed.
        """
        if self.membership.role == "committee":
            raise ParameterError(
                f"this client is in the committee of task {self.terms.name!r} and contributes nothing: run hushrec "
                "committee serve, or CommitteeMember.serve"
            )
        self.seen = self.history(interactions)
        reports: list[RoundReport] = []
        rounds = self._run_when_ready(self.seen, reports, progress, stop, poll_seconds)
        yield from until_stopped(rounds, patience, progress, stop)
        return reports

    def _run_when_ready(
        self,
        history: History,
        reports: list[RoundReport],
        progress: Progress | None,
        stop: Stop | None,
        poll_seconds: float,
    ) -> Program[None]:
        if (yield from self.ready(progress, stop, poll_seconds)):
            with self._working_ahead():
                yield from self._run_rounds(history, reports, progress, stop, poll_seconds)

    def _working_ahead(self) -> AbstractContextManager[None]:
        """Let the mechanism precompute between rounds, if it can."""
        mechanism, keyring = self.terms.mechanism, self.follower.keyring
        if isinstance(mechanism, WorksAhead) and keyring is not None:
            return mechanism.working_ahead(self.terms.sum_plan, keyring)
        return nullcontext()

    def _run_rounds(
        self,
        history: History,
        reports: list[RoundReport],
        progress: Progress | None,
        stop: Stop | None,
        poll_seconds: float,
    ) -> Program[None]:
        change: RoundChange | None = None
        waiting: Waiting | None = None
        rounds = SeenRounds(self)
        while not (stop and stop()):
            # The first poll does not wait, so that what round 1 waits for is reported at once.
            wait = 0.0 if change is None else poll_seconds
            change = yield from follow_rounds(self.calls, self.terms.task_id, change, wait)
            if isinstance(change, RoundChanged):
                change = yield from rounds.checked(change, progress)
            match change:
                case TaskEnded(state):
                    yield from self._fetch_final_model(progress)
                    if progress:
                        progress(change)
                    if state == "failed":
                        yield from self._raise_failed(reports)
                    break
                case RoundChanged(view) if view.number > rounds.handled and self._is_asked(view):
                    rounds.handled = view.number
                    report = yield from self._attempt_round(view, history, progress)
                    if report is not None:
                        reports.append(report)
                case NothingNew(task) if change.etag is not None:
                    waiting = report_waiting(task, waiting, progress)
                case NothingNew(task):
                    waiting = yield from await_start(task, self.terms.mechanism.needs_keyring, waiting, progress)

    def _raise_failed(self, reports: list[RoundReport]) -> Program[None]:
        """Raise `TaskFailed`, with the reason of the newest round's failure."""
        newest = yield from self.calls.current_round(self.terms.task_id)
        reason = None if newest is None else newest.round.failure
        raise TaskFailed(self.terms.name, reason, tuple(reports))

    def _is_asked(self, view: RoundView) -> bool:
        """Whether the round awaits this client's first message; an earlier process may have sent it already."""
        opening = opening_state(self.terms.mechanism.name)
        return view.state == opening and bool(view.in_cohort) and not (view.contributed or view.delivered)

    def _attempt_round(
        self, view: RoundView, history: History, progress: Progress | None
    ) -> Program[RoundReport | None]:
        try:
            report = yield from self.run_round(view, history, progress)
        except Abstained as error:
            if progress:
                progress(RoundAbstained(view.number, str(error)))
            return None
        except _MISSED as error:
            if progress:
                progress(RoundMissed(view.number, str(error)))
            return None
        if progress:
            progress(report)
        return report

    def _fetch_final_model(self, progress: Progress | None) -> Program[None]:
        try:
            yield from self.newest(60.0, progress)
        except ModelUnavailable as error:
            if progress:
                progress(ModelBehind(str(error)))

    def newest(self, snapshot_wait: float = 0.0, progress: Progress | None = None) -> Program[ModelState]:
        """Return the model after the last completed round, as this client's device group sees it.

        When a task that keeps its best model is over, that model is returned; in tasks whose sums the server cannot
        open, the newest one where this device has not kept the best. snapshot_wait: see
        `ModelFollower.follow`. progress: receives `AggregateRejected` and `ModelMeasured`. Raises `ModelUnavailable`.
        """
        state = yield from self._followed(snapshot_wait, progress)
        if ends_with_best(self.terms.recipe) and (yield from self.calls.task(self.terms.task_id)).state != "open":
            try:
                self.final = state = yield from self.follower.final(state)
            except ModelUnavailable as error:
                if self.terms.opened_by == "anyone":
                    raise
                if progress:
                    progress(ModelBehind(f"{error}; the newest one is used"))
        return self.follower.view(state)

    def _followed(self, snapshot_wait: float, progress: Progress | None) -> Program[ModelState]:
        yield from self.ready()
        current = yield from self.calls.current_round(self.terms.task_id)
        upto = 0 if current is None else current.round.number - (not is_over(current.round))
        caught_up = yield from self.follower.follow(upto, snapshot_wait)
        report_rejected(caught_up, progress)
        self.report_measured(caught_up.state, progress)
        return caught_up.state

    def evaluation(self) -> Program[Curve]:
        """Return the measurements of the task so far; see `Participant.evaluation`."""
        curve = curve_of(self.terms.recipe, (yield from self._followed(0.0, None)))
        if curve is None:
            raise ParameterError(f"task {self.terms.name!r} has no federated evaluation")
        return curve

    def arrays(self) -> Program[dict[str, NDArray[np.float32]]]:
        """Return the newest arrays; see `Participant.arrays`."""
        recipe = self.terms.recipe
        if not isinstance(recipe, Arrays):
            raise ParameterError(f"the model of recipe {recipe.name!r} has no named arrays: use model()")
        state = yield from self.newest()
        return {name: array.copy() for name, array in recipe.arrays(state).items()}

    # --- recommending --------------------------------------------------------------------------------------------

    def recommend(self, k: int, interactions: object | None, refresh: bool) -> Program[Recommendations]:
        """Return the `k` best items for this user among those not in `interactions`.

        interactions: None for those of `run_until_closed`. refresh: whether to update the model first; without, the
        newest model on the device is used and no request is made. The factor of a user that never took part comes from
        local training, of which nothing is sent. Raises `ModelUnavailable` before round 1 is complete.
        """
        seen = self.seen if interactions is None else History.of(interactions, self.terms.n_items)
        if seen is None:
            raise ParameterError("interactions are required: call recommend(k, interactions=...)")
        if refresh:
            state = yield from self.newest()
        else:
            state = self.follower.view(self.final or self.follower.at_hand())
        if state.round_number == 0:
            raise ModelUnavailable(
                0, "no round of this task has completed yet, so there is no trained model to recommend from"
            )
        scores = yield from work(lambda: self.scores(state, seen))
        return top_items(scores, seen.items, k)

    def scores(self, state: ModelState, history: History) -> NDArray[np.float32]:
        """Return this user's score of every item, float32 (items,), from its device group's view of the model.

        What a device trained on later models does not fit the best one: there it trains for itself again.
        """
        client_state = self.client_state()
        is_final = self.final is not None and state.round_number == self.final.round_number
        if client_state is None or is_final:
            spec = self.terms.recipe.round_spec(self.terms.seed, max(1, state.round_number))
            client_state = self.half.prepare(spec, state, history, self.rng)
        if self.client_state() is None:
            self.keep_client_state(client_state)
        return self.half.scores(state, client_state, history)
