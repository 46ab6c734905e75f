"""The operator's side of the API: create tasks, invite clients, watch rounds, close tasks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, TypeVar

from pydantic import ValidationError

from client_sdk.api.calls import ApiCalls, RoundChanged
from client_sdk.api.http import Closed, SyncDriver
from client_sdk.api.wire import Program
from client_sdk.errors import NotFound
from client_sdk.rounds.account import ClientOptions
from client_sdk.rounds.events import TaskEnded
from client_sdk.rounds.polling import RoundChange, follow_rounds
from protocols.catalogue import Catalogue
from protocols.codec import b64encode
from protocols.errors import ParameterError
from protocols.messages import (
    DeletedTask,
    Erasure,
    Evaluation,
    Invitation,
    InvitationPage,
    InvitationRequest,
    InvitationView,
    LedgerEntry,
    MechanismChoice,
    Member,
    MemberExport,
    MemberPage,
    OrganiserPin,
    RecipeChoice,
    Role,
    RoundView,
    Schedule,
    SnapshotView,
    TaskRequest,
    TaskView,
)
from protocols.messages.privacy import Privacy, PrivacyView
from protocols.parameter_text import first_fault
from protocols.recipes.base import Recipe
from protocols.recipes.registry import recipe_entry, recipes
from protocols.sums.registry import mechanism_entry, mechanisms

P = TypeVar("P", InvitationPage, MemberPage)


def task_request(
    name: str,
    recipe: str | Recipe,
    mechanism: str = "ckks",
    schedule: Schedule | None = None,
    recipe_parameters: dict[str, Any] | None = None,
    mechanism_parameters: dict[str, Any] | None = None,
    seed: bytes | None = None,
    data_set: str | None = None,
    organiser: OrganiserPin | None = None,
    evaluation: Evaluation | None = None,
    catalogue: Catalogue | None = None,
    privacy: Privacy | None = None,
) -> TaskRequest:
    """Return a `TaskRequest` from names and parameters.

    recipe: a name with `recipe_parameters`, or a recipe object, which has its own parameters. seed: 32 bytes; the same
    seed repeats the initial state and the rounds of another task; None lets the server draw it. data_set: label of the
    data, for tasks that sum the same data. organiser: who certifies the members. evaluation: how the clients measure
    the model. catalogue: the app's ids and titles of the items; pass it to `Operator.create_task`, too. privacy: the
    budget of differential privacy, from which the noise in the sums follows; None for no noise. Raises
    `ParameterError` for a recipe object with `recipe_parameters`, and for values out of range.
    """
    if isinstance(recipe, Recipe):
        if recipe_parameters:
            raise ParameterError("a recipe object has its own parameters: omit recipe_parameters")
        recipe_parameters = recipe.parameters.model_dump(mode="json")
        recipe = recipe.name
    # what is not installed here gets version 1: the server decides then
    recipe_version = recipe_entry(recipe).version if recipe in recipes() else 1
    mechanism_version = mechanism_entry(mechanism).version if mechanism in mechanisms() else 1
    try:
        return TaskRequest(
            name=name,
            recipe=RecipeChoice(name=recipe, parameters=recipe_parameters or {}, version=recipe_version),
            mechanism=MechanismChoice(name=mechanism, parameters=mechanism_parameters or {}, version=mechanism_version),
            schedule=schedule or Schedule(),
            seed=None if seed is None else b64encode(seed),
            data_set=data_set,
            organiser=organiser,
            evaluation=evaluation,
            catalogue_digest=None if catalogue is None else catalogue.digest,
            privacy=privacy,
        )
    except ValidationError as error:
        raise ParameterError(f"task: {first_fault(error, TaskRequest.model_fields)}") from None


class Operator(Closed):
    """An operator at one server.

    url: `https://host[:port][/path]`. token: the operator's bearer token. options: retries and timeouts, and whether
    http:// may be used beyond this machine. driver: replaces the HTTP connections, for tests. An operator sees sizes,
    counts and states, never a contribution.
    """

    def __init__(
        self, url: str, token: str, options: ClientOptions | None = None, driver: SyncDriver | None = None
    ) -> None:
        options = options or ClientOptions()
        self._calls = ApiCalls(url, token, options.retry, allow_http=options.allow_http)
        self._driver = driver or SyncDriver(options.timeouts)

    def __repr__(self) -> str:
        return f"<Operator at {self._calls.url}>"

    def create_task(self, request: TaskRequest, catalogue: Catalogue | None = None) -> TaskView:
        """Create a task, and upload its item catalogue; round 1 waits for it.

        Raises `ParameterError`, before anything is sent, for another catalogue than the request names, and
        `InvalidParameters` when the request cannot work. If the upload alone fails, repeat it with `put_catalogue`.
        """
        if request.catalogue_digest != (None if catalogue is None else catalogue.digest):
            raise ParameterError(
                "the request names another catalogue, or none: pass the same one to task_request and create_task"
            )
        view = self._driver.run(self._calls.create_task(request))
        if catalogue is None:
            return view
        self.put_catalogue(view.task_id, catalogue)
        return self._driver.run(self._calls.task(view.task_id))

    def put_catalogue(self, task_id: str, catalogue: Catalogue) -> None:
        """Upload the item catalogue that a task names. Uploading it again changes nothing.

        Raises `InvalidParameters` for another one, or one with another number of items than the recipe has.
        """
        self._driver.run(self._calls.put_catalogue(task_id, catalogue.encode()))

    def catalogue(self, task: str) -> Catalogue | None:
        """Return the item catalogue of a task, by id or name; None for a task without one."""
        view = self.task(task)
        if view.catalogue_digest is None:
            return None
        items = int(view.recipe.parameters["items"])
        body = self._driver.run(self._calls.catalogue(view.task_id, items, view.catalogue_digest))
        return None if body is None else Catalogue.decode(body)

    def tasks(self) -> list[TaskView]:
        """Return every task, newest first."""
        return self._driver.run(self._calls.tasks()).tasks

    def task(self, task: str) -> TaskView:
        """Return the task with that id, or the newest with that name; `NotFound` when there is none."""
        try:
            return self._driver.run(self._calls.task(task))
        except NotFound:
            named = self._driver.run(self._calls.tasks(task)).tasks
            if not named:
                raise
            return named[0]

    def models(self, task_id: str, max_bytes: int, most: int = 1) -> list[tuple[SnapshotView, bytes]]:
        """Return the newest models that the server keeps, newest first, at most `most`, as bodies of snapshots.

        max_bytes: of a body, at most.
        """
        found: list[tuple[SnapshotView, bytes]] = []
        while len(found) < most:
            before = found[-1][0].round if found else None
            view = self._driver.run(self._calls.latest_snapshot(task_id, before=before))
            body = None if view is None else self._driver.run(self._calls.snapshot(task_id, view, max_bytes))
            if view is None or body is None:
                break
            found.append((view, body))
        return found

    def privacy(self, task_id: str) -> PrivacyView:
        """Return what a task's privacy block promises, and what is spent of it; `NotFound` for a task without one."""
        return self._driver.run(self._calls.privacy(task_id))

    def invite(
        self, task_id: str, uses: int = 1, role: Role = "member", expires_seconds: float = 86_400.0
    ) -> Invitation:
        """Create an invitation for `uses` clients, valid for `expires_seconds`. Send it over a trusted channel.

        Raises `ParameterError` for values out of range.
        """
        try:
            request = InvitationRequest(role=role, uses=uses, expires_seconds=expires_seconds)
        except ValidationError as error:
            raise ParameterError(f"invitation: {first_fault(error, InvitationRequest.model_fields)}") from None
        return self._driver.run(self._calls.invite(task_id, request))

    def invitations(self, task_id: str) -> Iterator[InvitationView]:
        """Yield a task's invitations in order of creation, fetched in pages."""
        for page in self._pages(partial(self._calls.invitations, task_id)):
            yield from page.invitations

    def revoke_invitation(self, task_id: str, invitation_id: str) -> InvitationView:
        """Revoke an invitation. Clients that have enrolled with it stay members."""
        return self._driver.run(self._calls.revoke_invitation(task_id, invitation_id))

    def close_task(self, task_id: str) -> TaskView:
        """Close a task. Its open round, if any, fails."""
        return self._driver.run(self._calls.close_task(task_id))

    def delete_task(self, task_id: str) -> DeletedTask:
        """Delete a task that has ended, with its model and members; `Conflict` while it is open.

        The result says what is kept of it, as digests: what later tasks over the same data set are judged by.
        """
        return self._driver.run(self._calls.delete_task(task_id))

    def resume_task(self, task_id: str) -> TaskView:
        """Open a failed task again, at the sum at which it failed. `Conflict` for one that ended otherwise."""
        return self._driver.run(self._calls.resume_task(task_id))

    def extend_round(self, task_id: str, number: int, seconds: float) -> RoundView:
        """Extend the current stage of a round by `seconds`; `Conflict` when the round no longer waits for clients.

        Raises `ParameterError` for seconds out of range.
        """
        try:
            program = self._calls.extend_round(task_id, number, seconds)
        except ValidationError as error:
            raise ParameterError(f"extension: {first_fault(error)}") from None
        return self._driver.run(program)

    def abort_round(self, task_id: str, number: int) -> RoundView:
        """End a round as failed; the task continues with its next round. `Conflict` when it has ended otherwise."""
        return self._driver.run(self._calls.abort_round(task_id, number))

    def members(self, task_id: str) -> list[Member]:
        """Return every member, in order of enrolment."""
        return [member for page in self._pages(partial(self._calls.members, task_id)) for member in page.members]

    def _pages(self, fetch: Callable[[str | None], Program[P]]) -> Iterator[P]:
        """Yield the pages of a list; fetch: requests the one that the last one names as `next`."""
        after: str | None = None
        while True:
            page = self._driver.run(fetch(after))
            yield page
            after = page.next
            if after is None:
                return

    def revoke_member(self, task_id: str, client_id: str) -> Member:
        """Revoke a membership permanently: its token, its place in later rounds, and its identity's right to enrol."""
        return self._driver.run(self._calls.revoke_member(task_id, client_id))

    def erase_member(self, task_id: str, client_id: str) -> Erasure:
        """Revoke a membership and erase the member: no row of the server names it afterwards.

        Sums with its contributions stay. While a round with the member is active, the result says which one it waits
        for.
        """
        return self._driver.run(self._calls.erase_member(task_id, client_id))

    def member_data(self, task_id: str, client_id: str) -> MemberExport:
        """Return everything that the server stores about a member, for the person that it belongs to."""
        return self._driver.run(self._calls.member_data(task_id, client_id))

    def rounds(self, task_id: str, after: int = 0, state: str | None = None) -> Iterator[RoundView]:
        """Yield the rounds after number `after` in order, fetched in pages; with `state`, only those in that state."""
        while True:
            page = self._driver.run(self._calls.rounds(task_id, after, state=state))
            yield from page.rounds
            if not page.more or not page.rounds:
                return
            after = page.rounds[-1].number

    def cohort(self, task_id: str, number: int) -> list[str]:
        """Return the ids of the clients in the cohort of round `number`. Members cannot see them."""
        return self._driver.run(self._calls.cohort(task_id, number)).clients

    def ledger(self, task_id: str) -> Iterator[LedgerEntry]:
        """Yield the sums that a task has released, in order of rounds, fetched in pages."""
        after = 0
        while True:
            page = self._driver.run(self._calls.ledger(task_id, after))
            yield from page.entries
            if not page.more or not page.entries:
                return
            after = page.entries[-1].round

    def watch(self, task_id: str, poll_seconds: float = 20.0) -> Iterator[RoundView]:
        """Yield the newest round each time it changes, until the task is no longer open.

        poll_seconds: length of one long poll, at most 30.
        """
        change: RoundChange | None = None
        while not isinstance(change, TaskEnded):
            change = self._driver.run(follow_rounds(self._calls, task_id, change, poll_seconds))
            if isinstance(change, RoundChanged):
                yield change.view

    def close(self) -> None:
        """Close all connections."""
        self._driver.close()
