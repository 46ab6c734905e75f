"""`Client` and `AsyncClient`: join tasks as one identity; see `client_sdk` for an example."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Generic, TypeVar

from client_sdk.agreement.policy import Policy
from client_sdk.agreement.terms import TaskTerms
from client_sdk.api.http import AsyncClosed, AsyncDriver, Closed, SyncDriver
from client_sdk.api.wire import Program, Traffic
from client_sdk.rounds.account import Account, ClientOptions
from client_sdk.rounds.join import following, join, open_stored, own_ledger, preview
from client_sdk.rounds.ledger import Budget, OwnLedger, read_budget
from client_sdk.rounds.member import CertificateChoice
from client_sdk.rounds.part import Part
from client_sdk.store import Store
from client_sdk.store.identity import Identity, Membership
from client_sdk.task import AsyncTask, Task
from client_sdk.training.base import TrainingConfig

if TYPE_CHECKING:
    from protocols.messages.receipts import Receipt

D = TypeVar("D", bound=SyncDriver | AsyncDriver)


def _receipt(account: Account, task: str | None, number: int | None, audience: str) -> Program[Receipt]:
    from client_sdk.rounds.receipts import make_receipt  # which a device seldom needs

    return make_receipt(account, task, number, audience)


class _BaseClient(Generic[D]):
    """The common part of the sync and the async class."""

    _driver_class: type[D]

    def __init__(
        self,
        url: str,
        identity: Identity | None = None,
        store: Store | None = None,
        policy: Policy | None = None,
        options: ClientOptions | None = None,
        driver: D | None = None,
        *,
        home: str | Path | None = None,
    ) -> None:
        self._account = Account.at(url, identity, store, policy, options, home)
        self._driver: D = driver or self._driver_class(self._account.options.timeouts)

    def memberships(self) -> list[Membership]:
        """Return the memberships of this identity that the store holds."""
        return self._account.store.memberships()

    def budget(self) -> Budget:
        """Return what tasks with a privacy block cost this identity's data, by its own records; the policy limits it.

        Nothing is sent. Raises `LocalFileError` for a damaged record.
        """
        return read_budget(self._account.store, self._account.policy)

    @property
    def traffic(self) -> Traffic:
        """Bytes of request and response bodies so far."""
        return replace(self._driver.traffic)

    def _opened(self, task: str | None, graph_filter: str | None) -> Part:
        part = Part.of(open_stored(self._account, task), graph_filter=graph_filter)
        part.is_joined = False
        return part


class Client(_BaseClient[SyncDriver], Closed):
    """One identity at one server.

    url: `https://host[:port][/path]`. home: a folder that keeps the identity, memberships, keys and models; it is made
    if there is none. Or, in place of it, identity: see `Identity.load` and `Identity.generate`, and store: where
    memberships and keys are kept, by default the user's data directory. policy: what this client agrees to. options:
    retries, timeouts and chunk size. driver: replaces the HTTP connections, for tests. Raises `ParameterError` for
    another form of URL, for http:// to another machine without `ClientOptions(allow_http=True)`, and without an
    identity; `LocalFileError` for a home that cannot be read.
    """

    _driver_class = SyncDriver

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
        after: str | None = None,
        shown: TaskTerms | None = None,
    ) -> Task:
        """Enrol with `invitation`, or load the stored membership of `task`, and check the task against the policy.

        task: name or id; None for the only stored membership, or whatever task the invitation is for.
        certificate: where the membership certificate comes from; needed in tasks with an organiser.
        training: training parameters; by default those of the recipe.
        seed: fixes the training draws; fresh randomness by default.
        graph_filter: name of the filter (`training.graph_filters.FILTERS`) that recommends in tasks that aggregate a
        spectrum; by default the one that fits the task.
        device_group: group to enrol in permanently, where the recipe has several (FAIR: one per memory size).
        after: in place of an invitation, name or id of a task of which this client is a member: enrols it in the one
        that follows, with the same certificate.
        shown: the terms that `following(after)` or `preview(invitation)` returned and the user agreed to; for members.
        `PolicyRefused` if the server names another task by now, or other terms: before it enrols or asks for a
        certificate. `ContractBroken` if it enrols the client in something else than it named.

        With `Policy(follow=True)`, a stored task that is over is replaced by the one that follows it. If that is not
        possible, it is returned as it is, and a warning is logged.

        Raises `PolicyRefused`, `NotEnrolled` without invitation and stored membership, `Gone` or `Forbidden` for the
        invitation, `ParameterError` for arguments that do not fit the task, and `ContractBroken` when the server's
        statements contradict each other.
        """
        program = join(self._account, task, invitation, certificate, device_group, after=after, shown=shown)
        member = self._driver.run(program)
        return Task(Part.of(member, training, seed, graph_filter), self._driver)

    def open(self, task: str | None = None, *, graph_filter: str | None = None) -> Task:
        """Return `task` as it is stored on this device, without a request: to recommend while no server answers.

        To take part, `join` it: that asks the server for the newest revocations. task, graph_filter: as for `join`.
        Raises `NotEnrolled` without a stored membership, `PolicyRefused`, and `LocalFileError`.
        """
        return Task(self._opened(task, graph_filter), self._driver)

    def preview(self, invitation: str) -> TaskTerms:
        """Return the terms of the task that `invitation` is for, checked against the policy, without enrolling.

        Raises `PolicyRefused`, `Gone` and `Forbidden` as `join` does, and the invitation keeps its uses.
        """
        return self._driver.run(preview(self._account, invitation))

    def following(self, task: str | None = None) -> TaskTerms | None:
        """Return the terms of the task that follows `task`, checked against the policy, without enrolling; or None.

        task: name or id of a task of which this client is a member. `join(after=task, shown=terms)` enrols it. Raises
        `NotEnrolled`, and `PolicyRefused` also if the organiser or the data set label is another one.
        """
        return self._driver.run(following(self._account, task))

    def ledger(self, task: str | None = None) -> OwnLedger:
        """Return the released sums of `task` (name or id) with this client's data, and compare its own records."""
        return self._driver.run(own_ledger(self._account, task))

    def receipt(self, task: str | None = None, number: int | None = None, audience: str = "") -> Receipt:
        """Return the receipt of this client's contribution to round `number` of `task` (name or id).

        number: None for the last round to which the server acknowledged a contribution. audience: to whom it is shown,
        or why. See `protocols.receipts` for what it proves, and `rounds.receipts.make_receipt` for the errors.
        """
        return self._driver.run(_receipt(self._account, task, number, audience))

    def close(self) -> None:
        """Close all connections."""
        self._driver.close()


