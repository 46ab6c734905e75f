"""The start of a server: what it checks, what it says when a setting or the database is wrong, and readiness."""

from __future__ import annotations

import os
import resource
import ssl
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)
from pydantic import ValidationError
from sqlalchemy import URL, make_url, text
from sqlalchemy.exc import OperationalError

from aggregator_service.cli import main
from aggregator_service.commands.common import CommandError
from aggregator_service.commands.startup_checks import (
    check_packages,
    check_semaphores,
    check_tls_files,
    doubtful_proxies,
    doubtful_settings,
)
from aggregator_service.migrations.migrate import migrate
from aggregator_service.settings import Settings, setting_fault
from aggregator_service.storage.database import Database
from aggregator_service.storage.dialects import database_cause
from client_sdk import Client, Identity, MemoryStore, Policy
from client_sdk.errors import UntrustedServer
from protocols.parameter_text import first_fault
from tests.support.certificates import Authority
from tests.support.inside import aggregator_inside, services
from tests.support.postgres import TestDatabase, connect, waits_for_lock
from tests.support.replicas import wait_until
from tests.support.rows import client_row, task_row
from tests.support.server import AggregatorProcess, free_port, running_aggregator

Failed = Callable[..., str]


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
        (pair.key, pair.certificate, None, "holds no certificate but: PRIVATE KEY. Are the files"),
        (pair.certificate, pair.certificate, None, "holds no private key but: CERTIFICATE"),
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


def test_a_key_that_everybody_can_read_is_warned_of(tmp_path: Path) -> None:
    pair = Authority(tmp_path).sign("server", server=True)
    given = settings(tmp_path, tls_cert=pair.certificate, tls_key=pair.key)
    assert list(doubtful_settings(given, ())) == []
    pair.key.chmod(0o644)
    (warning,) = doubtful_settings(given, ())
    assert f"chmod 600 {pair.key}" in warning


@pytest.mark.parametrize(
    ("addresses", "warned"),
    [("", 0), ("*", 0), ("127.0.0.1", 0), ("10.0.0.0/8, ::1", 0), ("garbage", 1), ("10.0.0.1,proxy.example.org", 1)],
)
def test_addresses_of_proxies_that_are_none_are_warned_of(addresses: str, warned: int) -> None:
    warnings = list(doubtful_proxies({"FORWARDED_ALLOW_IPS": addresses}))
    assert len(warnings) == warned
    assert all("FORWARDED_ALLOW_IPS" in text for text in warnings)


