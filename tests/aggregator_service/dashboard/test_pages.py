"""The pages over HTTP: sign-ins, form tokens, escaping, roles, secrets, error pages."""

from __future__ import annotations

import html
import logging
import re
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import select

from aggregator_service.rounds.interventions import ABORTED
from aggregator_service.storage.schema import OperatorRow, SignInRow, TaskRow
from tests.support.api import Api, TestTask, aggregator_inside, checked, services
from tests.support.clock import ManualClock
from tests.support.dashboard import HERE, OURS, enter, new_operator, page_of, sign_in
from tests.support.server import OPERATOR_TOKEN
from tests.support.world import round_row, task_row

pytestmark = pytest.mark.usefixtures("nobody")


def started(api: Api, name: str, **schedule: Any) -> TestTask:
    task = api.create_task(name, cohort=3, **schedule)
    task.begin(3)
    return task


def post(api: Api, path: str, carried: str, **fields: str) -> httpx.Response:
    return api.http.post(path, data={"form_token": carried, **fields}, headers=OURS)


def test_extend_and_abort_ask_first_and_then_do_it_once(api: Api) -> None:
    task = started(api, "acted-on")
    carried = enter(api)
    asked = api.http.get(page_of(task, action="/extend"))
    assert "Extend round 1?" in asked.text
    assert 'name="minutes"' in asked.text
    for minutes in ("", "0", "-1", "ten", "nan", "inf", "1e9", "10081"):
        answer = post(api, page_of(task, action="/extend"), carried, minutes=minutes)
        assert answer.status_code == 422, minutes
        assert 'aria-invalid="true"' in answer.text
    assert task.round(1)["seconds_left"] == 600  # the form alone, or wrongly filled in, changes nothing
    done = post(api, page_of(task, action="/extend"), carried, minutes="2.5")
    assert (done.status_code, done.headers["location"]) == (303, page_of(task))
    assert task.round(1)["seconds_left"] == 750
    assert "Nothing is released" in api.http.get(page_of(task, action="/abort")).text
    assert post(api, page_of(task, action="/abort"), carried).status_code == 303
    assert task.round(1)["failure"] == ABORTED
    shown = api.http.get(page_of(task)).text
    assert ABORTED in shown
    for action in ("/extend", "/abort"):
        assert action not in shown
        assert api.http.get(page_of(task, action=action)).status_code == 409
    refused = post(api, page_of(task, action="/extend"), carried, minutes="5")
    assert (refused.status_code, "failed" in refused.text) == (409, True)


def test_a_failed_task_can_be_resumed(api: Api) -> None:
    task = started(api, "resumable")
    carried, place = enter(api), f"/dashboard/tasks/{task.id}"
    assert f"{place}/resume" not in api.http.get(place).text
    assert api.http.get(f"{place}/resume").status_code == 409
    with services(api).database.write() as session:
        session.get_one(TaskRow, task.id).state = "failed"
    assert f"{place}/resume" in api.http.get(place).text
    assert "Resume resumable?" in api.http.get(f"{place}/resume").text
    done = post(api, f"{place}/resume", carried)
    assert (done.status_code, done.headers["location"]) == (303, place)
    assert task.now()["state"] == "open"


FOREIGN: tuple[dict[str, str], ...] = (
    {"Origin": "https://evil.example"},
    {"Origin": "null"},  # a sandbox
    {},
    {"Origin": HERE, "Sec-Fetch-Site": "cross-site"},
    {"Origin": HERE, "Sec-Fetch-Site": "same-site"},
)


FIELDS = {"minutes": "5", "role": "member", "uses": "1", "hours": "1"}
FIELDS |= {"recipe": "colr", "mechanism": "plain", "name": "never", "recipe.items": "40"}


def acting(task: TestTask) -> list[str]:
    """The addresses of all forms that change something; `FIELDS` fills them in."""
    actions = [page_of(task, action=f"/{name}") for name in ("extend", "abort")]
    return [*actions, f"/dashboard/tasks/{task.id}/resume", f"/dashboard/tasks/{task.id}/invite", "/dashboard/new"]


