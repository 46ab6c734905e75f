"""A client's part in one task, as sync and async classes that run the same programs."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Iterator
from concurrent.futures import Executor

import numpy as np
from numpy.typing import NDArray

from client_sdk.agreement.terms import TaskTerms
from client_sdk.api.drivers import AsyncDriver, SyncDriver
from client_sdk.local_state.client_store import Membership
from client_sdk.model.recommendation import Recommendations
from client_sdk.participation.arrays_rounds import OpenRound, open_rounds
from client_sdk.participation.async_arrays_rounds import AsyncOpenRound, async_open_rounds
from client_sdk.participation.events import Progress, RoundReport
from client_sdk.participation.keyring import Deliveries, KeyService, envelope_sender
from client_sdk.participation.local_work import Stop
from client_sdk.participation.participation import Participation
from client_sdk.training.arrays import Trainer
from protocols.errors import ParameterError
from protocols.messages import RoundView
from protocols.recipes.base import ModelState
from protocols.recipes.evaluation_curve import Curve

__all__ = ["AsyncKeyHolder", "AsyncParticipant", "KeyHolder", "Participant", "key_service"]


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
