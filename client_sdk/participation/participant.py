"""A client's part in one task, sync and async: the same programs, run by two drivers."""

from __future__ import annotations

from client_sdk.agreement.terms import TaskTerms
from client_sdk.api.drivers import AsyncDriver, SyncDriver
from client_sdk.local_state.store import Membership
from client_sdk.model.recommendation import Recommendations
from client_sdk.participation.events import Progress, RoundReport
from client_sdk.participation.keyring import Deliveries, KeyService, envelope_sender
from client_sdk.participation.local_work import Stop
from client_sdk.participation.participation import Participation
from protocols.errors import ParameterError
from protocols.messages import RoundView
from protocols.recipes.base import ModelState

__all__ = ["AsyncKeyHolder", "AsyncParticipant", "KeyHolder", "Participant", "key_service"]


def key_service(participation: Participation) -> KeyService:
    """The key holder's programs for this membership; `ParameterError` unless it is the holder's, with a secret."""
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


class _Part:
    """What both kinds have in common."""

    def __init__(self, core: Participation) -> None:
        self.core = core

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.core.membership!r}>"

    @property
    def membership(self) -> Membership:
        """Task id, client id and role."""
        return self.core.membership

    @property
    def terms(self) -> TaskTerms:
        """Recipe, mechanism, schedule and plan of the task."""
        return self.core.terms


class Participant(_Part):
    """One client of one task; made by `Client.join`."""

    def __init__(self, core: Participation, driver: SyncDriver) -> None:
        super().__init__(core)
        self._driver = driver

    def take_part(
        self,
        interactions: object,
        progress: Progress | None = None,
        stop: Stop | None = None,
        poll_seconds: float = 20.0,
    ) -> list[RoundReport]:
        """Train, seal and upload in every round this client is asked in, until the task ends or `stop()` is true.

        `interactions`: item numbers 0..N-1 that the user chose, each once, or a mapping from item to rating for the
        recipes that learn from ratings. Returns the rounds' reports.
        """
        return self._driver.run(self.core.run_until_closed(interactions, progress, stop, poll_seconds))

    def take_part_once(
        self, round_view: RoundView, interactions: object, progress: Progress | None = None
    ) -> RoundReport:
        """Take part in one round; raises what `take_part` would tell as `RoundMissed`."""
        self.core.seen = self.core.history(interactions)
        return self._driver.run(self.core.run_round(round_view, self.core.seen, progress))

    def current_round(self, wait: float = 0.0) -> RoundView | None:
        """The newest round, waited for up to `wait` (30) seconds; None when there is none."""
        fresh = self._driver.run(self.core.calls.current_round(self.core.terms.task_id, None, wait))
        return None if fresh is None else fresh.round

    def model(self) -> ModelState:
        """The model after the last completed round, as this client's group sees it."""
        return self._driver.run(self.core.newest())

    def recommend(self, k: int = 10, interactions: object | None = None, refresh: bool = True) -> Recommendations:
        """The `k` best items that the user has not seen, computed here. `refresh=False` makes no request."""
        return self._driver.run(self.core.recommend(k, interactions, refresh))

    def key_holder(self) -> KeyHolder:
        """The key holder's duties, when this membership is the holder's."""
        return KeyHolder(key_service(self.core), self._driver)


class AsyncParticipant(_Part):
    """`Participant` on an event loop; training and encryption run in threads."""

    def __init__(self, core: Participation, driver: AsyncDriver) -> None:
        super().__init__(core)
        self._driver = driver

    async def take_part(
        self,
        interactions: object,
        progress: Progress | None = None,
        stop: Stop | None = None,
        poll_seconds: float = 20.0,
    ) -> list[RoundReport]:
        """See `Participant.take_part`; cancelling the task stops it at once."""
        return await self._driver.run(self.core.run_until_closed(interactions, progress, stop, poll_seconds))

    async def take_part_once(
        self, round_view: RoundView, interactions: object, progress: Progress | None = None
    ) -> RoundReport:
        """See `Participant.take_part_once`."""
        self.core.seen = self.core.history(interactions)
        return await self._driver.run(self.core.run_round(round_view, self.core.seen, progress))

    async def current_round(self, wait: float = 0.0) -> RoundView | None:
        """See `Participant.current_round`."""
        fresh = await self._driver.run(self.core.calls.current_round(self.core.terms.task_id, None, wait))
        return None if fresh is None else fresh.round

    async def model(self) -> ModelState:
        """See `Participant.model`."""
        return await self._driver.run(self.core.newest())

    async def recommend(self, k: int = 10, interactions: object | None = None, refresh: bool = True) -> Recommendations:
        """See `Participant.recommend`."""
        return await self._driver.run(self.core.recommend(k, interactions, refresh))

    def key_holder(self) -> AsyncKeyHolder:
        """See `Participant.key_holder`."""
        return AsyncKeyHolder(key_service(self.core), self._driver)


class KeyHolder:
    """The client that makes the keys. It may run in a thread beside the same client's `take_part`."""

    def __init__(self, service: KeyService, driver: SyncDriver) -> None:
        self.service = service
        self._driver = driver

    def create_keyring(self) -> str:
        """Make the task's keyring and keep it here (once); returns its fingerprint, which members may compare."""
        return self.service.create().fingerprint

    def serve_keyring(self, progress: Progress | None = None, wait: float = 0.0) -> Deliveries:
        """Seal the keyring for every member that waits for it, after checking its proof; waits `wait` for one."""
        return self._driver.run(self.service.deliver(progress, wait))

    def publish_snapshot(self, upto: int) -> int | None:
        """Open the sums up to round `upto` and publish the state (public-key mode); its round when it was news."""
        return self._driver.run(self.service.publish_newest(upto))

    def serve(self, progress: Progress | None = None, stop: Stop | None = None, poll_seconds: float = 5.0) -> None:
        """Make the keyring if need be, key members and, in public-key mode, publish every round's state."""
        self._driver.run(self.service.serve(progress, stop, poll_seconds))


class AsyncKeyHolder:
    """`KeyHolder` on an event loop."""

    def __init__(self, service: KeyService, driver: AsyncDriver) -> None:
        self.service = service
        self._driver = driver

    def create_keyring(self) -> str:
        """See `KeyHolder.create_keyring`."""
        return self.service.create().fingerprint

    async def serve_keyring(self, progress: Progress | None = None, wait: float = 0.0) -> Deliveries:
        """See `KeyHolder.serve_keyring`."""
        return await self._driver.run(self.service.deliver(progress, wait))

    async def publish_snapshot(self, upto: int) -> int | None:
        """See `KeyHolder.publish_snapshot`."""
        return await self._driver.run(self.service.publish_newest(upto))

    async def serve(
        self, progress: Progress | None = None, stop: Stop | None = None, poll_seconds: float = 5.0
    ) -> None:
        """See `KeyHolder.serve`."""
        await self._driver.run(self.service.serve(progress, stop, poll_seconds))
