"""Signed requests: no stolen token, recorded request, or request to another server is accepted."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import httpx
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from aggregator_service.http.authentication import own_authorities
from aggregator_service.settings import Settings
from protocols.crypto.http_signature import SIGNATURE, SIGNATURE_INPUT
from protocols.messages import TaskView
from protocols.task_terms import broadcast_digest
from tests.support.api import Api, TestMember, aggregator_inside, checked, digest_field, serving, slug
from tests.support.clock import ManualClock
from tests.support.signing import UNSIGNED, enrolled_as, signature_of

WINDOW = 60


@pytest.fixture
def members(api: Api) -> list[TestMember]:
    return api.create_task(cohort=2).begin(2)


def build(member: TestMember, body: bytes | None = None) -> httpx.Request:
    """Build an unsigned upload, or without a body a GET of the task."""
    http = member.task.api.http
    if body is None:
        return http.build_request("GET", f"{member.task.path}/rounds?limit=5", headers=member.auth)
    headers = {**member.auth, "Content-Digest": digest_field(body)}
    return http.build_request("PUT", member.path(1), content=body, headers=headers)


def signed(request: httpx.Request, member: TestMember, clock: ManualClock, late: int = 0) -> httpx.Request:
    client_id, _, key = enrolled_as(member.token)
    request.headers.update(signature_of(request, client_id, key, round(clock.now()) + late))
    return request


def sent(member: TestMember, request: httpx.Request) -> httpx.Response:
    return member.task.api.http.send(request, auth=None)


def refused(member: TestMember, request: httpx.Request, why: str = "bad-signature") -> str:
    """Return the detail of the refusal, after checking that nothing was stored."""
    answer = sent(member, request)
    assert (answer.status_code, slug(answer)) == (400 if why == "bad-digest" else 401, why), answer.text
    assert "www-authenticate" in answer.headers or why == "bad-digest"
    assert member.task.round(1)["received"] == 0
    return str(answer.json()["detail"])


def test_a_token_without_a_signature_is_refused(members: list[TestMember]) -> None:
    assert "are missing" in refused(members[0], build(members[0], members[0].contribution(1, 5.0)))
    assert "are missing" in refused(members[0], build(members[0]))
    headers = {**members[0].auth, **UNSIGNED}
    assert members[0].task.api.http.get(members[0].task.path, headers=headers).status_code == 401
    for dropped in (SIGNATURE, SIGNATURE_INPUT):
        request = signed(build(members[0]), members[0], ManualClock(1790000000.0))
        del request.headers[dropped]
        assert "are missing" in refused(members[0], request)


def test_a_signature_of_another_key_or_client_is_refused(members: list[TestMember], clock: ManualClock) -> None:
    one, other = members
    own, theirs = Ed25519PrivateKey.generate(), enrolled_as(other.token)[2]
    for client_id, key, words in (
        (one.client_id, own, "does not match"),
        (one.client_id, theirs, "does not match"),
        (other.client_id, theirs, "keyid"),  # the other client's signature with this client's token
    ):
        request = build(one)
        request.headers.update(signature_of(request, client_id, key, round(clock.now())))
        assert words in refused(one, request)


def test_attack_a_recorded_request_is_altered(members: list[TestMember], clock: ManualClock) -> None:
    """Its method, path, query, body, or the place of its chunk."""
    member, http = members[0], members[0].task.api.http
    body, other = member.contribution(1, 5.0), member.contribution(1, 6.0)
    good = signed(build(member), member, clock)
    for moved in ("", "?limit=6", "?limit=5&after=0", "/1", "/1?limit=5", "?%6cimit=5"):
        refused(member, http.build_request("GET", f"{member.task.path}/rounds{moved}", headers=good.headers))
    good = signed(http.build_request("HEAD", member.path(1), headers=member.auth), member, clock)
    assert sent(member, good).status_code == 204
    refused(member, http.build_request("PUT", member.path(1), headers=good.headers))
    good = signed(build(member, body), member, clock)
    refused(member, http.build_request("PUT", member.path(1), content=other, headers=good.headers), "bad-digest")
    good.headers["content-digest"] = digest_field(other)
    refused(member, http.build_request("PUT", member.path(1), content=other, headers=good.headers))
    bare = build(member, body)
    del bare.headers["content-digest"]
    assert "Content-Digest" in refused(member, signed(bare, member, clock), "bad-digest")
    chunk = {"Upload-Offset": "0", "Upload-Complete": "?0", "Content-Digest": digest_field(body[:40])}
    headers = {**member.auth, **chunk, "Content-Type": "application/partial-upload"}
    good = signed(http.build_request("PATCH", member.path(1), content=body[:40], headers=headers), member, clock)
    for change in ({"Upload-Offset": "8"}, {"Upload-Complete": "?1"}, {"Repr-Digest": digest_field(body)}):
        altered = http.build_request("PATCH", member.path(1), content=body[:40], headers=good.headers)
        altered.headers.update(change)
        refused(member, altered)
    assert sent(member, good).status_code == 204


def test_a_signature_is_stale_outside_the_window(members: list[TestMember], clock: ManualClock) -> None:
    for late in (-WINDOW, 0, WINDOW):
        assert sent(members[0], signed(build(members[0]), members[0], clock, late)).status_code == 200
    for late in (-WINDOW - 1, WINDOW + 1, 86_400, -1790000000):
        answer = sent(members[0], signed(build(members[0]), members[0], clock, late))
        assert (answer.status_code, slug(answer)) == (401, "stale-signature")
        document = answer.json()
        assert (document["skew_seconds"], document["server_time"]) == (late, 1790000000)
        assert f"{abs(late)} seconds" in document["detail"]


def test_malformed_or_repeated_signature_headers_are_refused(members: list[TestMember], clock: ManualClock) -> None:
    member, http = members[0], members[0].task.api.http
    good = signed(build(member), member, clock)
    text, signature = good.headers[SIGNATURE_INPUT], good.headers[SIGNATURE]
    for changes in (
        {SIGNATURE_INPUT: f"{text}, b{text}", SIGNATURE: f"{signature}, b{signature}"},
        {SIGNATURE_INPUT: text + ";" * 5000},
        {SIGNATURE: b"\xe9"},
    ):
        odd = http.build_request("GET", str(good.url), headers={**good.headers, **changes})
        assert len(refused(member, odd)) < 400
    twice = [*good.headers.multi_items(), (SIGNATURE, signature)]
    assert "more than one header" in refused(member, http.build_request("GET", str(good.url), headers=twice))


@pytest.mark.parametrize("kind", ["stale", "unsigned"])
def test_attack_failed_signatures_count_against_the_address_and_not_against_the_client(
    tmp_path: Path, clock: ManualClock, kind: str
) -> None:
    """Whoever has an old request of a member, and sends it again and again, does not use up the member's rate."""
    with aggregator_inside(tmp_path / "strict", clock=clock, failure_rate=0.5, client_rate=0.2) as api:
        member = api.create_task(cohort=2).enrol(1)[0]
        request = signed(build(member), member, clock, -3600) if kind == "stale" else build(member)
        statuses = [sent(member, request).status_code for _ in range(12)]
        assert statuses == [401] * 10 + [429] * 2
        assert sent(member, signed(build(member), member, clock)).status_code == 200  # the client itself is not limited


