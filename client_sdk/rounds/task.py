"""A client's part in a task until the task ends: follow the rounds, take part in them, recommend from the model."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Iterator
from concurrent.futures import Executor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from client_sdk.agreement.terms import TaskTerms
from client_sdk.api.http import AsyncDriver, SyncDriver
from client_sdk.api.wire import Program, Traffic, work
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
from client_sdk.model.best import Recommendations, curve_of, ends_with_best, top_items
from client_sdk.rounds.checks import tell_refusals
from client_sdk.rounds.events import (
    ModelBehind,
    Progress,
    RoundAbstained,
    RoundMissed,
    RoundReport,
    TaskEnded,
    Waiting,
)
from client_sdk.rounds.keyring import Deliveries, KeyService, envelope_sender
from client_sdk.rounds.loop import (
    NothingNew,
    RoundChange,
    RoundChanged,
    await_start,
    follow_rounds,
    is_over,
    report_waiting,
    until_stopped,
)
from client_sdk.rounds.masked import take_masked_part
from client_sdk.rounds.member import LocalWork, Stop
from client_sdk.rounds.oneshot import take_oneshot_part
from client_sdk.rounds.open_rounds import AsyncOpenRound, OpenRound, async_open_rounds, open_rounds
from client_sdk.rounds.restored_server import SeenRounds
from client_sdk.rounds.unmasked import report_rejected, take_unmasked_part
from client_sdk.store.client_store import Membership
from client_sdk.training.arrays import Trainer
from client_sdk.training.base import ChecksHistory, ReadsInteractions
from protocols.errors import ParameterError, RefusalError, ThresholdError
from protocols.messages import RoundView
from protocols.messages.stages import opening_state
from protocols.recipes.arrays.recipe import Arrays
from protocols.recipes.base import ModelState
from protocols.recipes.evaluation_curve import Curve
from protocols.sums.base import WorksAhead

__all__ = [
    "AsyncKeyHolder",
    "AsyncParticipant",
    "KeyHolder",
    "Participant",
    "Participation",
    "key_service",
]


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


# --- A client's part in one task, as sync and async classes that run the same programs -------------------------------


def key_service(participation: Participation) -> KeyService:
    """Return the key holder's programs; `ParameterError` unless the client is the holder and has the secret."""
    membership = participation.membership
    if membership.role != "holder":
        raise ParameterError(f"this client is a member of task {membership.task_name!r}, not its key holder")
    return KeyService(
        participation.calls,
        participation.terms,
        participation.client_store,
        envelope_sender(participation.identity, membership),
        participation.membership_check,
    )


class _BaseParticipant:
    """The common part of the sync and the async class."""

    def __init__(self, core: Participation) -> None:
        self.core = core

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.core.membership!r}>"

    @property
    def membership(self) -> Membership:
        """The stored membership: task id, client id, role and device group."""
        return self.core.membership

    @property
    def terms(self) -> TaskTerms:
        """The terms of the task: recipe, mechanism, schedule and plan."""
        return self.core.terms


