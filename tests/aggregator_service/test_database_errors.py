"""What `hushrec-server` says when the database or a setting is wrong: the cause and the remedy, in one line."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import psycopg
import pytest
from sqlalchemy import URL, make_url
from sqlalchemy.exc import OperationalError

from aggregator_service.migrations.migrate import migrate
from aggregator_service.storage.database import Database
from aggregator_service.storage.database_causes import database_cause
from tests.support.postgres import TestDatabase, connect, waits_for_lock
from tests.support.replicas import wait_until
from tests.support.rows import client_row, task_row


def failed(tmp_path: Path, *arguments: str, **settings: str) -> str:
    """Run `hushrec-server`, which fails; return what it printed."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("HUSHREC_", "PG"))}
    environment |= {"HUSHREC_DATA_DIR": str(tmp_path / "data")}
    environment |= {f"HUSHREC_{name.upper()}": value for name, value in settings.items()}
    run = [sys.executable, "-m", "aggregator_service.cli", *arguments]
    ended = subprocess.run(run, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert (ended.returncode, ended.stdout) == (1, ""), ended.stderr
    return ended.stderr


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
def test_the_cause_is_named(tmp_path: Path, server: str, url: str, cause: str) -> None:
    (tmp_path / "text.db").touch(mode=0o600)
    (tmp_path / "text.db").write_text("no database " * 100)
    url = url.replace("SERVER", server).replace("FOLDER", str(tmp_path))
    text = one_line(failed(tmp_path, "init", database_url=url))
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


def test_a_setting_is_named_as_it_is_set(tmp_path: Path) -> None:
    assert one_line(failed(tmp_path, "serve", threads="1")).startswith("hushrec-server: HUSHREC_THREADS: ")
    assert "HUSHREC_TLS_CERT and HUSHREC_TLS_KEY" in one_line(failed(tmp_path, "serve", tls_cert="x.pem"))


def test_debug_shows_the_traceback(tmp_path: Path) -> None:
    text = failed(tmp_path, "--debug", "init", database_url="postgresql://me:geheim@127.0.0.1:1/x")
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
