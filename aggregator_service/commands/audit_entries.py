"""`hushrec-server audit`: what operators did, and which attempts were refused."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Annotated, Final, Literal

import typer
from typer import Option

from aggregator_service.access.audit_trail import Wanted, audit_page
from aggregator_service.clock import SystemClock
from aggregator_service.commands.options import DatabaseUrl, DataDir, database_in_use
from aggregator_service.storage.database import Database
from protocols.messages import AuditEntry

_PAGE: Final = 1000
_DAY: Final = 86_400.0


def audit(
    days: Annotated[float | None, Option(min=0.0, help="Only the last so many days.", show_default="all")] = None,
    operator: Annotated[str, Option(help="Only what this operator did, or was refused.", show_default="all")] = "",
    task: Annotated[str, Option(help="Only what was done to this task; name or id.", show_default="all")] = "",
    outcome: Annotated[
        Literal["", "done", "refused"], Option(help="Only actions, or only refused attempts.", show_default="both")
    ] = "",
    json_lines: Annotated[
        bool, Option("--json", help="Print one JSON object a line, with all that is stored.")
    ] = False,
    data_dir: DataDir = None,
    database_url: DatabaseUrl = None,
) -> None:
    """Print who did what, when and from where, oldest first; refused attempts are counted by day and address.

    Example: hushrec-server audit --days 30 --json > audit.jsonl
    """
    since = None if days is None else SystemClock().now() - days * _DAY
    with database_in_use(data_dir, database_url) as database:
        for entry in _entries(database, Wanted(operator, task, outcome, since)):
            typer.echo(entry.model_dump_json() if json_lines else line(entry))


def _entries(database: Database, wanted: Wanted) -> Iterator[AuditEntry]:
    after: int | None = 0
    while after is not None:
        with database.read() as session:
            page = audit_page(session, wanted, _PAGE, after=after)
        yield from page.entries
        after = page.next


def line(entry: AuditEntry) -> str:
    """Return an entry as a line for a terminal: time, operator, how and from where, action, and what it was done to."""
    at = datetime.fromtimestamp(entry.until, UTC).strftime("%Y-%m-%d %H:%M:%SZ")
    what = entry.action if entry.refused is None else f"refused {entry.times}x ({entry.refused}): {entry.action}"
    about = [entry.task_name or entry.task_id or "", entry.target or ""]
    about += [f"{name}={value}" for name, value in entry.details.items()]
    where = f"{entry.via} from {entry.address}" if entry.address else entry.via
    return "  ".join([at, entry.operator or "(no valid token)", where, what, " ".join(filter(None, about))]).rstrip()
