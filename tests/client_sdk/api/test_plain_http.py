"""No plain HTTP to another machine than this one, unless it is allowed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from client_sdk import Client, ClientOptions, Identity, Issuer, MemoryStore
from client_sdk.api.calls import ApiCalls
from client_sdk.errors import NotFound
from protocols.errors import ParameterError
from tests.client_sdk.api.servers import ONCE, LyingServer, not_found, operate, serving
from tests.support.pages import hushrec

MESSAGE = r"is not encrypted.*--allow-http or ClientOptions\(allow_http=True\)"


@pytest.fixture
def elsewhere() -> Iterator[LyingServer]:
    """A server whose address is not known to be this machine's."""
    with serving(not_found()) as server:
        server.url = server.url.replace("127.0.0.1", "0.0.0.0")  # noqa: S104 - an address to connect to
        yield server


def ask_organiser(url: str, options: ClientOptions) -> None:
    with Client("http://127.0.0.1:9", Identity.generate(), MemoryStore(), options=options) as client:
        client.join(invitation="hri_x", certificate=Issuer(url, "movies", "code"))


@pytest.mark.parametrize("send", [operate, ask_organiser], ids=lambda function: function.__name__)
def test_no_http_to_another_machine(elsewhere: LyingServer, send: Callable[[str, ClientOptions], None]) -> None:
    with pytest.raises(ParameterError, match=MESSAGE):
        send(elsewhere.url, ClientOptions(ONCE))
    assert elsewhere.seen == []
    with pytest.raises(NotFound):
        send(elsewhere.url, ClientOptions(ONCE, allow_http=True))
    assert elsewhere.seen


def test_a_command_has_the_option(elsewhere: LyingServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    command = ("keyring", "create", "--invitation", "hri_x", elsewhere.url)
    status, _, err = hushrec(*command)
    assert (status, elsewhere.seen, "--allow-http" in err) == (1, [], True)
    hushrec(*command, "--allow-http")
    hushrec(*command, HUSHREC_ALLOW_HTTP="1")
    assert elsewhere.seen == 2 * ["GET /v1/enrolments/task"]  # the terms, before an identity is stored


def test_http_is_allowed_on_this_machine_only() -> None:
    for host in ("localhost:8000", "127.0.0.1", "127.8.9.1:80", "[::1]:8000", "LOCALHOST"):
        assert ApiCalls(f"http://{host}").url == f"http://{host}"
    for host in ("example.org", "10.0.0.1", "localhost.example.org", "127.0.0.1.example.org", "[fe80::1]"):
        assert ApiCalls(f"https://{host}").url == f"https://{host}"
        for scheme in ("http", "HTTP"):
            with pytest.raises(ParameterError, match=MESSAGE):
                ApiCalls(f"{scheme}://{host}", "token")
