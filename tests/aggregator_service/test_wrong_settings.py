"""Wrong settings of a server: each ends the start with status 1 and one line that names the setting and the fault.

Most faults are found before anything is opened, so the command runs in this
process; where the fault is found late, it is a process of its own.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from tempfile import mkdtemp

import psycopg
import pytest
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)
from sqlalchemy import make_url, text
from sqlalchemy.exc import OperationalError

from aggregator_service.migrations.migrate import migrate
from aggregator_service.settings import Settings
from aggregator_service.storage.database import Database
from aggregator_service.storage.dialects import database_cause
from tests.support.forked import ForkedProcess
from tests.support.replicas import TestDatabase
from tests.support.server import Authority

Failed = Callable[..., str]

EARLY = [
    ("port", "99999", "must be at most 65535"),
    ("workers", "0", "must be at least 1"),
    ("workers", "two", "must be a whole number"),
    ("threads", "1", "must be at least 2"),
    ("max_connections", "-1", "must be at least 0"),
    ("client_rate", "nan", "must be at least 0"),
    ("operator_rate", "lots", "must be a number"),
    ("arrival_rate", "-1", "must be at least 0"),
    ("failure_rate", "-1", "must be at least 0"),
    ("keep_rounds", "0", "must be at least 1"),
    ("ended_days", "soon", "must be a whole number"),
    ("revoked_days", "-1", "must be at least 0"),
    ("audit_days", "0", "must be at least 1"),
    ("signature_window", "1", "must be at least 5"),
    ("hsts_seconds", "-5", "must be at least 0"),
    ("log_format", "xml", "must be 'text' or 'json'"),
    ("log_level", "trace", "must be 'debug', 'info' or 'warning'"),
    ("metrics", "yes", "must be 'token', 'open' or 'off'"),
    ("signatures", "maybe", "must be 'required' or 'off'"),
    ("traces", "x", "must be 'none' or 'otlp'"),
    ("behind_proxy", "perhaps", "must be true or false"),
    ("allow_plain_dask", "x", "must be true or false"),
    ("operator_token", "short", "at least 24 random characters"),
    ("operator_token", "a" * 30, "at least 24 random characters"),
    ("operator_token", "change-me-0123456789-abcdefgh", "not an example"),
    ("public_origins", "recs.example.org", "https://name"),
    ("public_origins", "https://x/path", "without a path"),
    ("public_origins", "https://x:99999", "at most 65535"),
    ("public_origins", "ftp://x", "https://name"),
    ("public_origins", "https://me@x", "https://name"),
    ("public_origins", "https://*.x", "https://name"),
    ("public_origins", ",".join(f"https://{index}.x" for index in range(9)), "8 or fewer"),
    ("cors_origins", "*", "https://name"),
    ("root_path", "no-slash", "a path such as /hushrec"),
    ("root_path", "/x/", "without a / at its end"),
    ("executor", "dask", "dask+tls://host:port"),
    ("executor", "dask://far:8786", "needs TLS"),
    ("tuning", "{", "must be a JSON object"),
    ("tuning", "5", "must be an object"),
    ("tuning", '{"bogus": 1}', "bogus: unknown name"),
    ("tuning", '{"fold_batch": 0}', "fold_batch: must be at least 1"),
    ("tuning", '{"wait_max_seconds": "x"}', "wait_max_seconds: must be a number"),
    ("blobs", "foo", "dir:/path"),
    ("blobs", "dir:", "dir:/path"),
    ("blobs", "dir:relative", "with the whole path"),
    ("blobs", "s3://", "s3://bucket"),
]
"""Found when the settings are read."""
LATE = [
    ("data_dir", "FOLDER/notes.txt", "File exists"),
    ("data_dir", "/proc/nothing", "cannot create the data directory /proc/nothing: No such file or directory"),
    ("blobs", "s3://NOT-A-BUCKET", "s3://bucket"),
    ("blobs", "s3://no-such-bucket/x", "AWS_ENDPOINT_URL"),
    ("blobs", "dir:FOLDER/notes.txt", "ENOTDIR"),
    ("host", "no-such-host.invalid", "cannot listen on no-such-host.invalid"),
    ("port", "TAKEN", "cannot listen on 127.0.0.1:TAKEN: Address already in use"),
]
"""Found when data directory, address and blobs are opened."""
DATABASES = [
    ("database_url", "foo", "no database URL"),
    ("database_url", "mysql://h/x", "not supported"),
    ("database_url", "http://127.0.0.1/x", "not supported"),
    ("database_url", "sqlite://", "must be a file"),
    ("database_url", "sqlite:////no/such/folder/x.db", "is its folder there?"),
    ("database_url", "sqlite:///FOLDER/notes.txt", "no SQLite database"),
    ("database_url", "postgresql://postgres:geheim@SERVER/no_such_database", "does not exist: create it"),
    ("database_url", "postgresql://no_such_role:geheim@SERVER/postgres", "the role (user) does not exist"),
    ("database_url", "postgresql://postgres:geheim@127.0.0.1:1/x", "nothing listens"),
    ("database_url", "postgresql://postgres:geheim@127.0.0.1:port/x", "no database URL"),
    ("database_url", "postgresql://postgres:geheim@127.0.0.1:99999/x", "from 1 to 65535"),
    ("database_url", "postgresql://postgres:geheim@no-such-host.invalid/x", "host name of the database is unknown"),
    ("database_url", "postgresql://postgres:geheim@SERVER/postgres?sslmode=maybe", "not one of PostgreSQL's"),
    ("database_url", "postgresql://postgres:geheim@SERVER/postgres?bogus=1", "a parameter that PostgreSQL does not"),
    ("database_url", "postgresql:///x?host=/no/socket&user=postgres", "no database listens at that socket"),
]
TLS = [
    ({"tls_cert": "FOLDER/server.pem"}, "HUSHREC_TLS_KEY must be set together"),
    ({"tls_key": "FOLDER/server.key"}, "HUSHREC_TLS_CERT and HUSHREC_TLS_KEY"),
    ({"client_ca": "FOLDER/server.pem"}, "HUSHREC_CLIENT_CA needs HUSHREC_TLS_CERT"),
    ({"tls_cert": "no.pem", "tls_key": "FOLDER/server.key"}, "cannot read no.pem: No such file"),
    ({"tls_cert": "FOLDER/server.pem", "tls_key": "no.key"}, "cannot read no.key: No such file"),
    ({"tls_cert": "FOLDER", "tls_key": "FOLDER/server.key"}, "Is a directory. HUSHREC_TLS_CERT"),
    ({"tls_cert": "FOLDER/server.key", "tls_key": "FOLDER/server.pem"}, "--tls-cert FOLDER/server.key holds no cert"),
    ({"tls_cert": "FOLDER/server.pem", "tls_key": "FOLDER/other.key"}, "--tls-key FOLDER/other.key do not fit"),
    ({"tls_cert": "FOLDER/notes.txt", "tls_key": "FOLDER/server.key"}, "--tls-cert FOLDER/notes.txt holds no cert"),
    ({"tls_cert": "FOLDER/server.pem", "tls_key": "FOLDER/notes.txt"}, "--tls-key FOLDER/notes.txt holds no private"),
    (
        {"tls_cert": "FOLDER/server.pem", "tls_key": "FOLDER/server.key", "client_ca": "FOLDER/notes.txt"},
        "--client-ca FOLDER/notes.txt holds no certificate",
    ),
    ({"tls_cert": "FOLDER/server.pem", "tls_key": "FOLDER/sealed.key"}, "the private key is encrypted"),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file that is neither a database nor a certificate, certificates of two servers, and a sealed key."""
    made = tmp_path_factory.mktemp("settings")
    (made / "notes.txt").write_text("neither a database nor a certificate " * 40)
    (made / "notes.txt").chmod(0o644)
    authority = Authority(made)
    pair = authority.sign("server", server=True)
    authority.sign("other", server=True)
    key = load_pem_private_key(pair.key.read_bytes(), None)
    sealed = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"secret"))
    (made / "sealed.key").write_bytes(sealed)
    return made


