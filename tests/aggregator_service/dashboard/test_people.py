"""Members, invitations and tokens on the dashboard; closing and deleting tasks; finding one of many tasks."""

from __future__ import annotations

import html
import re
from typing import get_args

import pytest
from sqlalchemy import select

from aggregator_service.dashboard.facts import _ends_in, overview
from aggregator_service.dashboard.member_list import Order, member_list
from aggregator_service.dashboard.words import Series, progress_of, quality
from aggregator_service.storage.database import Database
from aggregator_service.storage.schema import ClientRow, RoundRow, TaskRow
from aggregator_service.tasks.plans import most_sums
from tests.support.api import Api, checked, contribute, services
from tests.support.clock import ManualClock
from tests.support.dashboard import OURS, enter, new_operator
from tests.support.world import client_row, round_row, task_row

pytestmark = pytest.mark.usefixtures("nobody")
CLIENT_ID = re.compile(r"\bc_[0-9a-f]{20}\b")


def act(api: Api, place: str, carried: str, **fields: str) -> int:
    """Ask for the confirmation, then do it; return the status."""
    asked = checked(api.http.get(f"/dashboard{place}"))
    assert "This cannot be undone" in asked.text
    assert not CLIENT_ID.search(asked.text)
    return api.http.post(f"/dashboard{place}", data={"form_token": carried, **fields}, headers=OURS).status_code


def test_members_are_listed_with_what_they_did_and_without_client_ids(api: Api, clock: ManualClock) -> None:
    task = api.create_task("crowd", cohort=3, rounds=5, min_clients=2)
    members = task.enrol(3)
    carried = enter(api)
    for number in (1, 2):
        task.wait_round(number, "collecting")
        contribute(members[: 4 - number], number, 1.0)
        if number == 2:
            clock.advance(601.0)
        task.wait_round(number, "complete")
    task.wait_round(3, "collecting")
    page = checked(api.http.get(f"/dashboard/tasks/{task.id}/members")).text
    assert not CLIENT_ID.search(page)
    lines = re.findall(r'<tr>\n<th scope="row">(\d+).*?</tr>', page, re.S)
    assert lines[:3] == ["1", "2", "3"]
    shown = [re.findall(r'class="n">([\d,]+)<?', row) for row in re.findall(r"<tr>.*?</tr>", page, re.S)[1:4]]
    assert [(row[0], row[1]) for row in shown] == [("3", "2"), ("3", "2"), ("3", "1")]
    shares = re.findall(r'<td data-label="Share" class="n( low)?">(\d+) %</td>', page)
    assert shares == [("", "67"), ("", "67"), (" low", "33")]
    slow = checked(api.http.get(f"/dashboard/tasks/{task.id}/members", params={"state": "slow"})).text
    assert re.findall(r'<th scope="row">(\d+)', slow) == ["3"]
    assert act(api, f"/tasks/{task.id}/members/3/revoke", carried) == 303
    assert members[2].get("").status_code == 401
    slow = checked(api.http.get(f"/dashboard/tasks/{task.id}/members", params={"state": "slow"})).text
    assert "No member matches" in slow  # the slow one has ended
    ended = checked(api.http.get(f"/dashboard/tasks/{task.id}/members", params={"state": "ended"})).text
    assert len(re.findall(r'<th scope="row">\d', ended)) == 1
    assert api.http.get(f"/dashboard/tasks/{task.id}/members", params={"serial": "xyz"}).status_code == 422
    checked(task.post("rounds/3/abort"))
    checked(task.post("close"))
    assert act(api, f"/tasks/{task.id}/members/3/erase", carried) == 303
    assert api.http.get(f"/dashboard/tasks/{task.id}/members/3/erase").status_code == 404
    with services(api).database.read() as session:
        assert session.get(ClientRow, members[2].client_id) is None


