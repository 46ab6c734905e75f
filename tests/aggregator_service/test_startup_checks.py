"""What `hushrec-server serve` says about its TLS files and settings before it starts."""

from __future__ import annotations

import resource
import ssl
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)
from sqlalchemy import text

from aggregator_service.commands.common import CommandError
from aggregator_service.commands.startup_checks import (
    check_packages,
    check_semaphores,
    check_tls_files,
    doubtful_settings,
)
from aggregator_service.migrations.migrate import migrate
from aggregator_service.settings import Settings
from aggregator_service.storage.database import Database
from client_sdk import Client, Identity, MemoryStore, Policy
from client_sdk.errors import UntrustedServer
from tests.support.certificates import Authority
from tests.support.replicas import wait_until
from tests.support.server import AggregatorProcess, running_aggregator


def settings(tmp_path: Path, **values: object) -> Settings:
    return Settings.load(data_dir=tmp_path, **values)


def test_a_package_for_the_dashboard_is_missed_at_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    check_packages()
    monkeypatch.setattr("aggregator_service.commands.startup_checks.find_spec", lambda name: name != "jinja2" or None)
    with pytest.raises(ModuleNotFoundError) as caught:
        check_packages()
    assert caught.value.name == "jinja2"


def test_semaphores_that_cannot_be_created_are_named_at_the_start() -> None:
    check_semaphores()
    files = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(
        resource.RLIMIT_NOFILE, (0, files[1])
    )  # no file can be opened, as where /dev/shm is not writable
    try:
        with pytest.raises(CommandError, match="cannot create a semaphore .*/dev/shm must be a tmpfs"):
            check_semaphores()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, files)


def test_unknown_variables_are_named_with_the_nearest_setting(tmp_path: Path) -> None:
    variables = ["HUSHREC_WORKRES", "HUSHREC_PORT", "HUSHREC_INVITATION", "PATH", "HUSHREC_QQQQQ"]
    assert list(doubtful_settings(settings(tmp_path), variables)) == [
        "unknown setting HUSHREC_QQQQQ is ignored",
        "unknown setting HUSHREC_WORKRES is ignored; did you mean HUSHREC_WORKERS?",
    ]


@pytest.mark.parametrize(("host", "warned"), [("0.0.0.0", True), ("::", True), ("127.0.0.1", False), ("::1", False)])  # noqa: S104
def test_plain_http_beyond_this_machine_is_warned_of(tmp_path: Path, host: str, warned: bool) -> None:
    def missing(**more: Any) -> list[str]:
        """What the server says it lacks."""
        found = doubtful_settings(settings(tmp_path, host=host, **more), [])
        return [text.removeprefix(f"listening on {host} without ").partition(":")[0] for text in found]

    assert missing() == (["TLS", "a reverse proxy"] if warned else [])
    assert missing(behind_proxy=True) == []
    pair = Authority(tmp_path).sign("server", server=True)
    assert missing(tls_cert=pair.certificate, tls_key=pair.key) == (["a reverse proxy"] if warned else [])


def test_tls_files_that_are_swapped_foreign_or_unreadable_are_named(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    pair, other = authority.sign("server", server=True), authority.sign("other", server=True)
    check_tls_files(settings(tmp_path, tls_cert=pair.certificate, tls_key=pair.key, client_ca=authority.certificate))
    notes = tmp_path / "notes.txt"
    notes.write_text("nothing", encoding="ascii")
    sealed = tmp_path / "sealed.key"
    key = load_pem_private_key(pair.key.read_bytes(), None)
    sealed.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"secret")))
    cases = [
        (
            pair.key,
            pair.certificate,
            None,
            "holds no certificate but: PRIVATE KEY. Are the files",
        ),
        (
            pair.certificate,
            pair.certificate,
            None,
            "holds no private key but: CERTIFICATE",
        ),
        (pair.certificate, other.key, None, "do not fit: KEY_VALUES_MISMATCH"),
        (notes, pair.key, None, f"{notes} holds no certificate: it is not a PEM file"),
        (pair.certificate, pair.key, pair.key, f"--client-ca {pair.key} holds no certificate"),
        (tmp_path / "none.pem", pair.key, None, f"cannot read {tmp_path / 'none.pem'}"),
        (pair.certificate, sealed, None, "the private key is encrypted"),
    ]
    for certificate, given, client_ca, words in cases:
        with pytest.raises(CommandError, match=words):
            check_tls_files(settings(tmp_path, tls_cert=certificate, tls_key=given, client_ca=client_ca))


def test_a_client_names_an_untrusted_certificate_at_once(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    pair = authority.sign("server", server=True)
    context = ssl.create_default_context(cafile=str(authority.certificate))
    with running_aggregator(tmp_path / "data", context, tls_cert=pair.certificate, tls_key=pair.key) as server:
        policy = Policy(mechanisms=frozenset({"plain"}))
        with (
            Client(server.url, Identity.generate(), MemoryStore(), policy) as client,
            pytest.raises(UntrustedServer, match="the server's certificate is not trusted"),
        ):
            client.join("films", invitation="hri_" + "x" * 32)
        wait_until(lambda: server.log().count(f"running on {server.url}") == 1, "the server's address is logged")


def test_a_server_does_not_run_on_a_database_of_a_newer_version(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    database = Database(f"sqlite:///{data / 'hushrec.db'}", connections=1)
    with closing(database):
        migrate(database)
        with database.write() as session:
            session.execute(text("UPDATE alembic_version SET version_num = '9999_of_the_future'"))
    server = AggregatorProcess(data, fresh=True)
    with pytest.raises(RuntimeError, match="a newer version of the server has migrated this database"):
        server.start()
    assert "running on" not in server.log()
    assert "Traceback" not in server.log()


@pytest.mark.parametrize("expired", [True, False])
def test_an_expired_certificate_is_warned_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, expired: bool) -> None:
    pair = Authority(tmp_path).sign("server", server=True)  # good for a day
    if expired:
        day_after_tomorrow = time.time() + 2 * 86_400
        monkeypatch.setattr("aggregator_service.commands.startup_checks.time.time", lambda: day_after_tomorrow)
    warnings = list(doubtful_settings(settings(tmp_path, tls_cert=pair.certificate, tls_key=pair.key), ()))
    assert [str(pair.certificate) in text and "has expired" in text for text in warnings] == [True] * expired
