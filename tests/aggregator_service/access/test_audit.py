"""The audit trail: each action of an operator is a row and a log line, refused attempts are counted by address."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable
from contextlib import closing
from inspect import signature
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select

from aggregator_service.access.audit_trail import Attempt, Refusals, Wanted, audit_page, prune, record, relay
from aggregator_service.commands.people import invitations, members, tokens
from aggregator_service.commands.task_control import rounds, tasks
from aggregator_service.settings import Settings
from aggregator_service.storage.database import Database
from aggregator_service.storage.schema import AuditRow
from aggregator_service.tasks.retention import delete_expired
from tests.support.api import Api, checked, services
from tests.support.clock import ManualClock
from tests.support.dashboard import HERE, enter, new_operator, page_of, sign_in
from tests.support.world import an_operator

DAY = 86_400.0


@pytest.fixture
def api(api: Api) -> Api:
    api.http.follow_redirects = False
    return api


def trail(api: Api, **query: Any) -> list[dict[str, Any]]:
    return list(api.found("/v1/audit", limit=1000, **query)["entries"])


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


def test_every_action_of_the_api_is_a_row_and_a_log_line(api: Api, caplog: pytest.LogCaptureFixture) -> None:
    """With the name of the token, the address and the task, and without a secret."""
    token = new_operator(api, "ada", "admin")
    auth, http = bearer(token), api.http
    before = len(trail(api))
    caplog.set_level(logging.INFO, "aggregator_service")
    made = api.create_task("watched", cohort=2, rounds=5, max_failed_rounds=1)
    ours = checked(http.post(f"{made.path}/invitations", json={"uses": 2}, headers=auth), 201).json()
    members = made.begin(2)
    checked(http.post(f"{made.path}/rounds/1/extend", json={"seconds": 5}, headers=auth))
    checked(http.post(f"{made.path}/rounds/1/abort", headers=auth))
    checked(http.delete(f"{made.path}/members/{members[0].client_id}", headers=auth))
    checked(http.delete(f"{made.path}/invitations/{ours['invitation_id']}", headers=auth))
    secret = checked(http.post("/v1/operators", json={"name": "bob"}, headers=auth), 201).json()["token"]
    rotated = checked(http.post("/v1/operators/bob/rotation", headers=auth)).json()["token"]
    checked(http.delete("/v1/operators/bob", headers=auth))
    checked(http.post(f"{made.path}/close", headers=auth))
    entries = trail(api)[before:]
    by_ada = [(one["action"], one["target"]) for one in entries if one["operator"] == "ada"]
    assert by_ada == [
        ("invitation made", ours["invitation_id"]),
        ("round extended", None),
        ("round aborted", None),
        ("membership revoked", members[0].client_id),
        ("invitation revoked", ours["invitation_id"]),
        ("operator token created", "bob"),
        ("operator token rotated", "bob"),
        ("operator token revoked", "bob"),
        ("task closed", None),
    ]
    assert {one["task_name"] for one in entries if "token" not in one["action"]} == {"watched"}
    assert {(one["via"], one["address"]) for one in entries} == {("api", "testclient")}
    logged = [(line.getMessage(), line.__dict__.get("hushrec_fields", {})) for line in caplog.records]
    for entry in entries:
        same = [told for text, told in logged if text == entry["action"] and told.get("operator") == entry["operator"]]
        assert same and same[0]["via"] == "api" and same[0]["address"] == "testclient", entry["action"]
    everything = json.dumps(entries) + str(logged)
    assert not [one for one in (token, secret, rotated, ours["invitation"], members[0].token) if one in everything]


def test_no_route_that_changes_something_for_operators_is_without_an_actor(api: Api) -> None:
    """A route that takes an operator, and is no reading, must know who acts: else nothing could be recorded."""
    app: Any = api.http.app  # type: ignore[attr-defined]
    acting = {"actor", "_poster_as_actor", "_acting_as_actor"}
    changing = [
        (route.path, names)
        for route in app.routes
        if (names := _dependencies(getattr(route, "dependant", None))) & {"operator", "visitor"}
        and route.methods & {"POST", "PUT", "PATCH", "DELETE"}
    ]
    assert len(changing) >= 18
    assert not [path for path, names in changing if not names & acting]


def _dependencies(dependant: Any) -> set[str]:
    if dependant is None:
        return set()
    inner = [_dependencies(one) for one in dependant.dependencies]
    return {getattr(dependant.call, "__name__", "")}.union(*inner)


def test_the_dashboard_is_recorded_with_its_sign_ins(api: Api) -> None:
    task, _ = api.begin(2, "paged", rounds=3)
    carried = enter(api, new_operator(api, "grace"))
    headers = {"Origin": HERE}
    for action in ("extend", "abort"):
        form = {"form_token": carried, "minutes": "5"}
        assert api.http.post(page_of(task, action=f"/{action}"), data=form, headers=headers).status_code == 303
    api.http.post("/dashboard/sign-out", data={"form_token": carried}, headers=headers)
    by_grace = [(one["action"], one["via"]) for one in trail(api, operator="grace")]
    assert by_grace == [(what, "dashboard") for what in ("operator signed in", *ACTED, "operator signed out")]
    assert [one["action"] for one in trail(api, task="paged", operator="grace")] == list(ACTED)


ACTED = ("round extended", "round aborted")


def test_refused_attempts_are_counted_by_address_and_day(api: Api, clock: ManualClock) -> None:
    """Guesses of tokens and invitations, sign-ins, and what a known operator may not do; not what members get wrong."""
    reader = new_operator(api, "eyes", "read-only")
    task, (member, _) = api.begin(2)
    for guess in ("hro_first", "hro_second"):
        assert api.http.get("/v1/tasks", headers=bearer(guess)).status_code == 401
    sign_in(api.http, HERE, "hro_third")
    assert api.enrol("hri_guessed").status_code == 403
    for _ in range(3):
        assert api.http.post(f"{task.path}/close", headers=bearer(reader)).status_code == 403
    assert api.http.get("/v1/operators", headers=bearer(reader)).status_code == 403
    assert api.http.delete(f"{task.path}/members/nobody", headers=api.operator).status_code == 404
    assert api.http.get("/v1/tasks/t_none", headers=api.operator).status_code == 404  # nothing was attempted
    assert api.http.post(f"{task.path}/close", headers=bearer(member.token)).status_code == 403
    services(api).refusals.store(clock.now())
    found = {(one["operator"], one["action"], one["refused"]): one for one in trail(api, outcome="refused")}
    close, guess = f"POST {'/v1/tasks/{task}/close'}", "GET /v1/tasks"
    assert {key: one["times"] for key, one in found.items()} == {
        (None, guess, "unauthenticated"): 2,
        (None, "POST /dashboard/sign-in", "unauthenticated"): 1,
        (None, "POST /v1/enrolments", "forbidden"): 1,
        ("eyes", close, "forbidden"): 3,
        ("eyes", "GET /v1/operators", "forbidden"): 1,
        ("environment", "DELETE /v1/tasks/{task}/members/{client}", "not-found"): 1,
    }
    assert {one["address"] for one in found.values()} == {"testclient"}
    assert found["eyes", close, "forbidden"]["task_id"] == task.id
    assert "hro_" not in json.dumps(list(found.values()))
    api.http.get("/v1/tasks", headers=bearer("hro_fourth"))
    services(api).refusals.store(clock.now())  # the same row counts on
    clock.advance(DAY)
    api.http.get("/v1/tasks", headers=bearer("hro_fifth"))
    services(api).refusals.store(clock.now())
    assert [one["times"] for one in trail(api, outcome="refused") if one["action"] == guess] == [3, 1]


def test_many_addresses_take_a_bounded_number_of_rows(sqlite: Database) -> None:
    refusals = Refusals(sqlite)
    for number in range(1500):
        address = f"10.0.{number // 250}.{number % 250}"
        refusals.note(Attempt("", "api", address, "GET /v1/tasks", "unauthenticated"), 5.0)
    same_customer = [f"2001:db8:1:2::{number:x}" for number in range(9)]
    for address in same_customer:
        refusals.note(Attempt("", "api", address, "GET /v1/tasks", "unauthenticated"), 5.0)
    refusals.store(5.0)
    with sqlite.read() as session:
        rows = session.scalars(select(AuditRow)).all()
    assert len(rows) == 1001
    assert sum(row.times for row in rows) == 1509
    assert {row.times for row in rows if row.address == "other addresses"} == {509}


def test_the_command_line_is_recorded_and_the_server_logs_it(
    tmp_path: Path, run: Callable[..., str], caplog: pytest.LogCaptureFixture
) -> None:
    where = ("--data-dir", str(tmp_path / "data"))
    run("init", *where)
    run("task", "create", "films", "--recipe", "colr", "-r", "items=50", *where)
    run("invite", "films", *where)
    run("token", "create", "bob", *where)
    run("token", "revoke", "bob", *where)
    run("member", "revoke", "films", "c_nobody", *where, status=1)
    run("task", "close", "films", *where)
    shown = run("audit", *where).splitlines()
    done = ["operator token created", "task created", "invitation made", "operator token created"]
    done += ["operator token revoked", "refused 1x (not-found): hushrec-server member revoke", "task closed"]
    assert [line.split("  ")[3] for line in shown] == done
    entries = [json.loads(line) for line in run("audit", "--json", "--outcome", "done", *where).splitlines()]
    assert [one["action"] for one in entries] == [what for what in done if not what.startswith("refused")]
    assert {one["via"] for one in entries} == {"command line"}
    assert all(one["operator"] and one["address"] for one in entries)
    assert len(run("audit", "--task", "films", *where).splitlines()) == 3
    caplog.set_level(logging.INFO, "aggregator_service")
    with closing(Database(f"sqlite:///{tmp_path / 'data' / 'hushrec.db'}")) as database:
        assert [relay(database), relay(database)] == [7, 0]
    assert [line.getMessage() for line in caplog.records if "closed" in line.getMessage()] == ["task closed"]


def test_backups_restores_and_moves_are_recorded_in_the_database_that_goes_on(
    tmp_path: Path, run: Callable[..., str]
) -> None:
    first, second, third = (("--data-dir", str(tmp_path / name)) for name in ("first", "second", "third"))
    moved = f"sqlite:///{tmp_path / 'moved.db'}"
    run("init", *first)
    run("backup", str(tmp_path / "nightly"), *first)
    assert [line.split("  ")[3:] for line in run("audit", *first).splitlines()][1:] == [["backup made", "nightly"]]
    run("restore", str(tmp_path / "nightly"), *second)
    assert "backup restored  nightly" in run("audit", *second).splitlines()[-1]
    run("migrate-storage", "--to-database-url", moved, *second)
    assert "database moved" in run("audit", "--database-url", moved, *third).splitlines()[-1]


def test_every_command_that_changes_something_knows_who_runs_it() -> None:
    """A command of these groups either only reads, or takes an actor."""
    reading = {"task_list", "task_show", "task_advise", "task_create", "task_revocations", "round_show"}
    reading |= {"member_list", "invitation_list", "token_list"}  # creating and revocations take the actor themselves
    groups = (tasks, rounds, members, invitations, tokens)
    found = {one.callback for group in groups for one in group.registered_commands if one.callback is not None}
    assert len(found) >= 20
    for command in found:
        takes = signature(getattr(command, "__wrapped__", command)).parameters
        assert ("actor" in takes) != (command.__name__ in reading), command.__name__


def test_a_running_server_logs_what_the_command_line_did(api: Api, tmp_path: Path, run: Callable[..., str]) -> None:
    run("token", "create", "late", "--data-dir", str(tmp_path / "data"))

    def logged() -> bool:
        with services(api).database.read() as session:
            return session.scalars(select(AuditRow.logged).where(AuditRow.target == "late")).one()

    for _ in range(400):
        if logged():
            return
        time.sleep(0.05)
    raise AssertionError("the server did not log the command")


def test_pages_filters_and_the_export_show_the_same_entries(api: Api) -> None:
    now = time.time()  # older entries may expire meanwhile
    for number in range(120):
        with services(api).database.write() as session:
            record(session, an_operator(now + number), "task closed", target=f"target-{number}", note="<script>")
    first = api.found("/v1/audit", limit=50)
    rest = api.found("/v1/audit", limit=1000, after=first["next"])
    assert (len(first["entries"]), rest["next"]) == (50, None)
    enter(api)
    page = checked(api.http.get("/dashboard/audit")).text
    assert "<script>" not in page.partition("<main")[2]
    assert page.count("<tr>") == 26
    older = page.partition("before=")[2].partition('"')[0]
    assert checked(api.http.get("/dashboard/audit", params={"before": older})).text.count("<tr>") == 26
    by_tester = checked(api.http.get("/dashboard/audit.jsonl", params={"operator": "tester"}))
    assert by_tester.headers["content-disposition"] == 'attachment; filename="audit.jsonl"'
    lines = [json.loads(line) for line in by_tester.text.splitlines()]
    assert lines == [one for one in trail(api) if one["operator"] == "tester"]
    assert "No entry matches" in checked(api.http.get("/dashboard/audit", params={"operator": "nobody"})).text


def test_entries_expire_and_not_before(sqlite: Database) -> None:
    with sqlite.write() as session:
        for at in (0.0, 10 * DAY):
            record(session, an_operator(at), "task closed")
    settings = Settings(audit_days=30)
    delete_expired(sqlite, settings, 30 * DAY)
    with sqlite.read() as session:
        assert len(audit_page(session, Wanted(), 10).entries) == 2
    delete_expired(sqlite, settings, 30 * DAY + 1)
    with sqlite.read() as session:
        assert [one.at for one in audit_page(session, Wanted(), 10).entries] == [10 * DAY]
    with sqlite.write() as session:
        assert prune(session, 11 * DAY) == 1
