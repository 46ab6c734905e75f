"""`hushrec-server task`, `invite`, `round` and `diagram`. `task_creation` has creating a task, `task_advice` advice."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from sqlalchemy.orm import Session
from typer import Argument, Option

from aggregator_service.access.audit_trail import Actor, record
from aggregator_service.clock import SystemClock
from aggregator_service.commands.options import (
    AsJson,
    CommandError,
    DatabaseUrl,
    DataDir,
    TaskName,
    as_actor,
    command_group,
    json_array,
    named_task,
    on_database,
)
from aggregator_service.commands.task_advice import task_advise
from aggregator_service.commands.task_creation import task_create
from aggregator_service.round_states import diagram
from aggregator_service.rounds.interventions import abort_round, close_task, extend_round, resume_task
from aggregator_service.settings import Settings
from aggregator_service.storage.round_rows import find_round, refusals_by_reason
from aggregator_service.storage.stage_rows import count_of
from aggregator_service.tasks.deletion import delete_task
from aggregator_service.tasks.joining import store_revocations
from aggregator_service.tasks.ledger import measurements, privacy_view
from aggregator_service.tasks.plans import most_sums
from aggregator_service.tasks.task_views import create_invitation, list_tasks, task_view
from protocols.messages import Extension, InvitationRequest, Role, TaskView

tasks = command_group("Create, list, show, close, resume and delete tasks.")
tasks.command("create")(task_create)
tasks.command("advise")(task_advise)


@tasks.command("list")
@on_database
def task_list(session: Session, as_json: AsJson = False) -> str:
    """List all tasks: name, id, state, sums released of all that it can release, and members.

    Example: hushrec-server task list --data-dir /var/lib/hushrec
    """
    rows = list_tasks(session)
    views = [task_view(session, task, now=SystemClock().now()) for task in rows]
    if as_json:
        return json_array(views)
    return "\n".join(
        f"{view.name}  {view.task_id}  {view.state}  {view.completed_rounds}/{most_sums(row)} sums  {_members(view)}"
        for row, view in zip(rows, views, strict=True)
    )


def _members(view: TaskView) -> str:
    """Return the member count; for tasks with several device groups also how many members of each can contribute."""
    if len(view.able_members) == 1:
        return f"{view.members} members"
    return f"{view.members} members, able to contribute by group: {', '.join(map(str, view.able_members))}"


@tasks.command("show")
@on_database
def task_show(session: Session, task: TaskName) -> str:
    """Print a task as JSON, with its plan, counts and warnings, and its curve where the server can open the sums.

    With a privacy block, "spent" says what it promises and how much is spent of it.

    Example: hushrec-server task show movies
    """
    row = named_task(session, task)
    view = task_view(session, row, Settings.load().signatures, SystemClock().now())
    shown = view.model_dump(mode="json")
    if view.evaluation is not None:
        shown["curve"] = measurements(session, row)
    if view.privacy is not None:
        shown["spent"] = privacy_view(session, row).model_dump(mode="json", exclude={"terms"})
    return json.dumps(shown, indent=2)


@tasks.command("revocations")
def task_revocations(
    task: TaskName,
    file: Annotated[Path, Argument(help="Signed list, from hushrec organiser revoke.")],
    data_dir: DataDir = None,
    database_url: DatabaseUrl = None,
) -> None:
    """Publish the organiser's revocation list for a task, and end the memberships that it revokes.

    Example: hushrec-server task revocations movies movies.revoked
    """
    body = file.read_bytes()

    def work(session: Session, actor: Actor) -> int:
        return store_revocations(session, named_task(session, task), body, actor)

    ended = as_actor("task revocations", data_dir, database_url, work)
    typer.echo(f"{ended} memberships ended")


@tasks.command("close")
@on_database
def task_close(session: Session, actor: Actor, task: TaskName) -> str:
    """Close a task permanently, also a failed one: its active round fails and the contributions are deleted.

    Example: hushrec-server task close movies
    """
    row = named_task(session, task)
    close_task(session, row, actor)
    return f"{row.name}  {row.id}  {row.state}"


@tasks.command("delete")
@on_database
def task_delete(
    session: Session,
    actor: Actor,
    task: TaskName,
    yes: Annotated[
        bool, Option("--yes", help="Delete it; without this option, only say what would be deleted.")
    ] = False,
) -> str:
    """Delete a task that has ended: its model, aggregates, rounds and members. It cannot be undone.

    Digests stay: of its ledger of released sums, and, if it has a data set label,
    of whose data its sums counted, because later sums over the same data must not
    differ from them by a few clients.

    Example: hushrec-server task delete movies --yes
    """
    row = named_task(session, task)
    if row.state == "open":
        raise CommandError(f"task {row.name!r} is open: close it first, with hushrec-server task close {row.name}")
    view = task_view(session, row)
    if not yes:
        return (
            f"{row.name} has {view.members} members, {view.completed_rounds} released sums and its model; to delete "
            f"them: hushrec-server task delete {row.name} --yes"
        )
    done = delete_task(session, row, actor)
    lines = [
        f"deleted {row.name}: {done.members} members, {done.blobs} blobs",
        f"kept of its ledger of {done.released_sums} sums: sha-256 {done.ledger_digest}",
    ]
    if done.kept_sets:
        lines.append(
            f"kept as digests, for later tasks over data set {row.data_set!r}: whose data {done.kept_sets} sums counted"
        )
    return "\n".join(lines)


@tasks.command("retention")
@on_database
def task_retention(
    session: Session,
    actor: Actor,
    settings: Settings,
    task: TaskName,
    keep_rounds: Annotated[
        int | None, Option(min=0, help="Newest rounds to keep whole; 0: as the server's setting says.")
    ] = None,
    ended_days: Annotated[
        int | None, Option(min=-1, help="Days to keep the task after its end; -1: as the server's setting says.")
    ] = None,
) -> str:
    """Show how long a task's data are kept, or change it for this task.

    Example: hushrec-server task retention movies --keep-rounds 20 --ended-days 30
    """
    row = named_task(session, task)
    if keep_rounds is not None:
        row.keep_rounds = keep_rounds or None
    if ended_days is not None:
        row.ended_days = None if ended_days < 0 else ended_days
    if keep_rounds is not None or ended_days is not None:
        changed = {"keep_rounds": keep_rounds, "ended_days": ended_days}
        record(session, actor, "retention changed", task=row, target=None, **changed)
    days = settings.ended_days if row.ended_days is None else row.ended_days
    after = "until an operator deletes it" if days is None else f"for {days} days after its end"
    return f"{row.name}  newest {row.keep_rounds or settings.keep_rounds} rounds whole  kept {after}"


@tasks.command("resume")
@on_database
def task_resume(session: Session, actor: Actor, task: TaskName) -> str:
    """Open a failed task again: its next round computes the sum at which it failed.

    Example: hushrec-server task resume movies
    """
    row = resume_task(session, named_task(session, task).id, actor)
    return f"{row.name}  {row.id}  {row.state}"


@on_database
def invite(
    session: Session,
    actor: Actor,
    task: TaskName,
    role: Annotated[
        Role,
        Option(
            help="holder: creates the task's keys; a task has one holder. committee: takes masks off one-shot sums."
        ),
    ] = "member",
    uses: Annotated[int, Option(help="Number of clients that can use it.")] = 1,
    expires_seconds: Annotated[float, Option(help="Seconds until it expires; the default is one day.")] = 86_400.0,
) -> str:
    """Create an invitation and print it once. Give it to the clients over a channel they trust.

    Example: hushrec-server invite movies --uses 100
    """
    request = InvitationRequest(role=role, uses=uses, expires_seconds=expires_seconds)
    return create_invitation(session, named_task(session, task), request, actor).invitation


# --- rounds -----------------------------------------------------------------------------------------------------------

rounds = command_group("Show a round, extend or abort an active one.")

Number = Annotated[int, Argument(help="Number of the round, counted from 1.")]


@rounds.command("show")
@on_database
def round_show(session: Session, task: TaskName, number: Number) -> str:
    """Show a round's state, its contributions, and the clients that refused it, by reason.

    Example: hushrec-server round show movies 7
    """
    row = named_task(session, task)
    round_ = find_round(session, row.id, number)
    if round_ is None:
        raise CommandError(f"task {row.name!r} has no round {number}")
    counts = f"{count_of(session, round_.id, 'contribute')} of {round_.cohort} contributions"
    failure = f": {round_.failure}" if round_.failure else ""
    refused = refusals_by_reason(session, [round_.id]).get(round_.id, {})
    lines = [f"refused because of {reason}: {clients}" for reason, clients in refused.items()]
    return "\n".join([f"{row.name}  round {number}  {round_.state}{failure}  {counts}", *lines])


@rounds.command("extend")
@on_database
def round_extend(
    session: Session,
    actor: Actor,
    task: TaskName,
    number: Number,
    seconds: Annotated[float, Option(help="Seconds to add to the deadline of the current state.")],
) -> str:
    """Move the deadline of the state that a round is in.

    Example: hushrec-server round extend movies 7 --seconds 300
    """
    extension, row = Extension(seconds=seconds), named_task(session, task)
    _, round_ = extend_round(session, row.id, number, extension.seconds, actor)
    return f"{row.name}  round {number}  {round_.state}  {round_.deadline - actor.at:.0f} seconds left"


@rounds.command("abort")
@on_database
def round_abort(session: Session, actor: Actor, task: TaskName, number: Number) -> str:
    """Abort an active round: it fails and its data is deleted; the task continues with its next round.

    Example: hushrec-server round abort movies 7
    """
    row = named_task(session, task)
    _, round_ = abort_round(session, row.id, number, actor)
    return f"{row.name}  round {number}  {round_.state}: {round_.failure}"


def show_diagram() -> None:
    """Print the states and transitions of a round as a Mermaid diagram.

    Example: hushrec-server diagram
    """
    typer.echo(diagram())
