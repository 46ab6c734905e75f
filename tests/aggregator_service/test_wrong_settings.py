"""Wrong settings of a server: each ends the start with status 1 and one line that names the setting and the fault."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from tempfile import mkdtemp

import pytest
from sqlalchemy import make_url

from aggregator_service.settings import Settings
from tests.support.certificates import Authority
from tests.support.forked import ForkedProcess
from tests.support.postgres import TestDatabase

PLAIN_NUMBERS = [
    ("port", "99999", "must be at most 65535"),
    ("workers", "0", "must be at least 1"),
    ("workers", "two", "must be a whole number"),
    ("threads", "1", "must be at least 2"),
    ("threads", "9999", "must be at most 256"),
    ("max_connections", "-1", "must be at least 0"),
    ("client_rate", "nan", "must be at least 0"),
    ("operator_rate", "lots", "must be a number"),
    ("failure_rate", "-1", "must be at least 0"),
    ("signature_window", "1", "must be at least 5"),
    ("hsts_seconds", "-5", "must be at least 0"),
]
WORDS = [
    ("log_format", "xml", "must be 'text' or 'json'"),
    ("log_level", "trace", "must be 'debug', 'info' or 'warning'"),
    ("metrics", "yes", "must be 'token', 'open' or 'off'"),
    ("signatures", "maybe", "must be 'required' or 'off'"),
    ("traces", "x", "must be 'none' or 'otlp'"),
    ("behind_proxy", "perhaps", "must be true or false"),
    ("allow_plain_dask", "x", "must be true or false"),
]
TEXTS = [
    ("operator_token", "short", "at least 24 random characters"),
    ("operator_token", "a" * 30, "at least 24 random characters"),
    ("operator_token", "change-me-0123456789-abcdefgh", "not an example"),
    ("public_origins", "recs.example.org", "https://name"),
    ("public_origins", "https://x/path", "without a path"),
    ("public_origins", "https://x:99999", "at most 65535"),
    ("public_origins", ",", "https://name"),
    ("cors_origins", "*", "https://name"),
    ("root_path", "no-slash", "a path such as /hushrec"),
    ("root_path", "/x/", "without a / at its end"),
    ("executor", "dask", "dask+tls://host:port"),
    ("executor", "dask://far:8786", "needs TLS"),
    ("executor", "dask://127.0.0.1:1", "does not answer"),
    ("host", "no-such-host.invalid", "cannot listen on no-such-host.invalid"),
    ("host", "192.0.2.1", "Cannot assign requested address"),
]
TUNING = [
    ("tuning", "{", "must be a JSON object"),
    ("tuning", "[]", "must be an object"),
    ("tuning", "5", "must be an object"),
    ("tuning", '{"bogus": 1}', "bogus: unknown name"),
    ("tuning", '{"fold_batch": 0}', "fold_batch: must be at least 1"),
    ("tuning", '{"wait_max_seconds": "x"}', "wait_max_seconds: must be a number"),
]
PLACES = [
    ("blobs", "foo", "dir:/path"),
    ("blobs", "dir:", "dir:/path"),
    ("blobs", "dir:relative", "with the whole path"),
    ("blobs", "file:///x", "dir:/path"),
    ("blobs", "s3://", "s3://bucket"),
    ("blobs", "s3://NOT-A-BUCKET", "s3://bucket"),
    ("blobs", "s3://no-such-bucket/x", "AWS_ENDPOINT_URL"),
    ("blobs", "dir:FOLDER/notes.txt", "ENOTDIR"),
    ("blobs", "dir:/proc/nothing", "ENOENT"),
    ("data_dir", "/proc/nothing", "cannot create the data directory /proc/nothing: No such file or directory"),
    ("data_dir", "FOLDER/notes.txt", "File exists"),
]
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
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file that is neither a database nor a certificate, and certificates of two servers."""
    made = tmp_path_factory.mktemp("settings")
    (made / "notes.txt").write_text("neither a database nor a certificate " * 40)
    authority = Authority(made)
    authority.sign("server", server=True)
    authority.sign("other", server=True)
    return made


@pytest.fixture
def taken() -> Iterator[int]:
    """A port at which somebody else listens."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        yield other.getsockname()[1]


def refusal(folder: Path, **settings: str) -> str:
    """Start a server that must not start; return its last line: all others are its log's."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("HUSHREC_", "PG", "AWS_"))}
    own = {"data_dir": mkdtemp(dir=folder), "port": "0", **settings}
    variables = {f"HUSHREC_{name.upper()}": value.replace("FOLDER", str(folder)) for name, value in own.items()}
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
    assert "Traceback" not in text
    assert "geheim" not in text
    *log, last = text.strip().splitlines()
    assert all(" INFO " in line or " WARNING " in line for line in log), text
    assert last.startswith("hushrec-server: ")
    return last


@pytest.mark.parametrize(("name", "value", "fault"), PLAIN_NUMBERS + WORDS + TEXTS + TUNING + PLACES)
def test_a_wrong_setting_is_named(folder: Path, name: str, value: str, fault: str) -> None:
    line = refusal(folder, **{name: value})
    assert fault in line
    assert f"HUSHREC_{name.upper()}" in line or f"--{name.replace('_', '-')}" in line, line
    assert "must match the pattern" not in line


@pytest.mark.parametrize(("name", "value", "fault"), DATABASES)
def test_a_wrong_database_is_named(folder: Path, postgres: TestDatabase, name: str, value: str, fault: str) -> None:
    url = make_url(postgres.schema())
    line = refusal(folder, **{name: value.replace("SERVER", f"{url.host}:{url.port or 5432}")})
    assert fault in line
    assert "HUSHREC_DATABASE_URL" in line or "the role (user)" in line


@pytest.mark.parametrize(("settings", "fault"), TLS)
def test_a_wrong_file_for_tls_is_named(folder: Path, settings: dict[str, str], fault: str) -> None:
    assert fault.replace("FOLDER", str(folder)) in refusal(folder, **settings)


def test_a_port_that_is_taken_is_named(folder: Path, taken: int) -> None:
    line = refusal(folder, port=str(taken))
    assert f"cannot listen on 127.0.0.1:{taken}: Address already in use" in line
    assert "--port" in line


def test_a_file_in_place_of_a_blob_directory_keeps_its_mode(folder: Path) -> None:
    (folder / "notes.txt").chmod(0o644)
    refusal(folder, blobs=f"dir:{folder / 'notes.txt'}")
    assert (folder / "notes.txt").stat().st_mode & 0o777 == 0o644


def test_the_tables_cover_every_setting_that_can_be_wrong() -> None:
    tried = {name for name, *_ in PLAIN_NUMBERS + WORDS + TEXTS + TUNING + PLACES + DATABASES}
    tried |= {name for settings, _ in TLS for name in settings}
    assert tried == set(Settings.model_fields), json.dumps(sorted(set(Settings.model_fields) ^ tried))