class AsyncClient(_BaseClient[AsyncDriver], AsyncClosed):
    """`Client` for use on an event loop."""

    _driver_class = AsyncDriver

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
        after: str | None = None,
        shown: TaskTerms | None = None,
    ) -> AsyncTask:
        """See `Client.join`."""
        program = join(self._account, task, invitation, certificate, device_group, after=after, shown=shown)
        member = await self._driver.run(program)
        return AsyncTask(Part.of(member, training, seed, graph_filter), self._driver)

    def open(self, task: str | None = None, *, graph_filter: str | None = None) -> AsyncTask:
        """See `Client.open`."""
        return AsyncTask(self._opened(task, graph_filter), self._driver)

    async def preview(self, invitation: str) -> TaskTerms:
        """See `Client.preview`."""
        return await self._driver.run(preview(self._account, invitation))

    async def following(self, task: str | None = None) -> TaskTerms | None:
        """See `Client.following`."""
        return await self._driver.run(following(self._account, task))

    async def ledger(self, task: str | None = None) -> OwnLedger:
        """See `Client.ledger`."""
        return await self._driver.run(own_ledger(self._account, task))

    async def receipt(self, task: str | None = None, number: int | None = None, audience: str = "") -> Receipt:
        """See `Client.receipt`."""
        return await self._driver.run(_receipt(self._account, task, number, audience))

    async def aclose(self) -> None:
        """Close all connections."""
        await self._driver.aclose()