def test_members_are_sorted_by_each_column_and_paged(database: Database) -> None:
    """60 members: member n was asked n times of 60, contributed to half of these, and sent n kB; one never was."""
    with database.write() as session:
        session.add(task_row("t_0"))
        session.flush()
        for number in range(60):
            given = {"times_asked": number, "past_contributions": number // 2, "past_bytes": 1000 * number}
            seen = {"past_seen_at": float(number) if number else None}
            session.add(client_row(f"c_{number}", "t_0", sequence=number, **given, **seen))
    listed: dict[Order, list[int]] = {}
    with database.read() as session:
        task = session.get_one(TaskRow, "t_0")
        for order in get_args(Order):
            pages = [member_list(session, task, order=order, page=page) for page in (1, 2, 3)]
            assert [(len(one.lines), one.found, one.more) for one in pages] == [
                (50, 60, True),
                (10, 60, False),
                (0, 60, False),
            ]
            listed[order] = [line.number for one in pages for line in one.lines]
    upwards = list(range(60))
    assert listed[""] == listed["asked"] == listed["sent"] == upwards
    assert listed["-number"] == listed["-asked"] == listed["-sent"] == upwards[::-1]
    assert listed["seen"] == [*upwards[1:], 0]
    assert listed["-seen"] == [*upwards[:0:-1], 0]
    assert listed["share"][:2] == [1, 3]
    assert listed["share"][-1] == listed["-share"][-1] == 0
    assert listed["-contributed"][:3] == [58, 59, 56]
    assert sorted(listed["contributed"]) == upwards


def test_invitations_are_revoked_and_tasks_closed_and_deleted(api: Api) -> None:
    task = api.create_task("ending", cohort=3)
    task.enrol(1)
    api.invite(task.id, uses=4)
    carried = enter(api, new_operator(api, "ender"))
    page = checked(api.http.get(f"/dashboard/tasks/{task.id}/members")).text
    invitation = re.search(r"/invitations/(i_[0-9a-f]+)/revoke", page)
    assert invitation is not None
    assert act(api, f"/tasks/{task.id}/invitations/{invitation.group(1)}/revoke", carried) == 303
    assert "/invitations/" not in checked(api.http.get(f"/dashboard/tasks/{task.id}/members")).text
    assert api.http.get(f"/dashboard/tasks/{task.id}/end/delete").status_code == 409
    assert act(api, f"/tasks/{task.id}/end/close", carried) == 303
    assert task.now()["state"] == "closed"
    assert api.http.get(f"/dashboard/tasks/{task.id}/end/close").status_code == 409
    assert act(api, f"/tasks/{task.id}/end/delete", carried) == 303
    assert api.http.get(f"/dashboard/tasks/{task.id}").status_code == 404
    done = [one["action"] for one in api.found("/v1/audit", limit=1000)["entries"] if one["operator"] == "ender"]
    assert done == ["operator signed in", "invitation revoked", "task closed", "task deleted"]


def test_tokens_are_made_replaced_and_revoked_by_admins_alone(api: Api) -> None:
    enter(api, new_operator(api, "no-admin"))
    assert api.http.get("/dashboard/tokens").status_code == 403
    assert "/dashboard/tokens" not in checked(api.http.get("/dashboard")).text
    api.http.cookies.clear()
    carried = enter(api)
    form = {"form_token": carried, "name": "grafana", "role": "read-only", "days": "30"}
    made = checked(api.http.post("/dashboard/tokens", data=form, headers=OURS)).text
    token = re.search(r'<pre class="secret" tabindex="0">(hro_[^<]+)</pre>', made)
    assert token is not None

    def works(secret: str) -> bool:
        return api.http.get("/v1/tasks", headers={"Authorization": f"Bearer {secret}"}).status_code == 200

    assert works(token.group(1))
    assert token.group(1) not in checked(api.http.get("/dashboard/tokens")).text
    for wrong in ({"name": "grafana"}, {"name": "NO NAME"}, {"days": "soon"}, {"days": "-1"}, {"role": "king"}):
        answer = api.http.post("/dashboard/tokens", data={**form, "name": "other", **wrong}, headers=OURS)
        assert (answer.status_code, 'role="alert"' in answer.text) == (422, True), wrong
    checked(api.http.get("/dashboard/tokens/grafana/rotate"))
    rotated = api.http.post("/dashboard/tokens/grafana/rotate", data={"form_token": carried}, headers=OURS).text
    assert "hro_" in html.unescape(rotated)
    assert not works(token.group(1))
    assert act(api, "/tokens/grafana/revoke", carried) == 303
    assert (
        api.http.post("/dashboard/tokens/grafana/revoke", data={"form_token": carried}, headers=OURS).status_code == 404
    )


def test_one_of_sixty_tasks_is_found(sqlite: Database) -> None:
    values = {"recipe_parameters": {"items": 2, "dim": 2, "clip": 1.0}}
    agreed = {"cohort_size": 4, "min_clients": 2, "rounds": 3}
    with sqlite.write() as session:
        for number in range(60):
            state = "open" if number % 3 else "complete"
            row = {**values, "schedule": agreed, "name": f"task-{number}", "state": state, "created_at": float(number)}
            session.add(task_row(f"t_{number:020x}", **row))
    with sqlite.read() as session:
        pages = [overview(session, page) for page in (1, 2, 3, 4)]
        assert [(len(one.lines), one.more, one.found) for one in pages] == [
            (20, True, 60),
            (20, True, 60),
            (20, False, 60),
            (0, False, 60),
        ]
        named = overview(session, 1, "TASK-5")
        assert {line.task.name for line in named.lines} == {"task-5", *(f"task-5{digit}" for digit in range(10))}
        assert overview(session, 1, "%").found == 0  # no pattern
        assert overview(session, 1, "", "complete").found == 20
        assert overview(session, 1, "fedmf", "open").found == 40


def test_when_a_task_ends_follows_from_its_pace(sqlite: Database) -> None:
    agreed = {"cohort_size": 4, "min_clients": 2, "rounds": 12}
    with sqlite.write() as session:
        session.add(task_row("t_1", recipe_parameters={"items": 2, "dim": 2, "clip": 1.0}, schedule=agreed))
        session.flush()
        for number in range(1, 5):
            session.add(round_row("t_1", number=number, sum_index=number, state="complete", released_at=100.0 * number))
    with sqlite.write() as session:
        task = session.get_one(TaskRow, "t_1")
        task.completed_rounds = 4
        assert (most_sums(task), _ends_in(session, task, 12, 400.0)) == (12, 800.0)
        assert _ends_in(session, task, 12, 450.0) == 750.0
        assert _ends_in(session, task, 12, 99_999.0) == 0.0
        task.abandoned_sums = 2
        assert most_sums(task) == 10
        task.recipe_name, task.recipe_parameters = "privirec-k", {"items": 50, "components": 2, "iterations": 2}
        task.abandoned_sums = 0
        assert most_sums(task) == 4  # degrees, lists and two iterations, and not twelve
        task.state = "closed"
        assert _ends_in(session, task, 12, 450.0) is None
        assert session.scalars(select(TaskRow.state)).one() == "closed"


@pytest.mark.parametrize(
    ("name", "values", "said"),
    [
        ("ndcg@10", (0.1, 0.1, 0.2, 0.2, 0.3, 0.3), "gets better: ndcg@10 went from 0.2 to 0.3"),
        ("ndcg@10", (0.1, 0.1, 0.3, 0.3, 0.2, 0.2), "gets worse"),
        ("rmse", (1.0, 0.9, 0.8, 0.7, 0.6, 0.5), "gets better: rmse went from 0.75 to 0.55"),
        ("hr@10", (0.3, 0.3, 0.3), "hardly changes"),
        ("hr@10", (0.3, 0.3), "Too few measurements of hr@10"),
    ],
)
def test_whether_a_model_gets_better_is_said(name: str, values: tuple[float, ...], said: str) -> None:
    series = [Series("coverage", [(1, 0.5)]), Series(name, list(enumerate(values, 1)))]
    assert said in progress_of(series, noisy=False)
    assert progress_of(series, noisy=True).endswith("single figures may be far off, also below 0.")
    assert progress_of([], noisy=True) == ""


def test_no_page_shows_the_client_id_of_a_failure(api: Api) -> None:
    task = api.create_task("blames", cohort=3)
    task.begin(3)
    guilty = f"c_{'ab' * 10}"
    with services(api).database.write() as session:
        row = session.scalars(select(RoundRow).where(RoundRow.task_id == task.id)).one()
        row.state, row.failure = "failed", f"4 clients are needed among the neighbours of {guilty}, 0 are present"
    enter(api)
    for place in (f"/dashboard/tasks/{task.id}", f"/dashboard/tasks/{task.id}/rounds/1"):
        page = checked(api.http.get(place)).text
        assert "among the neighbours of a client, 0 are present" in page
        assert guilty not in page


def test_bookkeeping_is_no_curve(sqlite: Database) -> None:
    with sqlite.write() as session:
        agreed = {"cohort_size": 4, "min_clients": 2, "rounds": 12}
        session.add(task_row("t_1", recipe_parameters={"items": 2, "dim": 2, "clip": 1.0}, schedule=agreed))
        session.flush()
        report = {"hr@10": 0.5, "popularity hr@10": 0.4, "evaluated clients": 24.2}
        report |= {"evaluated model round": 3.0, "best model round": 0.0, "adopted model round": 2.0}
        session.add(round_row("t_1", state="complete", report=report))
    with sqlite.read() as session:
        (only,) = quality(session, "t_1")
    assert (only.name, only.popularity) == ("hr@10", [(1, 0.4)])
    assert only.is_plotted  # also while it stays the same, as a figure that is no metric is not
    assert not Series("items kept", [(1, 12.0), (2, 12.0)]).is_plotted
    assert Series("captured", [(1, 0.1), (2, 0.4)]).is_plotted
