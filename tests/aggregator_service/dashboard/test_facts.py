"""Facts of the pages: funnels, states, bytes, counts, model metrics, formats, and the number of queries."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from sqlalchemy import Engine, event, insert

from aggregator_service.dashboard import words
from aggregator_service.dashboard.facts import overview, task_facts
from aggregator_service.dashboard.live import round_screen, task_screen, tasks_screen
from aggregator_service.dashboard.tallies import Tally, tallies
from aggregator_service.dashboard.words import Series, figures, quality, security_level, security_terms
from aggregator_service.storage.database import Database
from aggregator_service.storage.round_rows import find_round
from aggregator_service.storage.schema import (
    ChunkRow,
    CohortRow,
    ContributionRow,
    InvitationRow,
    RoundStateRow,
    StageMessageRow,
    TaskRow,
)
from protocols.messages import TaskView
from tests.support.api import Api, TestTask, services
from tests.support.clock import ManualClock
from tests.support.dashboard import enter, page_of
from tests.support.masked import STAGES, enrol_masked, masked_task, steps_of
from tests.support.oneshot import enrol_clients, enrol_committee, oneshot_task, publish_keys
from tests.support.world import World, client_row, round_row, task_row


@pytest.fixture(scope="module", autouse=True)
def signed_in(api: Api) -> None:
    enter(api)


def tally(api: Api, task: TestTask) -> Tally:
    with services(api).database.read() as session:
        return tallies(session, [find_round(session, task.id, 1)])[0]


def text_of(api: Api, task: TestTask, number: int | None = None) -> str:
    """Return the visible text of the page of a task or of a round, in one line."""
    page = api.http.get(f"/dashboard/tasks/{task.id}" if number is None else page_of(task, number)).text
    body = re.sub(r"<svg.*?</svg>|<[^>]+>", " ", page.partition("<main")[2], flags=re.S)
    return re.sub(r"\s+", " ", body)


def test_the_funnel_and_the_states_of_a_masked_round(api: Api, clock: ManualClock) -> None:
    task = masked_task(api, "funnel", 6)
    here = clients = list(enrol_masked(task, 6).values())
    silent = {"share": clients[5], "contribute": clients[4]}
    for step in steps_of(task):
        task.wait_round(1, STAGES[step])
        here = [one for one in here if one is not silent.get(step)]
        for one in here:
            assert one.take(1, step).status_code == 201
        if step in silent:
            clock.advance(3601)
    task.wait_round(1, "complete")
    found = tally(api, task)
    funnel = {"invited": 6, "joined": 6, "contributed": 4, "survived": 4}
    assert {step.name: step.count for step in found.funnel()} == funnel
    *active, last = found.states()
    assert [(one.state, one.missing, one.delivered) for one in active] == [
        ("advertising", 0, 6),
        ("sharing", 1, 5),
        ("collecting", 1, 4),
        ("confirming", 0, 4),
        ("unmasking", 0, 4),
    ]
    assert last.state == "complete"
    sizes = {step: sum(len(one.bodies[step]) for one in clients if step in one.bodies) for step in steps_of(task)}
    assert {one.state: one.received for one in active} == {STAGES[step]: sizes[step] for step in sizes}
    assert [one.seconds(clock.now()) for one in active[1:3]] == [3601, 3601]
    roster = active[1].handed_out
    assert roster > 0 and roster % 6 == 0  # the same bytes for each client that advertised
    # in the view of the round, base64url: a byte of survivors, and a signature for each of 6 members
    assert [one.handed_out for one in active[3:]] == [4 * 2, 4 * 512]
    assert "contributed contribution stored 4 67 %" in text_of(api, task, 1)


def test_an_active_and_a_failed_round(api: Api, clock: ManualClock) -> None:
    task, members = api.begin(4, "two-ways", items=300, collect_seconds=100.0)
    members[0].put(1, members[0].contribution(1, 1.0))
    assert members[1].piece(0, members[1].contribution(1, 1.0)[:64]).status_code == 204  # incomplete: it has joined
    found = tally(api, task)
    assert ([step.count for step in found.funnel()], found.waited_for) == ([4, 2, 1, None], (1, 4))
    states = [(one.state, one.status) for one in found.states()]
    assert states == [("collecting", "now"), ("folding", "ahead"), ("complete", "ahead")]
    page = text_of(api, task, 1)
    assert "in 1 min 40 s" in page and "1 of 4 clients" in page
    clock.advance(101)
    task.wait_round(1, "failed")
    found = tally(api, task)
    assert [step.count for step in found.funnel()] == [4, 2, 1, 0]
    states = [(one.state, one.status, one.missing) for one in found.states()]
    assert states == [("collecting", "failed", 3), ("failed", "failed", None)]
    page = text_of(api, task, 1)
    assert "1 of 4 clients contributed in time, but 2 are needed" in page and "1 min 41 s" in page


@contextmanager
def counting(engine: Engine) -> Iterator[list[str]]:
    """Yield the list of SELECT statements that this thread executes in the block."""
    seen: list[str] = []
    mine = threading.get_ident()

    def note(_connection: object, _cursor: object, statement: str, *_rest: object) -> None:
        if threading.get_ident() == mine and statement.startswith("SELECT"):
            seen.append(statement)

    event.listen(engine, "before_cursor_execute", note)
    try:
        yield seen
    finally:
        event.remove(engine, "before_cursor_execute", note)


def crowd(api: Api, task_id: str, clients: int, rounds: int) -> None:
    """Add a task with this many clients, which take part in all rounds."""
    schedule = {"cohort_size": clients, "min_clients": 2, "rounds": rounds}
    with services(api).database.write() as session:
        values = {"recipe_parameters": {"items": 2, "dim": 2, "clip": 1.0}, "schedule": schedule, "state": "closed"}
        session.add(task_row(task_id, **values))
        session.flush()
        names = [f"{task_id}-{index}" for index in range(clients)]
        session.add_all(client_row(name, task_id, sequence=index) for index, name in enumerate(names))
        for number in range(1, rounds + 1):
            row = round_row(task_id, number=number, state="complete", cohort=clients, survivors=clients)
            session.add(row)
            session.flush()
            for at, state in enumerate(("collecting", "complete"), 1):
                session.add(RoundStateRow(round_id=row.id, state=state, entered_at=float(at)))
            session.execute(insert(CohortRow), [{"round_id": row.id, "client_id": name} for name in names])
            given = {"round_id": row.id, "digest": "0" * 64, "bytes": 80, "stored_at": 1.0, "folded": True}
            session.execute(insert(ContributionRow), [{**given, "client_id": name} for name in names])


def test_the_number_of_queries_does_not_depend_on_the_number_of_clients(api: Api) -> None:
    crowd(api, "t_few", 10, 2)
    crowd(api, "t_many", 1_000, 3)
    engine = services(api).database.engine
    looks = {
        "task": (lambda task_id: task_screen(task_id, None), 15),
        "round": (lambda task_id: round_screen(task_id, 2), 8),
        "tasks": (lambda task_id: tasks_screen(1), 10),
    }
    for name, (screen, most) in looks.items():
        counts = {}
        for task_id in ("t_few", "t_many"):
            with counting(engine) as seen:
                screen(task_id).load(services(api))
            counts[task_id] = len(seen)
        assert 0 < counts["t_many"] == counts["t_few"] <= most, (name, counts)
    for path in ("", "/tasks/t_many", "/tasks/t_many/rounds/2"):
        page = api.http.get(f"/dashboard{path}")
        assert "1,000" in page.text
        assert len(page.content) < 40_000


def test_rounds_are_paginated(api: Api) -> None:
    crowd(api, "t_long", 2, 60)
    first = api.http.get("/dashboard/tasks/t_long").text
    assert 'id="round-60"' in first
    assert 'id="round-35"' not in first
    (link,) = re.findall(r'href="([^"]+before=\d+)"', first)
    second = api.http.get(link).text
    assert 'id="round-35"' in second
    assert 'id="round-36"' not in second
    assert f'data-live="{link.partition("?")[0]}/live?before=36"' in second


def test_counts_are_the_same_on_each_database(database: Database) -> None:
    agreed = {"cohort_size": 4, "min_clients": 2, "rounds": 9}
    with database.write() as session:
        session.add(task_row(recipe_parameters={"items": 2, "dim": 2, "clip": 1.0}, schedule=agreed))
        session.flush()
        session.add_all([client_row(f"c_{index}") for index in range(3)])
        session.add(client_row("c_gone", revoked_at=1.0))
        for uses, more in ((5, {"used": 3}), (4, {"revoked_at": 1.0}), (3, {"expires_at": 1.0})):
            values = {"task_id": "t_1", "role": "member", "uses": uses, "used": 0, "created_at": 0.0, "expires_at": 2e9}
            session.add(InvitationRow(id=f"i_{uses}", token_hash=f"{uses:064}", **(values | more)))
        row = round_row(model_digest=bytes(32), state="sharing", cohort=3)
        session.add(row)
        session.flush()
        for stage, senders in (("advertise", 3), ("share", 2)):
            for index in range(senders):
                message = {"stage": stage, "digest": "0" * 64, "length": 10, "stored_at": 1.0}
                session.add(StageMessageRow(round_id=row.id, client_id=f"c_{index}", **message))
        for offset in (0, 10):
            chunk = {"offset": offset, "bytes": 10, "digest": "0" * 64, "blob_key": f"b{offset}"}
            session.add(ChunkRow(round_id=row.id, client_id="c_0", **chunk))
        session.add(RoundStateRow(round_id=row.id, state="advertising", entered_at=1.0))
        session.add(RoundStateRow(round_id=row.id, state="sharing", entered_at=3.0, handed_out=77))
    with database.read() as session:
        (line,) = overview(session).lines
        facts = task_facts(session, session.get_one(TaskRow, "t_1"), now=100.0)
    assert (line.members, line.current.waited_for) == (3, (2, 3))
    assert (facts.members.enrolled, facts.members.revoked, facts.members.waiting) == (3, 1, 0)
    assert (facts.invited.places, facts.invited.taken, facts.invited.free) == (12, 3, 2)
    (found,) = facts.rounds
    assert found.uploads == 1
    first, second = found.states()[:2]
    assert (first.seconds(9.0), first.received, second.received, second.handed_out) == (2.0, 30, 20, 77)


def test_security_terms_of_each_mechanism(api: Api) -> None:
    ldp = {"ldp": {"clip": 0.5, "scale": 0.4}}
    tasks = {
        "masked": masked_task(api, "told-masked", 6),
        "ckks": api.create_task("told-ckks", recipe_name="colr", mechanism_name="ckks", dim=8, clip=1.0),
        "plain": api.create_task("told-plain"),
        "noise": api.create_task("told-noise", recipe_name="rfrec", dim=4, clip=1.0, recipe_parameters=ldp),
    }
    views = {name: TaskView.model_validate(task.view) for name, task in tasks.items()}
    lines = {name: {term.label: term.value for term in security_terms(view)} for name, view in views.items()}
    assert [security_level(views[name]) for name in ("masked", "plain")] == ["128-bit", "none"]
    around, ring = tasks["masked"].view["plan"]["neighbourhood"], tasks["ckks"].view["plan"]["ring_degree"]
    expected = {"Neighbours, k": str(around["degree"]), "Threshold, t": str(around["threshold"])}
    assert lines["masked"].items() >= (expected | {"Privacy floor": "4 clients"}).items()
    assert lines["ckks"]["Ring degree"] == f"{ring:,}"
    assert (lines["plain"]["Security level"], lines["noise"]["LDP epsilon"]) == ("none", "2.5")


def test_the_committee_of_a_one_shot_task(api: Api) -> None:
    task = oneshot_task(api, "committee", 3)
    members = enrol_committee(task, 5)
    publish_keys(members[:4], 1, 2)
    waiting = text_of(api, task)
    assert "4 of 5 members have published keys for round 1." in waiting
    for place, keys in ((4, "2, up to round 2"), (5, "none")):
        assert f" {place} {keys} not in its committee" in waiting
    publish_keys(members[4:], 1)
    clients = enrol_clients(task, 3)
    task.wait_round(1, "collecting")
    for client in clients:
        assert client.take(1).status_code == 201
    task.wait_round(1, "confirming")
    assert members[0].confirm(1).status_code == 201
    shown = text_of(api, task)
    assert "The next round waits" not in shown
    assert " 1 1, up to round 2 confirmed" in shown
    assert " 5 none no answer yet" in shown
    found = tally(api, task)
    assert (found.waited_for, [step.count for step in found.funnel()]) == ((1, 5), [3, 3, 3, None])
    states = {one.state: one for one in found.states()}
    assert list(states) == ["collecting", "confirming", "unmasking", "complete"]
    sealed, statements = clients[0].committee(1).context.plan.sealed_bytes, members[0].fetch(1, "statements")
    assert states["confirming"].handed_out == 5 * (len(statements) + 3 * sealed)
    for member in members[1:]:
        assert member.confirm(1).status_code == 201
    task.wait_round(1, "unmasking")
    unmasking = next(one for one in tally(api, task).states() if one.state == "unmasking")
    assert unmasking.handed_out == 5 * 427  # 5 signatures, base64url


def test_reported_metrics_become_plots_and_tables(world: World) -> None:
    reports = [{"recall": value, "loss": 1 - value} for value in (0.25, 0.5, float("inf"), 1.0)]
    with world.database.write() as session:
        session.add(task_row())
        session.flush()
        for number, report in enumerate([*reports, {}], 1):  # a round without metrics has failed
            session.add(round_row(number=number, state="complete" if report else "failed", report=report))
    with world.database.read() as session:
        loss, recall = quality(session, "t_1")
    assert recall.points == [(1, 0.25), (2, 0.5), (4, 1.0)]
    assert (loss.low, loss.high, loss.last) == (0.0, 0.75, 0.0)
    assert recall.places() == [pytest.approx(place) for place in ((8.0, 152.0), (216.0, 104.0), (632.0, 8.0))]
    assert figures([loss, recall])[0] == (4, {"loss": 0.0, "recall": 1.0})
    assert Series("flat", [(3, 1.0)]).places() == [(8.0, 80.0)]


def test_durations_bytes_and_volatile_text() -> None:
    spans = {0: "0 s", 0.25: "250 ms", 59.9: "59 s", 60: "1 min", 61: "1 min 1 s", 3600: "1 h", 90_061: "1 d 1 h"}
    assert {seconds: words.span(seconds) for seconds in spans} == spans
    sizes = {0: "0 B", 999: "999 B", 1000: "1.00 kB", 12_345: "12.3 kB", 123_456_789: "123 MB", 5e15: "5000 TB"}
    assert {size: words.byte_count(size) for size in sizes} == sizes
    early, late = words.when(1000.0, 990.0), words.when(1000.0, 995.0)
    assert early != late
    assert words.steady(early) == words.steady(late)
    assert words.shown(early).endswith('title="1970-01-01 00:16:40 UTC" data-time="relative">in 10 s</time>')
