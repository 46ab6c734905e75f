"""The operator's side of the API: create tasks, invite, watch, close. For commands, demos and benchmarks."""

from __future__ import annotations

from collections.abc import Iterator
from types import TracebackType
from typing import Any, Self

from client_sdk.api.calls import ApiCalls
from client_sdk.api.drivers import SyncDriver
from client_sdk.errors import NotFound
from client_sdk.participation.enroller import ClientOptions
from client_sdk.participation.events import TaskEnded
from client_sdk.participation.follow_rounds import RoundChange, RoundChanged, follow_rounds
from protocols.codec import b64encode
from protocols.errors import ParameterError
from protocols.messages import (
    Invitation,
    InvitationRequest,
    InvitationView,
    LedgerEntry,
    MechanismChoice,
    Member,
    OrganiserPin,
    RecipeChoice,
    Role,
    RoundView,
    Schedule,
    TaskRequest,
    TaskView,
)
from protocols.recipes.base import Recipe

__all__ = ["Operator", "task_request"]


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
) -> TaskRequest:
    """A `TaskRequest` from plain words; a recipe object brings its own parameters. `seed` (32 bytes) repeats a task.

    data_set: label of the data, where other tasks sum the same. organiser: who certifies the members.
    """
    if isinstance(recipe, str):
        choice = RecipeChoice(name=recipe, parameters=recipe_parameters or {})
    elif recipe_parameters:
        raise ParameterError("a recipe object brings its own parameters")
    else:
        choice = RecipeChoice(name=recipe.name, parameters=recipe.parameters.model_dump(mode="json"))
    return TaskRequest(
        name=name,
        recipe=choice,
        mechanism=MechanismChoice(name=mechanism, parameters=mechanism_parameters or {}),
        schedule=schedule or Schedule(),
        seed=None if seed is None else b64encode(seed),
        data_set=data_set,
        organiser=organiser,
    )


class Operator:
    """An operator at one server, by bearer token. It sees sizes, counts and states; no value."""

    def __init__(
        self, url: str, token: str, options: ClientOptions | None = None, driver: SyncDriver | None = None
    ) -> None:
        options = options or ClientOptions()
        self._calls = ApiCalls(url, token, options.retry)
        self._driver = driver or SyncDriver(options.timeouts)

    def __repr__(self) -> str:
        return f"<Operator at {self._calls.url}>"

    def create_task(self, request: TaskRequest) -> TaskView:
        """Create a task; `InvalidParameters` says what cannot work."""
        return self._driver.run(self._calls.create_task(request))

    def tasks(self) -> list[TaskView]:
        """Every task, newest first."""
        return self._driver.run(self._calls.tasks()).tasks

    def task(self, task: str) -> TaskView:
        """The task with that id, or the newest with that name."""
        try:
            return self._driver.run(self._calls.task(task))
        except NotFound:
            named = self._driver.run(self._calls.tasks(task)).tasks
            if not named:
                raise
            return named[0]

    def invite(
        self, task_id: str, uses: int = 1, role: Role = "member", expires_seconds: float = 86_400.0
    ) -> Invitation:
        """An invitation for `uses` clients; hand it out over a channel they trust."""
        request = InvitationRequest(role=role, uses=uses, expires_seconds=expires_seconds)
        return self._driver.run(self._calls.invite(task_id, request))

    def invitations(self, task_id: str) -> Iterator[InvitationView]:
        """A task's invitations, in the order they were made, fetched in pages."""
        after: str | None = None
        while True:
            page = self._driver.run(self._calls.invitations(task_id, after))
            yield from page.invitations
            after = page.next
            if after is None:
                return

    def revoke_invitation(self, task_id: str, invitation_id: str) -> InvitationView:
        """Take an invitation back: nobody enrols with it any more, and those who have remain members."""
        return self._driver.run(self._calls.revoke_invitation(task_id, invitation_id))

    def close_task(self, task_id: str) -> TaskView:
        """Close a task; an open round fails."""
        return self._driver.run(self._calls.close_task(task_id))

    def extend_round(self, task_id: str, number: int, seconds: float) -> RoundView:
        """Give the stage that a round is in `seconds` more; `Conflict` when it waits for no client any more."""
        return self._driver.run(self._calls.extend_round(task_id, number, seconds))

    def abort_round(self, task_id: str, number: int) -> RoundView:
        """End a round under way as failed; the task goes on with its next one. `Conflict` when it has ended."""
        return self._driver.run(self._calls.abort_round(task_id, number))

    def members(self, task_id: str) -> list[Member]:
        """Every member, in order of enrolment."""
        found: list[Member] = []
        after: str | None = None
        while True:
            page = self._driver.run(self._calls.members(task_id, after))
            found += page.members
            after = page.next
            if after is None:
                return found

    def revoke_member(self, task_id: str, client_id: str) -> Member:
        """Void a membership for good: its token, its place in later rounds, another enrolment of its identity."""
        return self._driver.run(self._calls.revoke_member(task_id, client_id))

    def rounds(self, task_id: str, after: int = 0, state: str | None = None) -> Iterator[RoundView]:
        """Rounds in order, fetched in pages."""
        while True:
            page = self._driver.run(self._calls.rounds(task_id, after, state=state))
            yield from page.rounds
            if not page.more or not page.rounds:
                return
            after = page.rounds[-1].number

    def ledger(self, task_id: str) -> Iterator[LedgerEntry]:
        """The sums that a task has released, fetched in pages."""
        after = 0
        while True:
            page = self._driver.run(self._calls.ledger(task_id, after))
            yield from page.entries
            if not page.more or not page.entries:
                return
            after = page.entries[-1].round

    def watch(self, task_id: str, poll_seconds: float = 20.0) -> Iterator[RoundView]:
        """The newest round each time it changes, until the task is no longer open."""
        change: RoundChange | None = None
        while not isinstance(change, TaskEnded):
            change = self._driver.run(follow_rounds(self._calls, task_id, change, poll_seconds))
            if isinstance(change, RoundChanged):
                yield change.view

    def close(self) -> None:
        """Close the connections."""
        self._driver.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()