def unchanged(task: TestTask) -> None:
    """Require that none of these forms had an effect."""
    assert (task.round(1)["state"], task.round(1)["seconds_left"]) == ("collecting", 600)
    http, operator = task.api.http, task.api.operator
    assert http.get(f"{task.path}/invitations", headers=operator).json()["invitations"][1:] == []
    assert http.get("/v1/tasks", params={"name": "never"}, headers=operator).json()["tasks"] == []


def test_forms_from_elsewhere_do_nothing(api: Api) -> None:
    task, of_another_sign_in = started(api, "foreign"), enter(api)
    api.http.cookies.clear()
    data = {"form_token": enter(api), "token": OPERATOR_TOKEN, **FIELDS}
    for headers in FOREIGN:
        for path in (*acting(task), "/dashboard/sign-out", "/dashboard/sign-in"):
            assert api.http.post(path, data=data, headers=headers).status_code == 403, (path, headers)
    for carried in ("", "0" * 64, of_another_sign_in):
        for path in acting(task):
            assert post(api, path, carried, **FIELDS).status_code == 403
    unchanged(task)
    assert api.http.get("/dashboard").status_code == 200
    behind = {"Origin": "https://hush.example", "Sec-Fetch-Site": "same-origin"}  # a proxy has rewritten the host
    assert api.http.post("/dashboard/sign-in", data=data, headers=behind).status_code == 303


def test_a_read_only_operator_sees_everything_and_changes_nothing(api: Api) -> None:
    """Also one who was signed in with another role before."""
    task = started(api, "read-only")
    carried = enter(api, new_operator(api, "eyes"))
    with services(api).database.write() as session:
        session.get_one(OperatorRow, "eyes").role = "read-only"
    for path in ("/dashboard", f"/dashboard/tasks/{task.id}", page_of(task), "/dashboard/health"):
        page = checked(api.http.get(path))
        assert not re.search(r"/extend|/abort|/invite|/new", page.text)
    for path in acting(task):
        assert api.http.get(path).status_code == 403
        answer = checked(post(api, path, carried, **FIELDS), 403)
        assert "read-only" in answer.text
    unchanged(task)


