"""The front door: `Client` and `AsyncClient` join tasks as one identity.

with Client(url, identity=Identity.load("me.key")) as client:
    task = client.join("movies", invitation=..., certificate=...)
    task.take_part(interactions)
    print(task.recommend(10))
"""

from __future__ import annotations

from types import TracebackType
from typing import Self

from client_sdk.agreement.policy import Policy
from client_sdk.api.drivers import AsyncDriver, SyncDriver
from client_sdk.api.effects import Traffic
from client_sdk.local_state.identity import Identity
from client_sdk.local_state.store import Membership, Store
from client_sdk.participation.certificates import CertificateChoice
from client_sdk.participation.enroller import ClientOptions, Enroller
from client_sdk.participation.ledger import OwnLedger
from client_sdk.participation.participant import AsyncParticipant, Participant
from client_sdk.training.base import TrainingConfig

__all__ = ["AsyncClient", "Client"]


class Client:
    """One identity at one server.

    url: `https://host[:port][/path]`. identity: see `Identity.load` and `Identity.generate`. store: where memberships
    and keys are kept, the user's data directory by default. policy: this client's own conditions.
    """

    def __init__(
        self,
        url: str,
        identity: Identity,
        store: Store | None = None,
        policy: Policy | None = None,
        options: ClientOptions | None = None,
        driver: SyncDriver | None = None,
    ) -> None:
        options = options or ClientOptions()
        self._enroller = Enroller(url, identity, store, policy, options)
        self._driver = driver or SyncDriver(options.timeouts)

    def join(
        self,
        task: str | None = None,
        *,
        invitation: str | None = None,
        certificate: CertificateChoice | None = None,
        training: TrainingConfig | None = None,
        seed: int | None = None,
        graph_filter: str | None = None,
        device_group: int | None = None,
    ) -> Participant:
        """Enrol with `invitation`, or take up the membership of `task` (its name or id) kept from before.

        certificate: where this client's membership certificate comes from, in tasks with an organiser. training: how
        it trains. seed: fixes the training draws; fresh randomness by default. graph_filter: what recommends in
        tasks that aggregate a spectrum, a name from `client_sdk.filters.FILTERS`; what fits the task by default.
        group: the group of clients to enrol in, for good, where the recipe has several (FAIR: one a memory size).
        Raises `PolicyRefused`, `NotEnrolled`, `Gone`, `Forbidden`, ...
        """
        program = self._enroller.participation(
            task, invitation, certificate, training, seed, graph_filter=graph_filter, device_group=device_group
        )
        return Participant(self._driver.run(program), self._driver)

    def ledger(self, task: str | None = None) -> OwnLedger:
        """Which released sums of `task` (name or id) contain this client's data, and where its own notes differ."""
        return self._driver.run(self._enroller.ledger(task))

    def memberships(self) -> list[Membership]:
        """The tasks this identity is enrolled in, as far as the store knows."""
        return self._enroller.client_store.memberships()

    @property
    def traffic(self) -> Traffic:
        """Bytes of bodies sent and received so far."""
        return self._driver.traffic.copy()

    def close(self) -> None:
        """Close the connections."""
        self._driver.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


class AsyncClient:
    """`Client` on an event loop."""

    def __init__(
        self,
        url: str,
        identity: Identity,
        store: Store | None = None,
        policy: Policy | None = None,
        options: ClientOptions | None = None,
        driver: AsyncDriver | None = None,
    ) -> None:
        options = options or ClientOptions()
        self._enroller = Enroller(url, identity, store, policy, options)
        self._driver = driver or AsyncDriver(options.timeouts)

    async def join(
        self,
        task: str | None = None,
        *,
        invitation: str | None = None,
        certificate: CertificateChoice | None = None,
        training: TrainingConfig | None = None,
        seed: int | None = None,
        graph_filter: str | None = None,
        device_group: int | None = None,
    ) -> AsyncParticipant:
        """See `Client.join`."""
        program = self._enroller.participation(
            task, invitation, certificate, training, seed, graph_filter=graph_filter, device_group=device_group
        )
        return AsyncParticipant(await self._driver.run(program), self._driver)

    async def ledger(self, task: str | None = None) -> OwnLedger:
        """See `Client.ledger`."""
        return await self._driver.run(self._enroller.ledger(task))

    def memberships(self) -> list[Membership]:
        """See `Client.memberships`."""
        return self._enroller.client_store.memberships()

    @property
    def traffic(self) -> Traffic:
        """Bytes of bodies sent and received so far."""
        return self._driver.traffic.copy()

    async def aclose(self) -> None:
        """Close the connections."""
        await self._driver.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        await self.aclose()
