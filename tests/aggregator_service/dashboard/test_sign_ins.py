"""Sign-ins over HTTP: valid tokens, the cookie, and what ends a sign-in."""

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


def test_sign_in_redirects_back_to_the_page(api: Api) -> None:
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
def test_sign_in_redirects_only_to_the_dashboard(api: Api, asked: str) -> None:
    answer = api.http.post("/dashboard/sign-in", data={"token": OPERATOR_TOKEN, "next": asked}, headers=OURS)
    assert answer.headers["location"] == "/dashboard"
    assert "evil" not in api.http.get("/dashboard/sign-in", params={"next": asked}).text


@pytest.mark.parametrize("token", ["", "hro_wrong", "x" * 500])
def test_a_wrong_token_is_refused_and_not_repeated(api: Api, token: str) -> None:
    answer = sign_in(api.http, HERE, token)
    assert answer.status_code in (401, 422)
    assert "set-cookie" not in answer.headers
    assert not token or token not in answer.text
    assert api.http.get("/dashboard").status_code == 303


def test_a_client_token_cannot_sign_in(api: Api) -> None:
    (member, *_) = api.create_task("no-operator", cohort=3).enrol(1)
    assert sign_in(api.http, HERE, member.token).status_code == 401


def test_failed_sign_ins_are_rate_limited(tmp_path: Path) -> None:
    with aggregator_inside(tmp_path / "data", failure_rate=0.2) as api:
        answers = [sign_in(api.http, HERE, f"hro_guess-{number}").status_code for number in range(8)]
        assert answers[:4] == [401] * 4
        assert answers[-1] == 429
        assert "retry-after" in sign_in(api.http, HERE, "hro_guess").headers


def test_the_cookie_is_a_separate_secret_and_the_token_is_not_stored(api: Api) -> None:
    token = new_operator(api, "cookie")
    answer = sign_in(api.http, HERE, token)
    cookie = answer.headers["set-cookie"]
    for flag in ("HttpOnly", "SameSite=strict", "Path=/dashboard", "Max-Age=43200"):
        assert flag in cookie
    assert "Secure" not in cookie  # this test has no TLS
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


def test_a_sign_in_expires(api: Api, clock: ManualClock) -> None:
    enter(api)
    clock.advance(43_199)
    assert api.http.get("/dashboard").status_code == 200
    clock.advance(2)
    assert api.http.get("/dashboard").status_code == 303


def test_signing_out_invalidates_the_cookie(api: Api) -> None:
    carried = enter(api)
    secret = api.http.cookies["hushrec"]
    answer = api.http.post("/dashboard/sign-out", data={"form_token": carried}, headers=OURS)
    assert (answer.status_code, answer.headers["location"]) == (303, "/dashboard/sign-in")
    assert "Max-Age=0" in answer.headers["set-cookie"]
    again = api.http.get("/dashboard", headers={"Cookie": f"hushrec={secret}"})
    assert again.status_code == 303


@pytest.mark.parametrize("how", ["revoked", "rotated", "expired"])
def test_an_invalid_token_ends_its_sign_ins(api: Api, clock: ManualClock, how: str) -> None:
    token = new_operator(api, f"void-{how}", expires_seconds=600)
    enter(api, token)
    if how == "revoked":
        assert api.http.delete(f"/v1/operators/void-{how}", headers=api.operator).status_code == 200
    elif how == "rotated":
        assert api.http.post(f"/v1/operators/void-{how}/rotation", headers=api.operator).status_code == 200
    else:
        clock.advance(601)
    assert api.http.get("/dashboard").status_code == 303


def test_unknown_secrets_are_not_signed_in(api: Api) -> None:
    for secret in ("hrs_made-up", "x" * 5000, '"'):
        assert api.http.get("/dashboard", headers={"Cookie": f"hushrec={secret}"}).status_code == 303