class Participant(_BaseParticipant):
    """One client of one task, returned by `Client.join`."""

    def __init__(self, core: Participation, driver: SyncDriver) -> None:
        super().__init__(core)
        self.driver = driver

    def take_part(
        self,
        interactions: object,
        progress: Progress | None = None,
        stop: Stop | None = None,
        poll_seconds: float = 20.0,
        patience: float | None = None,
    ) -> list[RoundReport]:
        """Take part in every round that asks this client, until the task ends or `stop()` returns True.

        interactions: the user's item numbers in 0..N-1, each once, or a mapping from item to rating for recipes that
        use ratings; for `arrays`, a function that is called with each `ArraysRound` and contributes to it. progress:
        called with each `Event`. stop: called before each poll. poll_seconds: length of one long poll, at most 30.
        patience: seconds for which an unreachable server is waited for, each time, before `GaveUp`; None waits as long
        as it takes, and reports `ServerUnreachable`. Returns one report per contribution. A round that this client
        misses is reported as `RoundMissed`, one to which it has nothing to add as `RoundAbstained`. Raises `TaskFailed`
        with the reason if the task ends because too many of its rounds failed, and `ParameterError` for interactions
        that the recipe cannot use.
        """
        return self.driver.run(self.core.run_until_closed(interactions, progress, stop, poll_seconds, patience))

    def take_part_once(
        self, round_view: RoundView, interactions: object, progress: Progress | None = None
    ) -> RoundReport:
        """Take part in one round and return its report; raises the errors that `take_part` reports as events."""
        self.core.seen = self.core.history(interactions)
        return self.driver.run(self.core.run_round(round_view, self.core.seen, progress))

    def current_round(self, wait: float = 0.0) -> RoundView | None:
        """Return the newest round; None if there is none within `wait` seconds (at most 30)."""
        fresh = self.driver.run(self.core.calls.current_round(self.core.terms.task_id, None, wait))
        return None if fresh is None else fresh.round

    def model(self) -> ModelState:
        """Return the model after the last completed round, as this client's device group sees it.

        Raises `ModelUnavailable` when it cannot be downloaded.
        """
        return self.driver.run(self.core.newest())

    def rounds(
        self, progress: Progress | None = None, poll_seconds: float = 5.0, patience: float | None = None
    ) -> Iterator[OpenRound]:
        """Yield each round of an `arrays` task that asks this client, until the task ends.

        Train on `round.arrays()` and call `round.contribute` before the next round is taken. Without that the client
        misses the round; in tasks whose sums only members open it sends zeros, so that the server does not learn which
        clients train. progress, patience: as for `take_part`. Leaving the loop takes up to `poll_seconds`. Raises what
        `take_part` raises, and `ParameterError` for other recipes.
        """
        return open_rounds(
            lambda train, tell, stop: self.take_part(train, tell, stop, poll_seconds, patience), progress
        )

    def arrays(self) -> dict[str, NDArray[np.float32]]:
        """Return the arrays of the newest model of an `arrays` task, float32, by name: copies that may be changed.

        Raises `ParameterError` for other recipes, and `ModelUnavailable`.
        """
        return self.driver.run(self.core.arrays())

    def evaluation(self) -> Curve:
        """Return the curve of the task's federated evaluation: its points, `metrics(point)` and `best`.

        Whoever can open the sums sees it, also where the server cannot. Raises `ParameterError` for a task without
        evaluation, and `ModelUnavailable`.
        """
        return self.driver.run(self.core.evaluation())

    def recommend(self, k: int = 10, interactions: object | None = None, refresh: bool = True) -> Recommendations:
        """Return the `k` best items that are not in `interactions`, computed on the device.

        interactions: as for `take_part`; None for those of the last `take_part`. refresh: whether to update the model
        first; False makes no request. Raises `ParameterError` without interactions and for `k` out of range, and
        `ModelUnavailable`.
        """
        return self.driver.run(self.core.recommend(k, interactions, refresh))

    def key_holder(self) -> KeyHolder:
        """Return the key holder's methods; `ParameterError` unless this client is the task's key holder."""
        return KeyHolder(key_service(self.core), self.driver)


