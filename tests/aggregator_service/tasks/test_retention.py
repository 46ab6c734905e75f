"""Old rounds are tidied up, ended tasks are deleted, revoked members are erased: the disk of a task has a bound."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import func, select

from aggregator_service.dashboard.member_list import member_list
from aggregator_service.dashboard.tallies import tallies
from aggregator_service.problems import Problem
from aggregator_service.rounds.interventions import close_task
from aggregator_service.settings import Settings
from aggregator_service.storage.database import Database
from aggregator_service.storage.growth import growth, measure
from aggregator_service.storage.round_rows import list_rounds
from aggregator_service.storage.schema import (
    Base,
    ClientRow,
    CohortRow,
    ContributionRow,
    PastSummandRow,
    RoundRow,
    SnapshotRow,
    TaskRow,
)
from aggregator_service.storage.stores import collect_orphans, named_blobs
from aggregator_service.tasks.deletion import delete_task
from aggregator_service.tasks.retention import delete_expired
from protocols.recipes.colr import FedMF
from tests.support.api import Api, aggregator_inside, checked, contribute, detail, services
from tests.support.masked import enrol_masked, masked_task, play
from tests.support.world import World, an_operator, sum_again

DAY = 86_400.0


@pytest.fixture
def api(tmp_path: Path) -> Iterator[Api]:
    with aggregator_inside(tmp_path / "data", inline_bytes=0) as inside:
        yield inside


def rounds_of(world: World, task: str, rounds: int) -> None:
    """Let all members contribute to so many rounds."""
    for _ in range(rounds):
        world.run(task)
        world.contribute(task, *world.cohort(task))
        world.run(task)


def count(database: Database, row: type[Base]) -> int:
    with database.read() as session:
        return session.execute(select(func.count()).select_from(row)).scalar_one()


def settings(**changes: Any) -> Settings:
    return Settings(**{"keep_rounds": 5, **changes})


def test_rows_and_blobs_of_a_task_have_a_bound(world: World) -> None:
    """After 15 rounds and after 45 there are as many of them, but for the one row of each round."""
    task = world.task(4, cohort_size=4, rounds=1000)
    seen = []
    for _ in range(3):
        rounds_of(world, task, 15)
        delete_expired(world.database, settings(), world.clock.now())
        contributions, cohorts = count(world.database, ContributionRow), count(world.database, CohortRow)
        snapshots = count(world.database, SnapshotRow)
        seen.append((contributions, cohorts, len(list(world.blobs.keys())), snapshots))
    assert seen[0] == seen[1] == seen[2]
    assert seen[0][:2] == (4 * 4, 4 * 5)  # the newest five rounds, of which the last one is open
    with world.database.read() as session:
        kept = session.scalars(select(RoundRow.number).where(RoundRow.aggregate_key.is_not(None))).all()
        digests = session.scalars(select(RoundRow.aggregate_digest).where(RoundRow.state == "complete")).all()
    assert (len(digests), all(digests)) == (45, True)
    assert 5 <= len(kept) <= 9
    assert max(kept) == 45


def test_counts_ledgers_and_pages_stay_and_a_newcomer_catches_up(api: Api) -> None:
    task = api.create_task("tidied", cohort=3, rounds=12, min_clients=2)
    members = task.enrol(3)
    for number in range(1, 10):
        task.wait_round(number, "collecting")
        contribute(members, number, 1.0)
        task.wait_round(number, "complete")
    before = [{**view, "seconds_left": None} for view in task.found("rounds", limit=9)["rounds"]]
    ledger, database = task.found("ledger"), services(api).database
    delete_expired(database, settings(keep_rounds=2), services(api).clock.now())
    assert [{**view, "seconds_left": None} for view in task.found("rounds", limit=9)["rounds"]] == before
    assert {view["received"] for view in before} == {3}
    assert task.found("ledger") == ledger
    own = members[0].found("members/me/ledger").json()
    assert (own["complete_after"], [entry["round"] for entry in own["entries"]]) == (8, [9])
    assert "no longer kept" in detail(api.http.get(f"{task.path}/rounds/1/aggregate", headers=api.operator), 404)
    latest = task.found("snapshots/latest")["round"]
    assert latest == 9
    with database.read() as session:
        rows = session.scalars(select(ClientRow).where(ClientRow.task_id == task.id)).all()
        assert {(row.past_contributions, row.times_asked) for row in rows} == {(8, 10)}
        assert {row.past_bytes for row in rows} == {8 * len(members[0].contribution(1, 1.0))}


def test_the_messages_of_masked_rounds_are_counted_before_they_go(api: Api) -> None:
    task = masked_task(api, "masked", 5, rounds=9)
    clients = enrol_masked(task, 5)
    play(task, clients)
    task.wait_round(1, "complete")
    task.wait_round(2, "advertising")
    checked(task.post("rounds/2/abort"))
    task.wait_round(3, "advertising")
    database = services(api).database

    def shown() -> list[Any]:
        with database.read() as session:
            return [
                (one.parts, one.funnel(), one.states())
                for one in tallies(session, list_rounds(session, task.id, 0, 2, None))
            ]

    def of_members() -> list[tuple[int, int]]:
        with database.read() as session:
            listed = member_list(session, session.get_one(TaskRow, task.id))
        return [(line.contributed, line.sent) for line in listed.lines]

    before, sent = shown(), of_members()
    assert before[0][0]["advertise"][0] == 5
    received = sum(size for parts, _, _ in before for _, size in parts.values())
    assert (sum(size for _, size in sent), {given for given, _ in sent}) == (received, {1})
    delete_expired(database, settings(keep_rounds=1), services(api).clock.now())
    assert json.dumps(shown(), default=str) == json.dumps(before, default=str)
    assert of_members() == sent
    with database.read() as session:
        assert session.get_one(TaskRow, task.id).tidied_upto == 2


def test_sets_of_survivors_stay_for_the_guards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of sums over the same survivors one set stays; of a sum of training none."""
    sum_again(monkeypatch, FedMF)
    with closing(World(tmp_path)) as world:
        task = world.task(6, cohort_size=6, min_clients=2, rounds=100)
        rounds_of(world, task, 12)
        delete_expired(world.database, settings(), world.clock.now())
        with world.database.read() as session:
            numbers = session.scalars(
                select(RoundRow.number).join(ContributionRow, ContributionRow.round_id == RoundRow.id).distinct()
            ).all()
        assert sorted(numbers) == list(range(9, 13))
        rounds_of(world, task, 1)  # the frozen cohort goes on
        assert world.round(task).number == 14


