"""`Task` and `AsyncTask`: one client's part in one task, whatever its role.

task.take_part(interactions)  # a contributor, until the task ends
task.serve()                  # the key holder of an encrypted task, or a member of the committee of one-shot sums
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Generator, Iterator
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from client_sdk.agreement.terms import TaskTerms
from client_sdk.api.http import AsyncDriver, SyncDriver
from client_sdk.api.wire import Program
from client_sdk.errors import RoundLost
from client_sdk.history import OnUnknown
from client_sdk.rounds.events import Progress, RoundAbstained, RoundMissed, RoundReport, ignore_event
from client_sdk.rounds.loop import Role, follow_task, take_part
from client_sdk.rounds.member import Stop
from client_sdk.rounds.newest import Recommendations, evaluation, named_arrays, newest_model, recommend
from client_sdk.rounds.part import Part
from client_sdk.store.identity import Membership
from client_sdk.training.arrays import ArraysRound, OwnTrainer
from protocols.catalogue import Catalogue
from protocols.errors import ParameterError
from protocols.messages import RoundView
from protocols.messages.privacy import PrivacyView
from protocols.recipes.arrays_update import ArraysUpdate
from protocols.recipes.base import ModelState
from protocols.recipes.evaluation_curve import Curve

D = TypeVar("D", bound=SyncDriver | AsyncDriver)
Turns = TypeVar("Turns", bound=Generator[object, None, object] | AsyncIterator[object])


class _BaseTask(Generic[D]):
    """The common part of the sync and the async class."""

    def __init__(self, part: Part, driver: D) -> None:
        self.part = part
        self._driver = driver

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.membership!r}>"

    @property
    def membership(self) -> Membership:
        """The stored membership: task id, client id, role and device group."""
        return self.part.member.membership

    @property
    def terms(self) -> TaskTerms:
        """The terms of the task: recipe, mechanism, schedule and plan."""
        return self.part.member.terms

    def create_keyring(self) -> str:
        """As the key holder, generate and store the task's keyring, once; return its fingerprint.

        Members may compare it. `serve` does it too. Raises `ParameterError` unless this client is the key holder.
        """
        from client_sdk.rounds.key_holder import KeyHolder  # which members do not need

        return KeyHolder(self.part.member).create().fingerprint

    def _role(self, progress: Progress) -> Role:
        """Return the role that this client serves in; `ParameterError` for one that contributes instead."""
        member = self.part.member
        self.part.require_joined()
        match member.membership.role:
            case "holder":
                from client_sdk.rounds.key_holder import KeyHolder

                holder = KeyHolder(member, progress)
                holder.create()
                return holder
            case "committee":
                from client_sdk.committee import CommitteeMember

                return CommitteeMember(member, progress)
            case role:
                raise ParameterError(
                    f"this client is a {role} of task {member.terms.name!r}, not its key holder and "
                    "not in its committee: call take_part"
                )

    def _in_loop(self, progress: Progress | None, poll_seconds: float, patience: float | None) -> Program[None]:
        yield from take_part(self.part, OwnTrainer(), progress, None, poll_seconds, patience)


class Task(_BaseTask[SyncDriver]):
    """One client of one task, returned by `Client.join`."""

    def take_part(
        self,
        interactions: object,
        progress: Progress | None = None,
        stop: Stop | None = None,
        poll_seconds: float = 20.0,
        patience: float | None = None,
        on_unknown: OnUnknown = "error",
    ) -> list[RoundReport]:
        """Take part in every round that asks this client, until the task ends or `stop()` returns True.

        interactions: the user's items, each once, in a list, set, array, Series or DataFrame; or a mapping from item to
        rating for recipes that use ratings. An item is a number in 0..N-1, or in a task with a catalogue its id. For
        `arrays`, a function that is called with each `ArraysRound` and contributes to it. progress:
        called with each `Event`. stop: called before each poll. poll_seconds: length of one long poll, at most 30.
        patience: seconds for which an unreachable server is waited for, each time, before `GaveUp`; None waits as long
        as it takes, and reports `ServerUnreachable`. on_unknown: "skip" leaves out items that the task does not have,
        such as those that a shop added since; the log has their number. Returns one report per contribution. A round
        that this client misses is reported as `RoundMissed`, one to which it has nothing to add as `RoundAbstained`.
        Raises `TaskFailed` with the reason if the task ends because too many of its rounds failed, and
        `ParameterError` for interactions that the recipe cannot use.
        """
        return self._driver.run(take_part(self.part, interactions, progress, stop, poll_seconds, patience, on_unknown))

    def serve(
        self,
        progress: Progress | None = None,
        stop: Stop | None = None,
        poll_seconds: float = 5.0,
        patience: float | None = None,
    ) -> None:
        """Do what this client's role asks of it until the task ends or `stop()` returns True.

        The key holder creates the keyring if needed, sends it to every member whose certificate is valid, and reports
        `KeyringDelivered` and `KeyringRefused`. A member of the committee publishes keys ahead, does its part in every
        round, and reports `SurvivorsConfirmed`, `ClientsNamed`, `ShareSent` and `CommitteeRefused`; only one process
        may serve one member at a time, because two would not see what the other signs. The key holder may call
        `take_part` in another thread. stop, poll_seconds, patience: as for `take_part`. Raises `ParameterError` for a
        client of another role, and `PolicyRefused` for a committee without an organiser unless the policy trusts the
        server to say who takes part.
        """
        self._driver.run(follow_task(self._role(progress or ignore_event), stop, poll_seconds, patience))

    def catalogue(self) -> Catalogue | None:
        """Return the app's ids and titles of the items, as the task's terms name them; None for a task without.

        Waits for an operator that has not uploaded it yet.
        """
        self._driver.run(self.part.load_catalogue())
        return self.part.catalogue

    def privacy(self) -> PrivacyView:
        """Return what the task's privacy block promises, and what is spent of it, as the server counts it.

        Whether this client takes part is decided by its own record. Raises `NotFound` for a task without a block.
        """
        return self._driver.run(self.part.member.calls.privacy(self.terms.task_id))

    def current_round(self, wait: float = 0.0) -> RoundView | None:
        """Return the newest round; None if there is none within `wait` seconds (at most 30)."""
        fresh = self._driver.run(self.part.member.calls.current_round(self.terms.task_id, None, wait))
        return None if fresh is None else fresh.view

    def model(self) -> ModelState:
        """Return the model after the last completed round, as this client's device group sees it.

        Raises `ModelUnavailable` when it cannot be downloaded.
        """
        return self._driver.run(newest_model(self.part))

    def rounds(
        self, progress: Progress | None = None, poll_seconds: float = 20.0, patience: float | None = None
    ) -> Iterator[OpenRound]:
        """Yield each round of an `arrays` task that asks this client, until the task ends.

        Train on `round.arrays()` and call `round.contribute` before the next round is taken. Without that the client
        misses the round; in tasks whose sums only members open it sends zeros, so that the server does not learn which
        clients train. Leaving the loop ends this client's part at once, and sends nothing more. progress, patience: as
        for `take_part`. Raises what `take_part` raises, and `ParameterError` for other recipes.
        """
        return _open_rounds(self._driver.turns(self._in_loop(progress, poll_seconds, patience)))

    def arrays(self) -> dict[str, NDArray[np.float32]]:
        """Return the arrays of the newest model of an `arrays` task, float32, by name: copies that may be changed.

        Raises `ParameterError` for other recipes, and `ModelUnavailable`.
        """
        return self._driver.run(named_arrays(self.part))

    def evaluation(self) -> Curve:
        """Return the curve of the task's federated evaluation: its points, `metrics(point)` and `best`.

        Whoever can open the sums sees it, also where the server cannot. Raises `ParameterError` for a task without
        evaluation, and `ModelUnavailable`.
        """
        return self._driver.run(evaluation(self.part))

    def recommend(
        self,
        k: int = 10,
        interactions: object | None = None,
        refresh: bool = True,
        progress: Progress | None = None,
        on_unknown: OnUnknown = "error",
        new: int = 0,
    ) -> Recommendations:
        """Return the `k` best items that are not in `interactions`, computed on the device.

        interactions, on_unknown: as for `take_part`; None for those of the last `take_part`. refresh: whether to update
        the model first; False makes no request. While no server answers, the model on the device is used. progress: is
        told the round and the age of that model, as `ModelBehind`; the log has them as well. new: how many of the `k`
        are at least items that the model does not know and that labels in the catalogue predict scores for, so that a
        shop's new articles are seen; fewer if there are not so many. Raises `ParameterError` without interactions and
        for `k` or `new` out of range, `ModelUnavailable`, and without a model on the device `GaveUp`.
        """
        return self._driver.run(
            recommend(self.part, k, interactions, refresh, progress or ignore_event, new, on_unknown)
        )


class AsyncTask(_BaseTask[AsyncDriver]):
    """`Task` for use on an event loop; training and encryption run in threads."""

    async def take_part(
        self,
        interactions: object,
        progress: Progress | None = None,
        stop: Stop | None = None,
        poll_seconds: float = 20.0,
        patience: float | None = None,
        on_unknown: OnUnknown = "error",
    ) -> list[RoundReport]:
        """See `Task.take_part`; cancelling the task stops it at once. A trainer runs in a thread."""
        return await self._driver.run(
            take_part(self.part, interactions, progress, stop, poll_seconds, patience, on_unknown)
        )

    async def serve(
        self,
        progress: Progress | None = None,
        stop: Stop | None = None,
        poll_seconds: float = 5.0,
        patience: float | None = None,
    ) -> None:
        """See `Task.serve`; cancelling the task stops it at once."""
        await self._driver.run(follow_task(self._role(progress or ignore_event), stop, poll_seconds, patience))

    async def catalogue(self) -> Catalogue | None:
        """See `Task.catalogue`."""
        await self._driver.run(self.part.load_catalogue())
        return self.part.catalogue

    async def privacy(self) -> PrivacyView:
        """See `Task.privacy`."""
        return await self._driver.run(self.part.member.calls.privacy(self.terms.task_id))

    async def current_round(self, wait: float = 0.0) -> RoundView | None:
        """See `Task.current_round`."""
        fresh = await self._driver.run(self.part.member.calls.current_round(self.terms.task_id, None, wait))
        return None if fresh is None else fresh.view

    async def model(self) -> ModelState:
        """See `Task.model`."""
        return await self._driver.run(newest_model(self.part))

    def rounds(
        self, progress: Progress | None = None, poll_seconds: float = 20.0, patience: float | None = None
    ) -> AsyncIterator[AsyncOpenRound]:
        """See `Task.rounds`. To leave the loop at once, close the iterator (`contextlib.aclosing`)."""
        return _async_open_rounds(self._driver.turns(self._in_loop(progress, poll_seconds, patience)))

    async def arrays(self) -> dict[str, NDArray[np.float32]]:
        """See `Task.arrays`."""
        return await self._driver.run(named_arrays(self.part))

    async def evaluation(self) -> Curve:
        """See `Task.evaluation`."""
        return await self._driver.run(evaluation(self.part))

    async def recommend(
        self,
        k: int = 10,
        interactions: object | None = None,
        refresh: bool = True,
        progress: Progress | None = None,
        on_unknown: OnUnknown = "error",
        new: int = 0,
    ) -> Recommendations:
        """See `Task.recommend`."""
        return await self._driver.run(
            recommend(self.part, k, interactions, refresh, progress or ignore_event, new, on_unknown)
        )


# --- the rounds of an `arrays` task as a loop of the application: `for round in task.rounds()`, or `async for` --------
# The loop and the client's part in the task are one program: where a round needs the application's update, the program
# pauses (`Turn`) and the loop's body runs. It pauses again with the outcome of the round.


class _Open(ArraysRound, Generic[Turns]):
    """A round that waits for this client's update, once. turns: of this client's whole part in the task."""

    def __init__(self, asked: ArraysRound, turns: Turns) -> None:
        super().__init__(asked._recipe, asked._spec, asked._state)
        self._asked, self._turns = asked, turns
        self._is_over = False

    def _take(self, update: ArraysUpdate, weight: float | None) -> None:
        made = self._checked(update, weight)
        if self._is_over:
            raise RoundLost(f"round {self.number} is over for this client")
        self._give(made, weight)
        self._asked._give(made, weight)

    def close(self) -> None:
        """Take no update any more: the loop has gone on."""
        self._is_over = True


def _report(outcome: object) -> RoundReport:
    if isinstance(outcome, RoundReport):
        return outcome
    ended = "this client's part in the task has ended"
    raise RoundLost(outcome.reason if isinstance(outcome, RoundMissed | RoundAbstained) else ended)


class OpenRound(_Open[Generator[object, None, object]]):
    """A round that waits for this client's update: train on `arrays()`, then call `contribute`."""

    def contribute(self, update: ArraysUpdate, weight: float | None = None) -> RoundReport:  # type: ignore[override]
        """Seal and send this client's update; return the report once it is delivered.

        See `ArraysRound.contribute` for the update and its errors, after which another update may be given. Raises
        `RoundLost` if the round ended first, or was given an update already, and what `Task.take_part` raises.
        """
        self._take(update, weight)
        return _report(next(self._turns, None))


def _open_rounds(turns: Generator[object, None, object]) -> Iterator[OpenRound]:
    """Yield each round that asks this client until the task ends; see `Task.rounds`. turns: of the whole part."""
    try:
        for turn in turns:
            if isinstance(turn, ArraysRound):
                asked = OpenRound(turn, turns)
                yield asked
                asked.close()
    finally:
        turns.close()


class AsyncOpenRound(_Open[AsyncIterator[object]]):
    """A round that waits for this client's update: train on `arrays()`, then await `contribute`."""

    async def contribute(self, update: ArraysUpdate, weight: float | None = None) -> RoundReport:  # type: ignore[override]
        """See `OpenRound.contribute`."""
        self._take(update, weight)
        return _report(await anext(self._turns, None))


async def _async_open_rounds(turns: AsyncIterator[object]) -> AsyncIterator[AsyncOpenRound]:
    """Yield each round that asks this client until the task ends; see `AsyncTask.rounds`."""
    async for turn in turns:
        if isinstance(turn, ArraysRound):
            asked = AsyncOpenRound(turn, turns)
            yield asked
            asked.close()
