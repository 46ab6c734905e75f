"""What the pages show of tasks, rounds and the server."""

from __future__ import annotations

import platform
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from time import perf_counter
from typing import Final, Literal

from sqlalchemy import Row, case, false, func, or_, select
from sqlalchemy.orm import Session

from aggregator_service.dashboard.tallies import Tally, tallies
from aggregator_service.dashboard.words import Series, byte_count, quality
from aggregator_service.observability.clocks import ClockWatch
from aggregator_service.round_states import ACTIVE
from aggregator_service.services import Services
from aggregator_service.settings import Signatures
from aggregator_service.storage.growth import growth
from aggregator_service.storage.round_rows import waiting_contributions
from aggregator_service.storage.schema import ChunkRow, ClientRow, InvitationRow, RoundRow, SignInRow, TaskRow
from aggregator_service.tasks.committee_keys import committee_size, committee_view
from aggregator_service.tasks.ledger import privacy_view
from aggregator_service.tasks.plans import most_sums
from aggregator_service.tasks.task_views import task_view
from protocols.messages import CommitteeView, TaskView
from protocols.messages.privacy import PrivacyView

ROUNDS_SHOWN: Final = 25


@dataclass(frozen=True)
class TaskFacts:
    """A task, its rounds (newest first), its member counts, and the metrics its recipe reports."""

    row: TaskRow
    view: TaskView
    rounds: Sequence[Tally]
    strip: Sequence[RoundRow]
    older: int | None
    newest: bool
    members: Row[int, int, int, int]
    """Counts of those who are enrolled, revoked, retired (left the task permanently) and waiting (for keys)."""
    invited: Row[int, int, int]
    """Uses of the invitations: all places, those taken, and those still free."""
    quality: Sequence[Series]
    committee: CommitteeView | None = None
    """None if the mechanism has none."""
    privacy: PrivacyView | None = None
    """None without a privacy block."""
    sums: int = 0
    """How many the task can release at most."""
    ends_in: float | None = None
    """Seconds until then at the pace of the newest rounds; None while that is not known, and once the task is over."""


_PACE: Final = 20
"""Newest completed rounds whose pace counts."""


def _ends_in(session: Session, task: TaskRow, sums: int, now: float) -> float | None:
    """Return the seconds until the last sum, if rounds go on as the newest ones did; failed ones take their time."""
    released = select(RoundRow.released_at).where(RoundRow.task_id == task.id, RoundRow.state == "complete")
    times = [at for at in session.scalars(released.order_by(RoundRow.number.desc()).limit(_PACE)) if at is not None]
    if task.state != "open" or len(times) < 2:
        return None
    pace = max((times[0] - times[-1]) / (len(times) - 1), 0.0)
    return max(0.0, max(0, sums - task.completed_rounds) * pace - (now - times[0]))


def task_facts(
    session: Session, task: TaskRow, now: float, before: int | None = None, signatures: Signatures = "required"
) -> TaskFacts:
    """Return the facts with one page of rounds: the newest, or those numbered below `before`.

    now: seconds since the epoch. The number of queries does not depend on the number of clients.
    """
    mine = select(RoundRow).where(RoundRow.task_id == task.id).order_by(RoundRow.number.desc())
    wanted = mine if before is None else mine.where(RoundRow.number < before)
    rows = session.scalars(wanted.limit(ROUNDS_SHOWN + 1)).all()
    sums = most_sums(task)
    return TaskFacts(
        row=task,
        view=task_view(session, task, signatures, now),
        rounds=tallies(session, rows[:ROUNDS_SHOWN]),
        strip=session.scalars(mine.limit(60)).all()[::-1],
        older=rows[ROUNDS_SHOWN - 1].number if len(rows) > ROUNDS_SHOWN else None,
        newest=before is None,
        members=_members(session, task),
        invited=_invited(session, task, now),
        quality=quality(session, task.id),
        committee=committee_view(session, task) if committee_size(task) else None,
        privacy=None if task.privacy is None else privacy_view(session, task),
        sums=sums,
        ends_in=_ends_in(session, task, sums, now),
    )