def test_a_deleted_task_leaves_only_digests_and_its_data_set_is_still_guarded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sum_again(monkeypatch, FedMF)
    with closing(World(tmp_path)) as world:
        keys = [bytes([index + 1] * 32) for index in range(5)]
        schedule = {"data_set": "films", "min_clients": 3, "rounds": 1}
        first = world.task({f".{n}": (keys[n], 0) for n in range(4)}, "first", cohort_size=4, **schedule)
        rounds_of(world, first, 1)
        assert world.row(first).state == "complete"
        second = world.task({f".{n}": (keys[n], 0) for n in range(5)}, "second", cohort_size=5, **schedule)
        with world.database.write() as session, pytest.raises(Problem, match="conflict"):
            delete_task(session, session.get_one(TaskRow, second), an_operator())
        with world.database.write() as session:
            done = delete_task(session, session.get_one(TaskRow, first), an_operator(5.0))
        assert (done.members, done.released_sums, done.kept_sets) == (4, 1, 1)
        assert count(world.database, PastSummandRow) == 4
        assert not [key for key in list(world.blobs.keys()) if first in key]
        assert first not in str(_everything(world.database, but={"past_tasks", "audit", "past_sums"}))
        rounds_of(world, second, 1)
        judged = world.rounds(second)[0].failure or ""
        assert "differ from those of an earlier sum by 1 clients" in judged


def _everything(database: Database, but: set[str]) -> list[Any]:
    with database.read() as session:
        return [
            dict(row)
            for table in Base.metadata.sorted_tables
            if table.name not in but
            for row in session.execute(select(table)).mappings()
        ]


def test_deleting_a_task_frees_everything_over_the_api(api: Api, tmp_path: Path) -> None:
    """With each kind of mechanism that leaves other rows; the member's token is void, and the name is free again."""
    task = masked_task(api, "gone", 5, rounds=9)
    clients = enrol_masked(task, 5)
    play(task, clients)
    task.wait_round(1, "complete")
    assert "close it first" in detail(api.http.delete(task.path, headers=api.operator), 409)
    task.close()
    done = checked(api.http.delete(task.path, headers=api.operator)).json()
    assert (done["members"], done["released_sums"], done["kept_sets"]) == (5, 1, 0)
    assert done["blobs"] > 0
    database = services(api).database
    assert not [
        (table.name, row)
        for table in Base.metadata.sorted_tables
        if table.name not in ("audit", "past_tasks", "operators", "storage", "sizes", "alembic_version", "sign_ins")
        for row in _rows(database, table.name)
    ]
    assert not [path for path in (tmp_path / "data" / "blobs").rglob("*") if path.is_file() and task.id in path.name]
    assert clients[0].get("").status_code in (401, 404)
    assert api.http.get(task.path, headers=api.operator).status_code == 404
    assert api.create_task("gone").id != task.id
    (entry,) = [one for one in api.found("/v1/audit")["entries"] if one["action"] == "task deleted"]
    assert (entry["task_name"], entry["details"]["members"]) == ("gone", 5)


