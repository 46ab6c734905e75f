"""TLS over real connections: the server's certificate, and client certificates."""

from __future__ import annotations

import ssl
from pathlib import Path

import httpx
import pytest
from pydantic import ValidationError

from aggregator_service.settings import Settings
from client_sdk import Operator
from tests.support.certificates import Authority, Pair
from tests.support.server import AggregatorProcess, running_aggregator


def context(authority: Authority, pair: Pair | None = None) -> ssl.SSLContext:
    made = ssl.create_default_context(cafile=str(authority.certificate))
    if pair is not None:
        made.load_cert_chain(pair.certificate, pair.key)
    return made


def test_a_server_with_a_certificate_accepts_tls_only(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    pair = authority.sign("server", server=True)
    with running_aggregator(
        tmp_path / "data", context=context(authority), tls_cert=pair.certificate, tls_key=pair.key, hsts_seconds=600
    ) as server:
        assert server.url.startswith("https://")
        answer = httpx.get(f"{server.url}/healthz", verify=context(authority))
        assert answer.headers["strict-transport-security"] == "max-age=600"
        with pytest.raises(httpx.ConnectError, match="CERTIFICATE_VERIFY_FAILED"):
            httpx.get(f"{server.url}/healthz", verify=context(Authority(tmp_path, "stranger")))
        with pytest.raises(httpx.TransportError):
            httpx.get(f"http://127.0.0.1:{server.port}/healthz")
        old = context(authority)
        with pytest.warns(DeprecationWarning):
            old.maximum_version = ssl.TLSVersion.TLSv1_1
        with pytest.raises(httpx.ConnectError):
            httpx.get(f"{server.url}/healthz", verify=old)


def test_clients_must_present_a_certificate_of_the_configured_authority(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority, stranger = Authority(tmp_path), Authority(tmp_path, "stranger")
    pair, client = authority.sign("server", server=True), authority.sign("client", server=False)
    with running_aggregator(
        tmp_path / "data",
        context=context(authority, client),
        tls_cert=pair.certificate,
        tls_key=pair.key,
        client_ca=authority.certificate,
    ) as server:
        headers = {"Authorization": f"Bearer {server.operator_token}"}
        known = httpx.get(f"{server.url}/v1/tasks", headers=headers, verify=context(authority, client))
        assert known.json() == {"tasks": []}
        # a certificate does not replace a token
        assert httpx.get(f"{server.url}/v1/tasks", verify=context(authority, client)).status_code == 401
        # the SDK presents the certificate that its environment variables name
        monkeypatch.setenv("SSL_CERT_FILE", str(authority.certificate))
        monkeypatch.setenv("HUSHREC_CLIENT_CERT", str(client.certificate))
        monkeypatch.setenv("HUSHREC_CLIENT_KEY", str(client.key))
        with Operator(server.url, server.operator_token) as operator:
            assert operator.tasks() == []
        for shown in (None, stranger.sign("client-of-another", server=False)):
            with pytest.raises(httpx.TransportError):
                httpx.get(f"{server.url}/v1/tasks", headers=headers, verify=context(authority, shown))


def test_a_missing_key_file_is_named_in_one_line(tmp_path: Path) -> None:
    pair = Authority(tmp_path).sign("server", server=True)
    pair.key.unlink()
    server = AggregatorProcess(tmp_path / "data", tls_cert=pair.certificate, tls_key=pair.key)
    with pytest.raises(RuntimeError, match="did not start"):
        server.start()
    assert str(pair.key) in server.log()
    assert "Traceback" not in server.log()


@pytest.mark.parametrize("given", [{"tls_cert": "a.pem"}, {"tls_key": "a.key"}, {"client_ca": "ca.pem"}])
def test_an_incomplete_tls_configuration_is_refused(given: dict[str, str]) -> None:
    with pytest.raises(ValidationError, match="HUSHREC_TLS_CERT and HUSHREC_TLS_KEY"):
        Settings(**given)