def _members(session: Session, task: TaskRow) -> Row[int, int, int, int]:
    active = ClientRow.revoked_at.is_(None) & (ClientRow.role != "committee")
    left = ClientRow.retired_in.is_not(None) | ClientRow.left_data_in.is_not(None)
    unkeyed = ClientRow.envelope_key.is_(None) & (ClientRow.role == "member") if task.needs_keyring else false()
    query = select(
        func.count().filter(active).label("enrolled"),
        func.count().filter(ClientRow.revoked_at.is_not(None)).label("revoked"),
        func.count().filter(active & left).label("retired"),
        func.count().filter(active & unkeyed).label("waiting"),
    )
    return session.execute(query.where(ClientRow.task_id == task.id)).one()


def _invited(session: Session, task: TaskRow, now: float) -> Row[int, int, int]:
    row = InvitationRow
    usable = (row.expires_at > now) & row.revoked_at.is_(None)
    query = select(
        func.coalesce(func.sum(row.uses), 0).label("places"),
        func.coalesce(func.sum(row.used), 0).label("taken"),
        func.coalesce(func.sum(row.uses - row.used).filter(usable), 0).label("free"),
    )
    return session.execute(query.where(row.task_id == task.id)).one()


TASKS_SHOWN: Final = 20


@dataclass(frozen=True)
class TaskLine:
    """One task: its row, the most sums that it can release, number of members and newest round."""

    task: TaskRow
    sums: int
    members: int
    current: Tally | None


@dataclass(frozen=True)
class Overview:
    """One page of tasks (open ones first, then the newest), the number of tasks by state, and the page number."""

    lines: list[TaskLine]
    states: dict[str, int]
    page: int
    more: bool
    search: str = ""
    state: str = ""
    """Only tasks in this state, whose name, recipe, mechanism or data set has this text; "" for all."""
    found: int = 0
    """How many these are."""


def overview(session: Session, page: int = 1, search: str = "", state: str = "") -> Overview:
    """Return page `page` (from 1) of the tasks. Makes nine queries, independent of the number of tasks and clients."""
    first = case((TaskRow.state == "open", 0), else_=1)
    query = select(TaskRow).order_by(first, TaskRow.created_at.desc(), TaskRow.id)
    if search:
        named = (TaskRow.name, TaskRow.recipe_name, TaskRow.mechanism_name, TaskRow.data_set)
        query = query.where(or_(*(column.icontains(search, autoescape=True) for column in named)))
    if state:
        query = query.where(TaskRow.state == state)
    matching = session.execute(select(func.count()).select_from(query.order_by(None).subquery())).scalar_one()
    rows = session.scalars(query.offset((page - 1) * TASKS_SHOWN).limit(TASKS_SHOWN + 1)).all()
    tasks, ids = rows[:TASKS_SHOWN], [row.id for row in rows[:TASKS_SHOWN]]
    newest = select(func.max(RoundRow.id)).where(RoundRow.task_id.in_(ids)).group_by(RoundRow.task_id)
    current = {
        tally.round.task_id: tally
        for tally in tallies(session, session.scalars(select(RoundRow).where(RoundRow.id.in_(newest))))
    }
    member = select(ClientRow.task_id, func.count()).where(ClientRow.revoked_at.is_(None), ClientRow.task_id.in_(ids))
    members = {row[0]: row[1] for row in session.execute(member.group_by(ClientRow.task_id))}
    counted = session.execute(select(TaskRow.state, func.count()).group_by(TaskRow.state))
    lines = [TaskLine(task, most_sums(task), members.get(task.id, 0), current.get(task.id)) for task in tasks]
    states = {row[0]: row[1] for row in counted}
    return Overview(lines, states, page, len(rows) > TASKS_SHOWN, search, state, matching)


Level = Literal["ok", "attention", "bad"]
_LOW_SPACE: Final = 0.1
_LIBRARIES: Final = ("fastapi", "uvicorn", "sqlalchemy", "numpy", "cryptography", "tenseal")


@dataclass(frozen=True)
class Check:
    """The result of checking one component."""

    name: str
    level: Level
    text: str
    timing: str = ""
    """Response time, which differs at each check."""