def _rows(database: Database, name: str) -> list[Any]:
    with database.read() as session:
        return list(session.execute(select(Base.metadata.tables[name])).all())


def test_blobs_of_a_deleted_task_that_a_crash_left_are_collected(world: World) -> None:
    task = world.task(4, cohort_size=4, rounds=1)
    rounds_of(world, task, 1)
    with world.database.read() as session:
        assert named_blobs(session)
    world.database.listeners.clear()  # the process dies after the commit
    with world.database.write() as session:
        delete_task(session, session.get_one(TaskRow, task), an_operator())
    assert list(world.blobs.keys())
    assert collect_orphans(world.database, world.blobs) > 0
    assert not list(world.blobs.keys())


def test_ended_tasks_and_revoked_members_go_after_their_days(world: World) -> None:
    now = world.clock.now()
    names = ("ended", "kept", "running")
    ended, kept, _ = (
        world.task({f"{name}_{n}": (bytes([n + 10 * place] * 32), n) for n in range(4)}, name, rounds=9)
        for place, name in enumerate(names)
    )
    with world.database.write() as session:
        for task in (ended, kept):
            close_task(session, session.get_one(TaskRow, task), an_operator(now))
        session.get_one(TaskRow, kept).ended_days = 1000
        session.get_one(ClientRow, "running_0").revoked_at = now
    wanted = settings(ended_days=30, revoked_days=10)
    delete_expired(world.database, wanted, now)
    delete_expired(world.database, wanted, now + 10 * DAY)
    with world.database.read() as session:
        assert session.get(ClientRow, "running_0") is not None
    delete_expired(world.database, wanted, now + 10 * DAY + 1)
    with world.database.read() as session:
        assert session.get(ClientRow, "running_0") is None
        assert set(session.scalars(select(TaskRow.name))) == {"ended", "kept", "running"}
    delete_expired(world.database, wanted, now + 30 * DAY)
    with world.database.read() as session:
        assert set(session.scalars(select(TaskRow.name))) == {"kept", "running"}


def test_growth_is_measured_once_an_hour_and_compared(sqlite: Database) -> None:
    with sqlite.read() as session:
        assert growth(session) is None
    for hour, expected in ((0, False), (1, True)):
        delete_expired(sqlite, settings(), hour * 3600.0)
        delete_expired(sqlite, settings(), hour * 3600.0 + 60)
        with sqlite.read() as session:
            found = growth(session)
        assert found is not None
        assert (found.measured_at, found.database > 50_000) == (hour * 3600.0, True)
        assert (found.database_a_day is not None) == expected
    with sqlite.write() as session:
        measure(session, 9 * DAY)
    with sqlite.read() as session:
        found = growth(session)
    assert found is not None
    assert found.database_a_day is None  # older measurements are deleted


def test_the_commands_delete_and_change_what_is_kept(tmp_path: Path, run: Callable[..., str]) -> None:
    where = ("--data-dir", str(tmp_path / "data"))
    run("init", *where)
    run("task", "create", "films", "--recipe", "colr", "-r", "items=50", *where)
    assert "newest 100 rounds whole  kept until an operator deletes it" in run("task", "retention", "films", *where)
    changed = run("task", "retention", "films", "--keep-rounds", "7", "--ended-days", "30", *where)
    assert "newest 7 rounds whole  kept for 30 days after its end" in changed
    assert "close it first" in run("task", "delete", "films", *where, status=1)
    run("task", "close", "films", *where)
    assert "hushrec-server task delete films --yes" in run("task", "delete", "films", *where)
    assert "films" in run("task", "list", *where)
    assert "deleted films: 0 members" in run("task", "delete", "films", "--yes", *where)
    assert run("task", "list", *where).strip() == ""
    actions = [line.split("  ")[3] for line in run("audit", *where).splitlines()]
    assert actions[-4:] == [
        "retention changed",
        "refused 1x (invalid-parameters): hushrec-server task delete",
        "task closed",
        "task deleted",
    ]
