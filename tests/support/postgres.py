"""A database on a real PostgreSQL server for a test session, with an empty schema for each test."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
from sqlalchemy import URL, make_url

from tests.support.needs import required

__all__ = ["TestDatabase", "connect", "postgres_database", "waits_for_lock"]


class TestDatabase:
    """A temporary database."""

    __test__ = False

    def __init__(self, server: URL, name: str) -> None:
        self.name = name
        self._server = server

    def schema(self) -> str:
        """Create an empty schema and return its URL: faster than a new database."""
        name = f"s_{secrets.token_hex(6)}"
        with connect(self._server.set(database=self.name)) as connection:
            connection.execute(f"CREATE SCHEMA {name}")  # type: ignore[call-overload]
        url = self._server.set(database=self.name).update_query_dict({"options": f"-csearch_path={name}"})
        return url.render_as_string(hide_password=False)

    def execute(self, url: str, statement: str, *values: object) -> int:
        """Execute a statement in the schema of `url`; return the number of rows."""
        with connect(make_url(url)) as connection:
            return connection.execute(statement, values).rowcount  # type: ignore[call-overload,no-any-return]

    def cut_off(self) -> None:
        """End all connections to the database, as a restart of the server does."""
        with connect(self._server) as connection:
            connection.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s AND pid <> pg_backend_pid()",
                (self.name,),
            )

    @contextmanager
    def unavailable(self) -> Iterator[None]:
        """Inside the block, end all connections and refuse new ones."""
        with connect(self._server) as connection:
            connection.execute(f"ALTER DATABASE {self.name} ALLOW_CONNECTIONS false")  # type: ignore[call-overload]
            self.cut_off()
            try:
                yield
            finally:
                connection.execute(f"ALTER DATABASE {self.name} ALLOW_CONNECTIONS true")  # type: ignore[call-overload]


def connect(url: URL) -> psycopg.Connection[tuple[object, ...]]:
    """Return a connection that commits each statement."""
    return psycopg.connect(url.render_as_string(hide_password=False), autocommit=True, connect_timeout=5)


def waits_for_lock(url: URL) -> bool:
    """Whether a session of a server, or of its commands, waits for a lock in this database."""
    query = (
        "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND application_name = 'hushrec'"
        " AND datname = current_database()"
    )
    with connect(url) as connection:
        return connection.execute(query).fetchone() != (0,)


@contextmanager
def postgres_database() -> Iterator[TestDatabase]:
    """Create a database on HUSHREC_TEST_POSTGRES (a URL; default: port 5432 of this machine); drop it afterwards."""
    server = make_url(required("postgres"))
    name = f"hushrec_test_{secrets.token_hex(6)}"
    with connect(server) as connection:
        connection.execute(f"CREATE DATABASE {name}")  # type: ignore[call-overload]
        try:
            yield TestDatabase(server, name)
        finally:
            connection.execute(f"DROP DATABASE {name} WITH (FORCE)")  # type: ignore[call-overload]