@pytest.fixture
def failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Callable[..., str]]:
    """Runs `hushrec-server`, which fails, in this process; returns what it printed."""
    for name in [name for name in os.environ if name.startswith(("HUSHREC_", "PG"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HUSHREC_DATA_DIR", str(tmp_path / "data"))

    def run(*arguments: str, **settings: str) -> str:
        with monkeypatch.context() as patch:
            patch.setattr(sys, "argv", ["hushrec-server", *arguments])
            for name, value in settings.items():
                patch.setenv(f"HUSHREC_{name.upper()}", value)
            with pytest.raises(SystemExit) as ended:
                main()
        printed = capsys.readouterr()
        assert (ended.value.code, printed.out) == (1, ""), printed.err
        return printed.err

    monkeypatch.setenv("PYDANTIC_DISABLE_PLUGINS", "")
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)  # Typer replaces it
    umask = os.umask(0o077)
    yield run
    os.umask(umask)


def one_line(text: str) -> str:
    (line,) = text.strip().splitlines()
    return line


@pytest.fixture
def server(postgres: TestDatabase) -> str:
    """Host and port of PostgreSQL."""
    url = make_url(postgres.schema())
    return f"{url.host}:{url.port or 5432}"


@pytest.mark.parametrize(
    ("url", "cause"),
    [
        ("foo", "HUSHREC_DATABASE_URL is no database URL: expected postgresql://"),
        ("mysql://h/x", "the database mysql is not supported"),
        ("postgresql://postgres:geheim@SERVER/no_such_database", "the database does not exist: create it"),
        ("postgresql://no_such_role:geheim@SERVER/postgres", "the role (user) does not exist"),
        ("postgresql://postgres:geheim@127.0.0.1:1/x", "nothing listens at the host and port"),
        ("postgresql://postgres:geheim@no-such-host.invalid/x", "the host name of the database is unknown"),
        ("postgresql://postgres:geheim@SERVER/postgres?sslmode=verify-full&sslrootcert=/no/ca.pem", "TLS|certificates"),
        ("postgresql://postgres:geheim@SERVER/postgres?sslmode=maybe", "sslmode in HUSHREC_DATABASE_URL"),
        ("postgresql:///x?host=/no/socket&user=postgres", "no database listens at that socket"),
        ("sqlite:////no/such/folder/file.db", "the SQLite file of HUSHREC_DATABASE_URL or --data-dir cannot be opened"),
        ("sqlite:///FOLDER/text.db", "is no SQLite database"),
    ],
)
def test_the_cause_is_named(tmp_path: Path, failed: Failed, server: str, url: str, cause: str) -> None:
    (tmp_path / "text.db").touch(mode=0o600)
    (tmp_path / "text.db").write_text("no database " * 100)
    url = url.replace("SERVER", server).replace("FOLDER", str(tmp_path))
    text = one_line(failed("init", database_url=url))
    assert any(part in text for part in cause.split("|")), text
    assert "geheim" not in text


@pytest.mark.parametrize(
    ("told", "cause"),
    [
        ('FATAL:  password authentication failed for user "zoe"', "refuses the password"),
        ("fe_sendauth: no password supplied", "asks for a password"),
        ('FATAL:  no pg_hba.conf entry for host "10.0.0.1", user "zoe"', "pg_hba.conf"),
        ('FATAL:  pg_hba.conf rejects connection for host "10.0.0.1", user "zoe", database "zoe"', "pg_hba.conf"),
        ("received invalid response to SSL negotiation: H", "is no PostgreSQL"),
        ('root certificate file "/etc/ca.pem" does not exist', "the file of CA certificates cannot be read"),
        ("SSL error: certificate verify failed", "is not trusted"),
        ("FATAL:  sorry, too many clients already", "HUSHREC_THREADS"),
        ("database or disk is full", "the disk of the database is full"),
        ("attempt to write a readonly database", "not writable by this user"),
        ("something else about zoe", "database error (OperationalError): check HUSHREC_DATABASE_URL"),
    ],
)
def test_causes_that_need_another_server(told: str, cause: str) -> None:
    text = database_cause(OperationalError("SELECT", None, psycopg.OperationalError(told)))
    assert cause in text
    assert "zoe" not in text


def test_a_full_disk_is_named_by_its_state() -> None:
    """PostgreSQL may speak another language."""
    error = OperationalError("INSERT", None, psycopg.errors.DiskFull("kein Platz"))
    assert database_cause(error) == "the disk of the database is full: free space there"


def test_a_file_that_a_command_cannot_open_is_named(failed: Failed) -> None:
    text = one_line(failed("task", "revocations", "movies", "no.revoked"))
    assert text == "hushrec-server: no.revoked: No such file or directory"


def test_debug_shows_the_traceback(failed: Failed) -> None:
    text = failed("--debug", "init", database_url="postgresql://me:geheim@127.0.0.1:1/x")
    assert "Traceback (most recent call last)" in text
    assert text.strip().splitlines()[-1].startswith("hushrec-server: nothing listens")
    assert "geheim" not in text


def test_a_command_tries_again_after_a_deadlock(tmp_path: Path, postgres: TestDatabase) -> None:
    """The command has the task and wants its member; another session has the member, and then wants the task."""
    url = make_url(postgres.schema())
    with closing(Database(url.render_as_string(hide_password=False), connections=1)) as database:
        migrate(database)
        with database.write() as session:
            session.add(task_row("t_1"))
        with database.write() as session:
            session.add(client_row("c_1"))
    patient = url.update_query_dict({"options": f"{url.query['options']} -cdeadlock_timeout=3s"})
    environment = os.environ | {"HUSHREC_DATABASE_URL": patient.render_as_string(hide_password=False)}
    environment |= {"HUSHREC_DATA_DIR": str(tmp_path)}
    run = [sys.executable, "-m", "aggregator_service.cli", "member", "revoke", "t_1", "c_1"]
    with connect(url) as other:
        other.execute("SET deadlock_timeout = '60s'")  # the command is the one that PostgreSQL ends
        with other.transaction():
            other.execute("SELECT id FROM clients FOR UPDATE")
            command = subprocess.Popen(run, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            wait_until(lambda: waits_for_lock(url), "the command does not wait")
            other.execute("SELECT id FROM tasks FOR UPDATE")  # the deadlock: it goes on when the command is ended
        out, err = command.communicate(timeout=120)
    assert (command.returncode, out) == (0, "c_1  member  revoked\n"), err
    wait_until(lambda: deadlocks_of(url) > 0, "there was no deadlock")


def deadlocks_of(url: URL) -> int:
    with connect(url) as connection:
        query = "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"
        (found,) = connection.execute(query).fetchone() or (0,)
    return int(str(found))


def test_readiness_is_checked_once_a_second_however_many_ask(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with aggregator_inside(tmp_path) as api:
        checks, ping = [], services(api).database.ping

        def slow() -> None:
            checks.append(1)
            time.sleep(0.2)
            ping()

        monkeypatch.setattr(services(api).database, "ping", slow)
        with ThreadPoolExecutor(8) as pool:
            answers = list(pool.map(lambda _: api.http.get("/readyz"), range(24)))
        assert {answer.status_code for answer in answers} == {200}
        assert len(checks) == 1
        time.sleep(1.1)
        assert api.http.get("/readyz").status_code == 200
        assert len(checks) == 2


def test_settings_come_from_flags_then_environment_then_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"HUSHREC_PORT": "9000", "HUSHREC_TUNING": '{"fold_batch": 7}', "HUSHREC_HOST": ""}.items():
        monkeypatch.setenv(name, value)
    loaded = Settings.load(port=9001, host=None)
    assert (loaded.port, loaded.tuning.fold_batch, loaded.host) == (9001, 7, "127.0.0.1")
    assert Settings().port == 9000


@pytest.mark.parametrize(
    ("value", "fault"),
    [
        ('{"fold', "HUSHREC_TUNING: must be a JSON object"),
        ("[1]", "HUSHREC_TUNING: must be an object"),
        ('{"folds": 1}', "HUSHREC_TUNING: folds: unknown name"),
        ('{"wait_max_seconds": 900}', "HUSHREC_TUNING: wait_max_seconds: must be at most 30"),
    ],
)
def test_a_wrong_tuning_is_named(monkeypatch: pytest.MonkeyPatch, value: str, fault: str) -> None:
    monkeypatch.setenv("HUSHREC_TUNING", value)
    with pytest.raises(ValidationError) as caught:
        Settings()
    assert setting_fault(caught.value).startswith(fault)


@pytest.mark.parametrize("variable", ["HUSHREC_OPERATOR_TOKEN", "HUSHREC_DATABASE_URL"])
def test_secret_settings_are_not_shown(monkeypatch: pytest.MonkeyPatch, variable: str) -> None:
    monkeypatch.setenv(variable, "postgresql://me:secret@db/name")
    loaded = Settings()
    assert "secret" not in repr(loaded)
    assert "secret" not in loaded.model_dump_json()
    monkeypatch.setenv("HUSHREC_PORT", "secret")
    with pytest.raises(ValidationError) as caught:
        Settings()
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    "token", ["hro_short", "change-me", "change-me-change-me-change-me", "hro_example-token-of-24-characters"]
)
def test_short_and_example_operator_tokens_are_refused(monkeypatch: pytest.MonkeyPatch, token: str) -> None:
    monkeypatch.setenv("HUSHREC_OPERATOR_TOKEN", token)
    with pytest.raises(ValidationError) as caught:
        Settings.load()
    assert first_fault(caught.value).startswith("operator_token: ")
    assert "openssl rand -hex 32" in str(caught.value)
    assert token not in str(caught.value)


def test_unknown_settings_are_refused_and_unknown_variables_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HUSHREC_CRASH_AT", "nowhere")
    Settings()
    with pytest.raises(ValidationError, match="ports"):
        Settings(ports=8000)  # type: ignore[call-arg]


NEEDLESS = [
    "dask",
    "distributed",
    "jinja2",
    "matplotlib",
    "obstore",
    "opentelemetry.sdk",
    "psycopg",
    "rich",
    "scipy",
    "tenseal",
]
_PROGRAM = """
import os, signal, sys, threading, time, urllib.error, urllib.request

def wait_until_ready():
    while True:
        try:
            urllib.request.urlopen("http://127.0.0.1:{port}/readyz")
            break
        except urllib.error.URLError:
            time.sleep(0.05)
    print("imported:", [name for name in {needless} if name in sys.modules], flush=True)
    os.kill(os.getpid(), signal.SIGTERM)

threading.Thread(target=wait_until_ready, daemon=True).start()
sys.argv[1:] = ["serve", "--data-dir", {folder!r}, "--port", "{port}"]
from aggregator_service.cli import main
main()
"""


def test_a_server_imports_no_package_before_it_needs_it(tmp_path: Path) -> None:
    program = _PROGRAM.format(port=free_port(), needless=NEEDLESS, folder=str(tmp_path / "data"))
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False)
    assert "imported: []" in done.stdout, done.stdout + done.stderr
