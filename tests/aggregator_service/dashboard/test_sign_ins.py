"""Getting in over HTTP: who does, what a cookie is worth, and what ends it."""

from __future__ import annotations

import html
import re
from pathlib import Path

import pytest
from sqlalchemy import select

from aggregator_service.clock import ManualClock
from aggregator_service.storage.schema import SignInRow
from tests.support.api import Api
from tests.support.dashboard import HERE, OURS, enter, new_operator, page_of, sign_in
from tests.support.inside import aggregator_inside, services
from tests.support.server import OPERATOR_TOKEN

pytestmark = pytest.mark.usefixtures("nobody")


def test_who_is_not_signed_in_is_asked_to_and_comes_back(api: Api) -> None:
    task = api.create_task("way-back", cohort=3)
    task.enrol(3)
    task.wait_round(1, "collecting")
    answer = api.http.get(page_of(task))
    assert answer.status_code == 303
    place = answer.headers["location"]
    assert place.startswith("/dashboard/sign-in?next=")
    form = api.http.get(place).text
    following = html.unescape(re.search(r'name="next" value="([^"]*)"', form).group(1))  # type: ignore[union-attr]
    back = api.http.post("/dashboard/sign-in", data={"token": OPERATOR_TOKEN, "next": following}, headers=OURS)
    assert back.headers["location"] == page_of(task)
    assert api.http.get(page_of(task)).status_code == 200


@pytest.mark.parametrize(
    "asked",
    ["https://evil.example/", "//evil.example", "/\\evil.example", "/sign-out", "javascript:alert(1)", "/a?b=c"],
)
def test_signing_in_leads_nowhere_else(api: Api, asked: str) -> None:
    answer = api.http.post("/dashboard/sign-in", data={"token": OPERATOR_TOKEN, "next": asked}, headers=OURS)
    assert answer.headers["location"] == "/dashboard"
    assert "evil" not in api.http.get("/dashboard/sign-in", params={"next": asked}).text


@pytest.mark.parametrize("token", ["", "hro_wrong", "x" * 500])
def test_a_wrong_token_is_refused_in_words_and_repeated_nowhere(api: Api, token: str) -> None:
    answer = sign_in(api.http, HERE, token)
    assert answer.status_code in (401, 422)
    assert "set-cookie" not in answer.headers
    assert not token or token not in answer.text
    assert api.http.get("/dashboard").status_code == 303


def test_a_clients_token_is_no_operators(api: Api) -> None:
    (member, *_) = api.create_task("no-operator", cohort=3).enrol(1)
    assert sign_in(api.http, HERE, member.token).status_code == 401


def test_guessing_is_slowed_down(tmp_path: Path) -> None:
    with aggregator_inside(tmp_path / "data", failure_rate=0.2) as api:
        answers = [sign_in(api.http, HERE, f"hro_guess-{number}").status_code for number in range(8)]
        assert answers[:4] == [401] * 4
        assert answers[-1] == 429
        assert "retry-after" in sign_in(api.http, HERE, "hro_guess").headers


def test_the_cookie_is_a_secret_of_its_own_and_the_token_is_kept_nowhere(api: Api) -> None:
    token = new_operator(api, "cookie")
    answer = sign_in(api.http, HERE, token)
    cookie = answer.headers["set-cookie"]
    for flag in ("HttpOnly", "SameSite=strict", "Path=/dashboard", "Max-Age=43200"):
        assert flag in cookie
    assert "Secure" not in cookie  # there is no TLS here
    secret = api.http.cookies["hushrec"]
    with services(api).database.read() as session:
        rows = list(session.scalars(select(SignInRow)))
    assert not any(secret in str(vars(row)) or token in str(vars(row)) for row in rows)
    for path in ("", "/health"):
        page = api.http.get(f"/dashboard{path}").text
        assert token not in page
        assert secret not in page


def test_under_tls_the_cookie_is_bound_to_host_and_tls(api: Api) -> None:
    answer = api.http.post(
        "https://test/dashboard/sign-in", data={"token": OPERATOR_TOKEN}, headers={"Origin": "https://test"}
    )
    cookie = answer.headers["set-cookie"]
    assert cookie.startswith("__Host-hushrec=")
    assert "Secure" in cookie
    assert "Path=/;" in cookie


def test_a_sign_in_ends_by_itself(api: Api, clock: ManualClock) -> None:
    enter(api)
    clock.advance(43_199)
    assert api.http.get("/dashboard").status_code == 200
    clock.advance(2)
    assert api.http.get("/dashboard").status_code == 303


def test_signing_out_voids_the_cookie_itself(api: Api) -> None:
    carried = enter(api)
    secret = api.http.cookies["hushrec"]
    answer = api.http.post("/dashboard/sign-out", data={"form_token": carried}, headers=OURS)
    assert (answer.status_code, answer.headers["location"]) == (303, "/dashboard/sign-in")
    assert "Max-Age=0" in answer.headers["set-cookie"]
    again = api.http.get("/dashboard", headers={"Cookie": f"hushrec={secret}"})
    assert again.status_code == 303


@pytest.mark.parametrize("how", ["revoked", "rotated", "expired"])
def test_a_token_that_is_void_ends_what_was_begun_with_it(api: Api, clock: ManualClock, how: str) -> None:
    token = new_operator(api, f"void-{how}", expires_seconds=600)
    enter(api, token)
    if how == "revoked":
        assert api.http.delete(f"/v1/operators/void-{how}", headers=api.operator).status_code == 200
    elif how == "rotated":
        assert api.http.post(f"/v1/operators/void-{how}/rotation", headers=api.operator).status_code == 200
    else:
        clock.advance(601)
    assert api.http.get("/dashboard").status_code == 303


def test_a_secret_that_nobody_was_given_is_nobody(api: Api) -> None:
    for secret in ("hrs_made-up", "x" * 5000, '"'):
        assert api.http.get("/dashboard", headers={"Cookie": f"hushrec={secret}"}).status_code == 303