@dataclass(frozen=True)
class Stored:
    """What is stored: (what, bytes, growth a day) in all, and (kind, bytes) of the blobs and bodies."""

    measured_at: float
    totals: list[tuple[str, str, str]]
    kinds: list[tuple[str, str]]


@dataclass(frozen=True)
class HealthFacts:
    """Component checks, queue lengths, what is stored, and library versions, as (name, value) pairs."""

    checks: list[Check]
    queue: list[tuple[str, str]]
    stored: Stored | None
    versions: list[tuple[str, str]]


def health_facts(services: Services) -> HealthFacts:
    """Check all components now. A component that fails gives a `Check` of level "bad"; nothing is raised."""
    database = _check("Database", services.database.engine.dialect.name, services.database.ping)
    is_s3 = services.settings.blob_location.startswith("s3:")
    blobs = _check("Blob store", "S3" if is_s3 else "directory", services.blobs.check)
    queue: list[tuple[str, str]] = []
    stored = None
    if database.level == "ok":
        with services.database.read() as session:
            queue, stored = _queue(session), _stored(session)
    checks = [database, blobs, _engine(services), _clock(services.clocks), _disk(services.settings.data_dir)]
    versions = [("HushRec", metadata.version("hushrec")), ("Python", platform.python_version())]
    return HealthFacts(checks, queue, stored, versions + [(name, metadata.version(name)) for name in _LIBRARIES])


def _stored(session: Session) -> Stored | None:
    """Return what was stored at the last measurement, and by how much it grows; None before the first one."""
    found = growth(session)
    if found is None:
        return None
    kinds = [(kind, byte_count(size)) for kind, size in found.kinds.items() if size]
    lines = [("database", byte_count(found.database), found.database_a_day)]
    lines.append(("blobs and bodies", byte_count(found.blobs), found.blobs_a_day))
    return Stored(found.measured_at, [(name, size, _rate(a_day)) for name, size, a_day in lines], kinds)


def _rate(a_day: float | None) -> str:
    if a_day is None:
        return "growth is known after an hour"
    return f"{'+' if a_day >= 0 else '-'}{byte_count(abs(a_day))} a day"


def _check(name: str, kind: str, work: Callable[[], object]) -> Check:
    started = perf_counter()
    try:
        work()
    except Exception as error:
        return Check(name, "bad", f"{kind}: failed ({type(error).__name__}); see the log")
    return Check(name, "ok", kind, f", answers in {1000 * (perf_counter() - started):.0f} ms")


def _engine(services: Services) -> Check:
    remark, text = services.engine.remark, "another process drives the rounds; this one takes over if it stops"
    if services.metrics.leading:
        text = "this process drives the rounds"
    return Check("Round engine", "attention" if remark else "ok", remark or text)


def _clock(clocks: ClockWatch) -> Check:
    level: Level = "bad" if clocks.too_far else "attention" if clocks.remark else "ok"
    return Check("Clock", level, clocks.remark or "agrees with the database's")


def _disk(data_dir: Path) -> Check:
    try:
        usage = shutil.disk_usage(data_dir)
    except OSError as error:
        return Check("Disk", "bad", f"cannot read the data directory ({type(error).__name__})")
    text = f"{byte_count(usage.free)} free of {byte_count(usage.total)} in the data directory"
    return Check("Disk", "attention" if usage.free < _LOW_SPACE * usage.total else "ok", text)


def _queue(session: Session) -> list[tuple[str, str]]:
    uploads = select(ChunkRow.round_id, ChunkRow.client_id).distinct().subquery()
    counts = {
        "open tasks": select(func.count()).select_from(TaskRow).where(TaskRow.state == "open"),
        "active rounds": select(func.count()).select_from(RoundRow).where(RoundRow.state.in_(ACTIVE)),
        "contributions to fold": waiting_contributions(),
        "incomplete uploads": select(func.count()).select_from(uploads),
        "browsers signed in": select(func.count()).select_from(SignInRow),
    }
    return [(name, f"{session.execute(query).scalar_one():,}") for name, query in counts.items()]