class AsyncParticipant(_BaseParticipant):
    """`Participant` for use on an event loop; training and encryption run in threads."""

    def __init__(self, core: Participation, driver: AsyncDriver) -> None:
        super().__init__(core)
        self.driver = driver

    async def take_part(
        self,
        interactions: object,
        progress: Progress | None = None,
        stop: Stop | None = None,
        poll_seconds: float = 20.0,
        patience: float | None = None,
    ) -> list[RoundReport]:
        """See `Participant.take_part`; cancelling the task stops it at once. A trainer runs in a thread."""
        return await self.driver.run(self.core.run_until_closed(interactions, progress, stop, poll_seconds, patience))

    async def take_part_once(
        self, round_view: RoundView, interactions: object, progress: Progress | None = None
    ) -> RoundReport:
        """See `Participant.take_part_once`."""
        self.core.seen = self.core.history(interactions)
        return await self.driver.run(self.core.run_round(round_view, self.core.seen, progress))

    async def current_round(self, wait: float = 0.0) -> RoundView | None:
        """See `Participant.current_round`."""
        fresh = await self.driver.run(self.core.calls.current_round(self.core.terms.task_id, None, wait))
        return None if fresh is None else fresh.round

    async def model(self) -> ModelState:
        """See `Participant.model`."""
        return await self.driver.run(self.core.newest())

    def rounds(
        self, progress: Progress | None = None, poll_seconds: float = 20.0, patience: float | None = None
    ) -> AsyncIterator[AsyncOpenRound]:
        """See `Participant.rounds`. To leave the loop at once, close the iterator (`contextlib.aclosing`)."""

        def run(train: Trainer, tell: Progress, threads: Executor) -> Awaitable[list[RoundReport]]:
            program = self.core.run_until_closed(train, tell, None, poll_seconds, patience)
            return self.driver.run(program, threads)

        return async_open_rounds(run, progress)

    async def arrays(self) -> dict[str, NDArray[np.float32]]:
        """See `Participant.arrays`."""
        return await self.driver.run(self.core.arrays())

    async def evaluation(self) -> Curve:
        """See `Participant.evaluation`."""
        return await self.driver.run(self.core.evaluation())

    async def recommend(self, k: int = 10, interactions: object | None = None, refresh: bool = True) -> Recommendations:
        """See `Participant.recommend`."""
        return await self.driver.run(self.core.recommend(k, interactions, refresh))

    def key_holder(self) -> AsyncKeyHolder:
        """See `Participant.key_holder`."""
        return AsyncKeyHolder(key_service(self.core), self.driver)


class KeyHolder:
    """The client that creates and distributes the keyring. It may run in a thread beside the client's `take_part`."""

    def __init__(self, service: KeyService, driver: SyncDriver) -> None:
        self.service = service
        self._driver = driver

    def create_keyring(self) -> str:
        """Generate and store the task's keyring, once; return its fingerprint, which members may compare."""
        return self.service.create().fingerprint

    def serve_keyring(self, progress: Progress | None = None, wait: float = 0.0) -> Deliveries:
        """Send the keyring to every member without one whose proof is valid; wait up to `wait` seconds for a member."""
        return self._driver.run(self.service.deliver(progress, wait))

    def serve(
        self,
        progress: Progress | None = None,
        stop: Stop | None = None,
        poll_seconds: float = 5.0,
        patience: float | None = None,
    ) -> None:
        """Create the keyring if needed and send it to members, until the task ends or `stop()` returns True.

        patience: as for `Participant.take_part`.
        """
        self._driver.run(self.service.serve(progress, stop, poll_seconds, patience))


class AsyncKeyHolder:
    """`KeyHolder` for use on an event loop."""

    def __init__(self, service: KeyService, driver: AsyncDriver) -> None:
        self.service = service
        self._driver = driver

    def create_keyring(self) -> str:
        """See `KeyHolder.create_keyring`."""
        return self.service.create().fingerprint

    async def serve_keyring(self, progress: Progress | None = None, wait: float = 0.0) -> Deliveries:
        """See `KeyHolder.serve_keyring`."""
        return await self._driver.run(self.service.deliver(progress, wait))

    async def serve(
        self,
        progress: Progress | None = None,
        stop: Stop | None = None,
        poll_seconds: float = 5.0,
        patience: float | None = None,
    ) -> None:
        """See `KeyHolder.serve`."""
        await self._driver.run(self.service.serve(progress, stop, poll_seconds, patience))