def test_the_log_names_the_operator_and_holds_no_secret(api: Api, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    task, token = started(api, "logged"), new_operator(api, "grace")
    carried = enter(api, token)
    secret = api.http.cookies["hushrec"]
    post(api, page_of(task, action="/extend"), carried, minutes="5")
    post(api, page_of(task, action="/abort"), carried)
    post(api, "/dashboard/sign-out", carried)
    sign_in(api.http, HERE, "hro_a-guess-that-failed")
    logged = [(record.message, getattr(record, "hushrec_fields", {})) for record in caplog.records]
    for message in ("operator signed in", "round extended", "round aborted", "operator signed out"):
        assert ("grace") in [fields.get("operator") for text, fields in logged if text == message]
    everything = str([vars(record) for record in caplog.records if record.name.startswith("aggregator_service")])
    for value in (token, secret, carried, "hro_a-guess-that-failed"):
        assert value not in everything


def test_user_input_is_escaped(api: Api) -> None:
    evil, agreed = "<script>alert('&')</script>", {"cohort_size": 4, "min_clients": 2, "rounds": 3}
    parameters = {"items": 2, "dim": 2, "clip": 1.0}
    named, failing = "t_" + "e" * 20, "t_" + "f" * 20
    with services(api).database.write() as session:
        common = {"recipe_parameters": parameters, "schedule": agreed, "state": "failed"}
        session.add_all([task_row(named, **{**common, "name": evil}), task_row(failing, **{**common, "name": "fine"})])
        session.flush()
        for task_id in (named, failing):
            session.add(round_row(task_id, state="failed", failure=evil))
            session.add(round_row(task_id, number=2, state="complete", report={evil: 0.5}, survivors=2))
    enter(api)
    for place in ("", f"/tasks/{failing}", f"/tasks/{failing}/rounds/1", f"/tasks/{named}/rounds/1"):
        page = api.http.get(f"/dashboard{place}")
        assert page.status_code == 200, place
        assert "<script>alert" not in page.text
        assert "&lt;script&gt;alert(&#39;&amp;&#39;)" in page.text


def test_the_curve_is_drawn_beside_popularity_where_the_server_sees_it(api: Api) -> None:
    common = {
        "recipe_parameters": {"items": 2, "dim": 2, "clip": 1.0},
        "schedule": {"cohort_size": 4, "min_clients": 2, "rounds": 30},
        "evaluation": {"every": 2},
    }
    seen, hidden = "t_" + "a" * 20, "t_" + "b" * 20
    encrypted = {"mechanism_name": "ckks", "opened_by": "members", "needs_keyring": True}
    with services(api).database.write() as session:
        session.add_all([task_row(seen, **common), task_row(hidden, **common, **encrypted)])
        session.flush()
        for number in (1, 3):
            report = {"hr@10": 0.25 * number, "popularity hr@10": 0.3}
            session.add(round_row(seen, number=number, state="complete", report=report, survivors=4))
    enter(api)
    pages = [api.http.get(f"/dashboard/tasks/{task}").text for task in (seen, hidden)]
    assert [("stroke-dasharray" in page, "popularity" in page) for page in pages] == [(True, True), (False, False)]


def test_pages_load_nothing_from_elsewhere_and_run_nothing_inline(api: Api) -> None:
    enter(api)
    for path in ("/sign-in", "", "/health", "/nowhere", "/tasks/t_none"):
        answer = api.http.get(f"/dashboard{path}")
        policy = answer.headers["content-security-policy"]
        for rule in ("default-src 'none'", "style-src 'self'", "script-src 'self'", "connect-src 'self'"):
            assert f"{rule};" in policy
        assert "unsafe" not in policy
        assert "form-action 'self'; frame-ancestors 'none'" in policy
        assert answer.headers["cache-control"] == "no-store"
        assert answer.headers["referrer-policy"] == "same-origin"
        assert not re.search(r"<script(?![^>]* src=)|<style|\sstyle=|\son\w+=|https?://(?!www\.w3\.org)", answer.text)
        assert answer.text.count("<h1") == 1
        assert '<html lang="en">' in answer.text


def test_static_files_are_cacheable(api: Api) -> None:
    page = api.http.get("/dashboard/sign-in").text
    links = re.findall(r'(?:href|src)="(/dashboard/static/[^"]+)"', page)
    assert len(set(links)) == 3
    for link in links:
        answer = checked(api.http.get(link))
        assert "immutable" in answer.headers["cache-control"]
    assert api.http.get("/dashboard/static/pages.py").status_code == 404
    assert api.http.get("/dashboard/static/..%2Fpages.py").status_code in (303, 404)


def test_errors_are_pages_with_the_right_status(api: Api) -> None:
    task = started(api, "refusals")
    enter(api)
    for path, status in {
        "/dashboard/nowhere": 404,
        "/dashboard/tasks/t_none": 404,
        page_of(task, 99): 404,
        f"/dashboard/tasks/{task.id}/rounds/0": 422,
        f"/dashboard/tasks/{task.id}/rounds/none": 422,
        "/dashboard?page=0": 422,
        f"/dashboard/tasks/{'x' * 100}": 422,
    }.items():
        answer = api.http.get(path)
        assert answer.status_code == status, path
        assert answer.headers["content-type"].startswith("text/html")
    assert api.http.get("/dashboard/").headers["location"] == "/dashboard"


def test_pages_warn_when_signatures_are_off(api: Api, tmp_path: Path) -> None:
    with aggregator_inside(tmp_path / "data", signatures="off") as unsigned:
        unsigned.http.follow_redirects = False
        for served, warned in ((unsigned, True), (api, False)):
            task = served.create_task("signed-or-not", cohort=3)
            enter(served)
            assert ("HUSHREC_SIGNATURES=off" in served.http.get("/dashboard").text) is warned
            shown = html.unescape(served.http.get(f"/dashboard/tasks/{task.id}").text)
            warning = "Requests need no signature: anyone who has a client's token can act as that client."
            assert (warning in shown) is warned


def test_sign_in_redirects_back_to_a_page_of_the_dashboard_only(api: Api) -> None:
    place = page_of(started(api, "way-back"))
    answer = api.http.get(place)
    assert (answer.status_code, answer.headers["location"][:24]) == (303, "/dashboard/sign-in?next=")
    form = api.http.get(answer.headers["location"]).text
    following = html.unescape(re.findall(r'name="next" value="([^"]*)"', form)[0])
    evil = ("https://evil.example/", "//evil.example", "/\\evil.example", "/sign-out", "javascript:alert(1)", "/a?b")
    for asked, led in ((following, place), *((one, "/dashboard") for one in evil)):
        answer = api.http.post("/dashboard/sign-in", data={"token": OPERATOR_TOKEN, "next": asked}, headers=OURS)
        assert answer.headers["location"] == led, asked
        assert "evil" not in api.http.get("/dashboard/sign-in", params={"next": asked}).text
    assert api.http.get(place).status_code == 200


def test_wrong_tokens_and_made_up_cookies_are_refused_and_not_repeated(api: Api) -> None:
    (member, *_) = api.create_task("no-operator", cohort=3).enrol(1)
    for token in ("", "hro_wrong", "x" * 500, member.token):
        answer = sign_in(api.http, HERE, token)
        assert answer.status_code in (401, 422)
        assert "set-cookie" not in answer.headers
        assert not token or token not in answer.text
    for secret in ("", "hrs_made-up", "x" * 5000, '"'):
        assert api.http.get("/dashboard", headers={"Cookie": f"hushrec={secret}"}).status_code == 303


def test_failed_sign_ins_are_rate_limited(tmp_path: Path) -> None:
    with aggregator_inside(tmp_path / "data", failure_rate=0.2) as api:
        answers = [sign_in(api.http, HERE, f"hro_guess-{number}").status_code for number in range(8)]
        assert answers[:4] == [401] * 4
        assert answers[-1] == 429
        assert "retry-after" in sign_in(api.http, HERE, "hro_guess").headers


def test_the_cookie_is_a_separate_secret_and_the_token_is_not_stored(api: Api) -> None:
    token = new_operator(api, "cookie")
    cookie = sign_in(api.http, HERE, token).headers["set-cookie"]
    for flag in ("HttpOnly", "SameSite=strict", "Path=/dashboard", "Max-Age=43200"):
        assert flag in cookie
    assert "Secure" not in cookie  # without TLS
    form, origin = {"data": {"token": OPERATOR_TOKEN}}, "https://test"
    secured = api.http.post(f"{origin}/dashboard/sign-in", headers={"Origin": origin}, **form).headers["set-cookie"]
    assert secured.startswith("__Host-hushrec=")
    assert "Secure" in secured and "Path=/;" in secured
    secret = api.http.cookies["hushrec"]
    with services(api).database.read() as session:
        rows = list(session.scalars(select(SignInRow)))
    assert not any(secret in str(vars(row)) or token in str(vars(row)) for row in rows)
    for path in ("", "/health"):
        page = api.http.get(f"/dashboard{path}").text
        assert token not in page
        assert secret not in page


def test_a_sign_in_ends_with_its_time_its_token_or_by_signing_out(api: Api, clock: ManualClock) -> None:
    operators = "/v1/operators"
    for name, end in {
        "revoked": lambda _: api.http.delete(f"{operators}/revoked", headers=api.operator),
        "rotated": lambda _: api.http.post(f"{operators}/rotated/rotation", headers=api.operator),
        "expired": lambda _: clock.advance(601),
        "signed-out": lambda carried: post(api, "/dashboard/sign-out", carried),
    }.items():
        carried = enter(api, new_operator(api, name, expires_seconds=600))
        cookie = {"Cookie": f"hushrec={api.http.cookies['hushrec']}"}
        assert api.http.get("/dashboard", headers=cookie).status_code == 200
        end(carried)
        api.http.cookies.clear()
        assert api.http.get("/dashboard", headers=cookie).status_code == 303, name
    enter(api)
    clock.advance(43_199)
    assert api.http.get("/dashboard").status_code == 200
    clock.advance(2)
    assert api.http.get("/dashboard").status_code == 303
