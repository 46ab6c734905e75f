"""`hushrec-server task` and `hushrec-server invite`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer
from pydantic import ValidationError

from aggregator_service.clock import SystemClock
from aggregator_service.commands.common import CommandError, DatabaseUrl, DataDir, named_task, show, transaction
from aggregator_service.rounds.transactions import close_task
from aggregator_service.settings import Settings
from aggregator_service.tasks.revocations import store_revocations
from aggregator_service.tasks.tasks import create_invitation, create_task, list_tasks, plan_request, task_view
from protocols.errors import CodecError
from protocols.messages import InvitationRequest, OrganiserPin, Role, Schedule, TaskRequest, TaskView
from protocols.parameter_text.first_fault import first_fault
from protocols.parameter_text.named_values import named_values
from protocols.recipes.registry import RECIPES
from protocols.sums.registry import MECHANISMS

__all__ = ["invite", "tasks"]

tasks = typer.Typer(help="Create, list, show and close tasks.", no_args_is_help=True, rich_markup_mode=None)


def _schedule(pairs: list[str]) -> Schedule:
    try:
        return Schedule.model_validate(named_values(pairs))
    except ValidationError as error:
        raise CommandError(f"schedule: {first_fault(error, Schedule.model_fields)}") from None


def _organiser(key: str | None, scope: str) -> OrganiserPin | None:
    if key is None:
        return None
    try:
        return OrganiserPin(key=key, scope=scope)
    except (ValidationError, CodecError):
        raise CommandError("--organiser is not a public key: pass what hushrec organiser init printed") from None


@tasks.command("create")
def task_create(
    name: Annotated[str, typer.Argument(help="Name of the task.")],
    recipe: Annotated[str, typer.Option(help=f"What is summed: {', '.join(sorted(RECIPES))}.")],
    mechanism: Annotated[str, typer.Option(help=f"How it is summed: {', '.join(sorted(MECHANISMS))}.")] = "ckks",
    recipe_parameter: Annotated[
        list[str] | None, typer.Option("-r", help="Recipe parameter, name=value; repeatable.")
    ] = None,
    mechanism_parameter: Annotated[
        list[str] | None, typer.Option("-m", help="Mechanism parameter, name=value; repeatable.")
    ] = None,
    schedule: Annotated[list[str] | None, typer.Option("-s", help="Schedule entry, name=value; repeatable.")] = None,
    data_set: Annotated[
        str | None, typer.Option(help="Label of the data set; give tasks over the same data the same label.")
    ] = None,
    organiser: Annotated[
        str | None, typer.Option(help="Public key of the organiser that certifies the members: hushrec organiser init.")
    ] = None,
    scope: Annotated[
        str | None,
        typer.Option(help="Scope of the organiser's certificates.", show_default="the task's name"),
    ] = None,
    data_dir: DataDir = None,
    database_url: DatabaseUrl = None,
) -> None:
    """Create a task and print it as JSON, with its plan and warnings.

    Example: hushrec-server task create movies --recipe colr -r items=3706 -r rank=4 -s cohort_size=20 -s rounds=100
    """
    request = TaskRequest.model_validate(
        {
            "name": name,
            "recipe": {"name": recipe, "parameters": named_values(recipe_parameter or [])},
            "mechanism": {"name": mechanism, "parameters": named_values(mechanism_parameter or [])},
            "schedule": _schedule(schedule or []),
            "data_set": data_set,
            "organiser": _organiser(organiser, scope or name),
        }
    )
    plan = plan_request(request)
    with transaction(data_dir, database_url) as session:
        task = create_task(session, request, plan, SystemClock().now())
        view = task_view(session, task, Settings.load().signatures)
    show(view.model_dump(mode="json"))


@tasks.command("list")
def task_list(data_dir: DataDir = None, database_url: DatabaseUrl = None) -> None:
    """List all tasks: name, id, state, completed rounds and members.

    Example: hushrec-server task list --data-dir /var/lib/hushrec
    """
    with transaction(data_dir, database_url) as session:
        views = [task_view(session, task) for task in list_tasks(session)]
    for view in views:
        done = f"{view.completed_rounds}/{view.schedule.rounds} rounds"
        typer.echo(f"{view.name}  {view.task_id}  {view.state}  {done}  {_members(view)}")


def _members(view: TaskView) -> str:
    """Return the member count; for tasks with several device groups also how many members of each can contribute."""
    if len(view.able_members) == 1:
        return f"{view.members} members"
    return f"{view.members} members, able to contribute by group: {', '.join(map(str, view.able_members))}"


@tasks.command("show")
def task_show(
    task: Annotated[str, typer.Argument(help="Name or id of the task.")],
    data_dir: DataDir = None,
    database_url: DatabaseUrl = None,
) -> None:
    """Print a task as JSON, with its plan, counts and warnings.

    Example: hushrec-server task show movies
    """
    with transaction(data_dir, database_url) as session:
        view = task_view(session, named_task(session, task), Settings.load().signatures)
    show(view.model_dump(mode="json"))


@tasks.command("revocations")
def task_revocations(
    task: Annotated[str, typer.Argument(help="Name or id.")],
    file: Annotated[Path, typer.Argument(help="Signed list, from hushrec organiser revoke.")],
    data_dir: DataDir = None,
    database_url: DatabaseUrl = None,
) -> None:
    """Publish the organiser's revocation list for a task, and end the memberships that it revokes.

    Example: hushrec-server task revocations movies movies.revoked
    """
    body = file.read_bytes()
    with transaction(data_dir, database_url) as session:
        ended = store_revocations(session, named_task(session, task), body, SystemClock().now())
    typer.echo(f"{ended} memberships ended")


@tasks.command("close")
def task_close(
    task: Annotated[str, typer.Argument(help="Name or id of the task.")],
    data_dir: DataDir = None,
    database_url: DatabaseUrl = None,
) -> None:
    """Close a task permanently: its active round fails and the contributions are deleted.

    Example: hushrec-server task close movies
    """
    with transaction(data_dir, database_url) as session:
        row = named_task(session, task)
        close_task(session, row, SystemClock().now())
        typer.echo(f"{row.name}  {row.id}  {row.state}")


def invite(
    task: Annotated[str, typer.Argument(help="Name or id of the task.")],
    role: Annotated[
        Literal["member", "holder"], typer.Option(help="holder: creates the task's keys; a task has one holder.")
    ] = "member",
    uses: Annotated[int, typer.Option(help="Number of clients that can use it.")] = 1,
    expires_seconds: Annotated[
        float, typer.Option(help="Seconds until it expires; the default is one day.")
    ] = 86_400.0,
    data_dir: DataDir = None,
    database_url: DatabaseUrl = None,
) -> None:
    """Create an invitation and print it once. Give it to the clients over a channel they trust.

    Example: hushrec-server invite movies --uses 100
    """
    as_role: Role = role
    request = InvitationRequest(role=as_role, uses=uses, expires_seconds=expires_seconds)
    with transaction(data_dir, database_url) as session:
        typer.echo(create_invitation(session, named_task(session, task), request, SystemClock().now()).invitation)