def test_signatures_off_give_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture, clock: ManualClock) -> None:
    assert Settings().signatures == "required"
    caplog.set_level(logging.WARNING)
    with aggregator_inside(tmp_path / "off", clock=clock, signatures="off") as api:
        assert "HUSHREC_SIGNATURES=off" in caplog.text
        task = api.create_task(cohort=2)
        member = task.enrol(1)[0]
        assert sent(member, build(member)).status_code == 200
        view = api.http.get(task.path, headers=member.auth).json()
        assert any("need no signature" in warning for warning in view["warnings"])
        # masks are bound to the terms of the task, and the warning is a fact about the server
        bound = [TaskView.model_validate(view | {"warnings": texts}) for texts in ([], view["warnings"])]
        assert len({broadcast_digest(terms, 1, None, ()) for terms in bound}) == 1


def test_signatures_behind_a_proxy_that_removes_a_path_prefix(tmp_path: Path) -> None:
    with serving(tmp_path / "data", root_path="/hushrec/one") as (server, api):  # uvicorn applies it
        task = api.create_task(cohort=2)
        member = task.enrol(1)[0]
        for prefix, status in (("/hushrec/one", 200), ("", 401)):
            client_id, _, key = enrolled_as(member.token)
            asked = httpx.Request("GET", f"{server.url}{prefix}{task.path}", headers=member.auth)
            arrives = api.http.build_request("GET", task.path, headers=member.auth)  # as the proxy forwards it
            arrives.headers.update(signature_of(asked, client_id, key))
            assert api.http.send(arrives, auth=None).status_code == status


EVIL = "http://evil.example"