@pytest.fixture
def taken() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as other:
        yield other.getsockname()[1]


@pytest.fixture
def failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Callable[..., str], taken: int) -> Failed:
    """Runs `hushrec-server`, which fails, in this process; returns what it printed. Its port is taken."""
    for name in [name for name in os.environ if name.startswith(("HUSHREC_", "PG", "AWS_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HUSHREC_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.setenv("HUSHREC_PORT", str(taken))

    def call(*arguments: str, **settings: str) -> str:
        for name, value in settings.items():
            monkeypatch.setenv(f"HUSHREC_{name.upper()}", value)
        text = run(*arguments, status=1)
        assert "geheim" not in text
        return text

    return call


def one_line(text: str) -> str:
    (line,) = text.strip().splitlines()
    assert line.startswith("hushrec-server: ")
    return line


def refusal(folder: Path, **settings: str) -> str:
    """Start a server in a process of its own that must not start; return its last line: all others are its log's."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("HUSHREC_", "PG", "AWS_"))}
    own = {"data_dir": mkdtemp(dir=folder), "port": "0", **settings}
    variables = {f"HUSHREC_{name.upper()}": value for name, value in own.items()}
    store = {"AWS_ENDPOINT_URL": "http://127.0.0.1:1", "AWS_ACCESS_KEY_ID": "geheim", "AWS_SECRET_ACCESS_KEY": "geheim"}
    with (folder / "output").open("w+b") as output:
        server = ForkedProcess("server", "aggregator_service.cli", ["serve"], kept | variables | store, output)
        try:
            status = server.wait(60)
        finally:
            server.kill()
        output.seek(0)
        text = output.read().decode()
    assert status == 1, text
    assert not [word for word in ("Traceback", "geheim", "operator token") if word in text], text
    *log, last = text.strip().splitlines()
    assert all(" INFO " in line or " WARNING " in line for line in log), text
    return one_line(last)


def names(line: str, setting: str) -> bool:
    return f"HUSHREC_{setting.upper()}" in line or f"--{setting.replace('_', '-')}" in line


@pytest.mark.parametrize(("name", "value", "fault"), EARLY)
def test_a_wrong_setting_is_named(folder: Path, failed: Failed, name: str, value: str, fault: str) -> None:
    line = one_line(failed("serve", **{name: value.replace("FOLDER", str(folder))}))
    assert fault in line
    assert names(line, name), line
    assert "must match the pattern" not in line
    assert name != "operator_token" or value not in line


@pytest.mark.parametrize(("name", "value", "fault"), LATE)
def test_what_cannot_be_opened_is_named(folder: Path, taken: int, name: str, value: str, fault: str) -> None:
    line = refusal(folder, **{name: value.replace("FOLDER", str(folder)).replace("TAKEN", str(taken))})
    assert (folder / "notes.txt").stat().st_mode & 0o777 == 0o644  # as it was
    assert fault.replace("TAKEN", str(taken)) in line
    assert names(line, name), line


@pytest.mark.parametrize(("name", "value", "fault"), DATABASES)
def test_a_wrong_database_is_named(
    folder: Path, failed: Failed, postgres: TestDatabase, name: str, value: str, fault: str
) -> None:
    url = make_url(postgres.schema())
    given = value.replace("SERVER", f"{url.host}:{url.port or 5432}").replace("FOLDER", str(folder))
    line = one_line(failed("init", **{name: given}))
    assert fault in line
    assert "HUSHREC_DATABASE_URL" in line or "the role (user)" in line


@pytest.mark.parametrize(("settings", "fault"), TLS)
def test_a_wrong_file_for_tls_is_named(folder: Path, failed: Failed, settings: dict[str, str], fault: str) -> None:
    given = {name: value.replace("FOLDER", str(folder)) for name, value in settings.items()}
    assert fault.replace("FOLDER", str(folder)) in one_line(failed("serve", **given))


def test_the_tables_cover_every_setting_that_can_be_wrong() -> None:
    tried = {name for name, *_ in EARLY + LATE + DATABASES}
    tried |= {name for settings, _ in TLS for name in settings}
    assert tried == set(Settings.model_fields), sorted(set(Settings.model_fields) ^ tried)


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
        (psycopg.errors.DiskFull("kein Platz"), "the disk of the database is full: free space there"),
    ],
)
def test_causes_that_need_another_server(told: str | psycopg.Error, cause: str) -> None:
    """PostgreSQL may speak another language: a full disk is known by its state."""
    error = psycopg.OperationalError(told) if isinstance(told, str) else told
    text = database_cause(OperationalError("SELECT", None, error))
    assert cause in text
    assert "zoe" not in text


def test_a_server_does_not_run_on_a_database_of_a_newer_version(tmp_path: Path, failed: Failed) -> None:
    (tmp_path / "data").mkdir()
    with closing(Database(f"sqlite:///{tmp_path / 'data' / 'hushrec.db'}", connections=1)) as database:
        migrate(database)
        with database.write() as session:
            session.execute(text("UPDATE alembic_version SET version_num = '9999_of_the_future'"))
    assert "a newer version of the server has migrated this database" in one_line(failed("init"))


def test_a_file_that_a_command_cannot_open_is_named_and_debug_shows_the_traceback(failed: Failed) -> None:
    text = one_line(failed("task", "revocations", "movies", "no.revoked"))
    assert text == "hushrec-server: no.revoked: No such file or directory"
    text = failed("--debug", "init", database_url="postgresql://me:geheim@127.0.0.1:1/x")
    assert "Traceback (most recent call last)" in text
    assert text.strip().splitlines()[-1].startswith("hushrec-server: nothing listens")
