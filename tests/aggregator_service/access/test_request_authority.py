"""A request is signed for one server: another server cannot forward it, and proxies may rewrite the header Host."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from pydantic import ValidationError

from aggregator_service.http import authentication
from aggregator_service.http.authentication import own_authorities
from aggregator_service.settings import Settings
from tests.support.api import Api, TestMember, digest_field
from tests.support.inside import aggregator_inside
from tests.support.server import running_aggregator
from tests.support.signing import enrolled_as, signature_of

EVIL = "http://evil.example"


@pytest.fixture
def api(tmp_path: Path) -> Iterator[Api]:
    with aggregator_inside(tmp_path / "data") as inside:
        yield inside


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


def answer_to(member: TestMember, request: httpx.Request) -> httpx.Response:
    return member.task.api.http.send(request, auth=None)


@pytest.mark.parametrize("host", ["evil.example", "test", "localhost"])
def test_attack_a_contribution_signed_for_another_server_is_forwarded(
    api: Api, monkeypatch: pytest.MonkeyPatch, host: str
) -> None:
    """A malicious server has the client's token, task and ids here, and forwards what the client signs for it."""
    member = new_member(api)
    recorded = signed_for(EVIL, member, host, member.contribution(1, 5.0))
    answer = answer_to(member, recorded)
    assert (answer.status_code, answer.json()["type"]) == (401, "urn:hushrec:problem:bad-signature")
    assert member.task.round(1)["received"] == 0

    # undefended: the verifier takes the authority from the header Host, which the attacker chooses
    monkeypatch.setattr(authentication, "own_authorities", lambda scope, public: ["evil.example"])
    assert answer_to(member, recorded).status_code == 201
    assert member.task.round(1)["received"] == 1


def test_an_unknown_address_names_the_setting_to_the_operator(api: Api) -> None:
    member = new_member(api)
    detail = answer_to(member, signed_for(EVIL, member, "evil.example")).json()["detail"]
    assert "HUSHREC_PUBLIC_ORIGINS" in detail
    assert "evil.example" not in detail
    detail = answer_to(member, signed_for(EVIL, member, "test")).json()["detail"]
    assert "for another server" in detail
    assert "HUSHREC" not in detail


def test_a_proxy_may_rewrite_the_host_if_the_public_origins_are_set(tmp_path: Path) -> None:
    origins = "https://hushrec.example.org, https://hushrec.example.net:8443,http://test"
    with aggregator_inside(tmp_path / "data", public_origins=origins) as api:
        member = new_member(api)
        for origin in ("https://hushrec.example.org", "https://HUSHREC.example.net:8443", "https://test:443"):
            for host in ("hushrec.example.org", "10.0.0.5:8000", "hushrec.example.net:8443"):
                answer = answer_to(member, signed_for(origin, member, host))
                assert answer.status_code == 200, answer.text
        for origin in ("https://hushrec.example.org:8443", "https://hushrec.example.net", EVIL):
            for host in ("hushrec.example.org", "10.0.0.5:8000", "evil.example"):
                assert answer_to(member, signed_for(origin, member, host)).status_code == 401


def test_a_server_without_the_setting_is_reached_at_its_address_and_at_localhost(tmp_path: Path) -> None:
    with running_aggregator(tmp_path / "data") as server:
        api = Api(server.url, server.operator_token)
        member = new_member(api)
        for host, status in (("127.0.0.1", 200), ("localhost", 200), ("127.0.0.2", 401), ("example.org", 401)):
            address = f"{host}:{server.port}"
            assert answer_to(member, signed_for(f"http://{address}", member, address)).status_code == status
            elsewhere = f"{host}:{server.port ^ 1}"  # another server of this machine
            assert answer_to(member, signed_for(f"http://{elsewhere}", member, elsewhere)).status_code == 401
        api.close()


@pytest.mark.parametrize(
    ("scheme", "server", "found"),
    [
        ("http", ("127.0.0.1", 8000), ("127.0.0.1:8000", "localhost:8000")),
        ("http", ("192.0.2.7", 80), ("192.0.2.7",)),
        ("https", ("192.0.2.7", 443), ("192.0.2.7",)),
        ("https", ("192.0.2.7", 80), ("192.0.2.7:80",)),
        ("http", ("::1", 8000), ("[::1]:8000", "localhost:8000")),
        ("https", ("2001:db8::1", 8443), ("[2001:db8::1]:8443",)),
        ("http", ("::ffff:192.0.2.7", 8000), ("192.0.2.7:8000",)),
        ("http", ("test", 80), ("test",)),
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
    settings = Settings(public_origins=given)  # type: ignore[arg-type]
    assert settings.public_origins == (
        "https://hushrec.example.org",
        "http://[2001:db8::1]",
        "https://10.0.0.5:8443",
    )
    assert settings.public_authorities == ("hushrec.example.org", "[2001:db8::1]", "10.0.0.5:8443")
    assert Settings().public_authorities == ()


@pytest.mark.parametrize(
    "given",
    [
        "hushrec.example.org",
        "ftp://hushrec.example.org",
        "https://hushrec.example.org/path",
        "https://user@hushrec.example.org",
        "https://*.example.org",
        "https://hushrec.example.org,",
        ",".join(f"https://{index}.example.org" for index in range(9)),
    ],
)
def test_origins_of_another_form_are_refused(given: str) -> None:
    with pytest.raises(ValidationError, match="public_origins"):
        Settings(public_origins=given)  # type: ignore[arg-type]


def test_origins_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HUSHREC_PUBLIC_ORIGINS", "https://one.example,https://two.example")
    assert Settings().public_authorities == ("one.example", "two.example")