def new_member(api: Api) -> TestMember:
    task = api.create_task(cohort=2)
    member = task.enrol(2)[0]
    task.wait_round(1, "collecting")
    return member


def signed_for(origin: str, member: TestMember, host: str, body: bytes | None = None) -> httpx.Request:
    """A request that the client signed for the server `origin`, as it is sent to the aggregator. host: header Host."""
    method, path = ("GET", member.task.path) if body is None else ("PUT", member.path(1))
    headers = member.auth | ({} if body is None else {"Content-Digest": digest_field(body)})
    client_id, _, key = enrolled_as(member.token)
    recorded = httpx.Request(method, f"{origin}{path}", content=body, headers=headers)
    fields = {**headers, **signature_of(recorded, client_id, key), "Host": host}
    return member.task.api.http.build_request(method, path, content=body, headers=fields)


def test_attack_a_contribution_signed_for_another_server_is_forwarded(inside: Api) -> None:
    """A malicious server has the client's token, task and ids here, and forwards what the client signs for it."""
    member = new_member(inside)
    for host, words in (("evil.example", "HUSHREC_PUBLIC_ORIGINS"), ("test", "for another server"), ("localhost", "")):
        answer = sent(member, signed_for(EVIL, member, host, member.contribution(1, 5.0)))
        assert (answer.status_code, slug(answer)) == (401, "bad-signature")
        assert words in answer.json()["detail"]
        assert "evil" not in answer.text
    assert member.task.round(1)["received"] == 0


def test_a_proxy_may_rewrite_the_host_if_the_public_origins_are_set(tmp_path: Path) -> None:
    origins = "https://hushrec.example.org, https://hushrec.example.net:8443,http://test"
    with aggregator_inside(tmp_path / "data", public_origins=origins) as api:
        member = new_member(api)
        for origin in ("https://hushrec.example.org", "https://HUSHREC.example.net:8443", "https://test:443"):
            for host in ("hushrec.example.org", "10.0.0.5:8000", "hushrec.example.net:8443"):
                checked(sent(member, signed_for(origin, member, host)))
        for origin in ("https://hushrec.example.org:8443", "https://hushrec.example.net", EVIL):
            for host in ("hushrec.example.org", "10.0.0.5:8000", "evil.example"):
                assert sent(member, signed_for(origin, member, host)).status_code == 401


def test_a_server_without_the_setting_is_reached_at_its_address_and_at_localhost(tmp_path: Path) -> None:
    with serving(tmp_path / "data") as (server, api):
        member = new_member(api)
        for host, status in (("127.0.0.1", 200), ("localhost", 200), ("127.0.0.2", 401), ("example.org", 401)):
            address = f"{host}:{server.port}"
            assert sent(member, signed_for(f"http://{address}", member, address)).status_code == status
            elsewhere = f"{host}:{server.port ^ 1}"  # another server of this machine
            assert sent(member, signed_for(f"http://{elsewhere}", member, elsewhere)).status_code == 401


@pytest.mark.parametrize(
    ("scheme", "server", "found"),
    [
        ("http", ("127.0.0.1", 8000), ("127.0.0.1:8000", "localhost:8000")),
        ("http", ("192.0.2.7", 80), ("192.0.2.7",)),
        ("https", ("192.0.2.7", 443), ("192.0.2.7",)),
        ("http", ("::1", 8000), ("[::1]:8000", "localhost:8000")),
        ("https", ("2001:db8::1", 8443), ("[2001:db8::1]:8443",)),
        ("http", ("::ffff:192.0.2.7", 8000), ("192.0.2.7:8000",)),
        ("http", ("/run/hushrec.sock", None), ()),
        ("http", None, ()),
    ],
)
def test_the_addresses_of_a_connection(scheme: str, server: Any, found: tuple[str, ...]) -> None:
    scope = {"type": "http", "scheme": scheme, "server": server, "headers": [(b"host", b"evil.example")]}
    assert tuple(own_authorities(scope, ())) == found
    assert own_authorities(scope, ("hushrec.example.org",)) == ("hushrec.example.org",)


def test_public_origins_are_normalised() -> None:
    given = " https://Hushrec.Example.org:443 ,http://[2001:DB8::1]:80/,https://10.0.0.5:8443"
    settings = Settings(public_origins=given)
    assert settings.public_origins == ("https://hushrec.example.org", "http://[2001:db8::1]", "https://10.0.0.5:8443")
    assert settings.public_authorities == ("hushrec.example.org", "[2001:db8::1]", "10.0.0.5:8443")
