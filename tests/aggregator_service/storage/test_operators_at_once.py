"""Operators' tokens that are created, rotated and revoked at the same moment, on each database."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import TypeVar

import pytest
from sqlalchemy import select
from sqlalchemy.orm import Session

from aggregator_service.access.principals import (
    create_admin,
    create_operator,
    hash_token,
    list_operators,
    revoke_operator,
    rotate_operator,
)
from aggregator_service.migrations.migrate import migrate
from aggregator_service.problems import Problem
from aggregator_service.storage.database import Database
from aggregator_service.storage.schema import OperatorRow
from protocols.messages import OperatorRequest, OperatorToken

AT_ONCE = 8
Made = TypeVar("Made")


@pytest.fixture
def database(database_url: str) -> Iterator[Database]:
    made = Database(database_url, connections=AT_ONCE)
    migrate(made)
    yield made
    made.close()


def at_once(database: Database, work: Callable[[Session], Made]) -> list[Made | Exception]:
    """Call `work` in transactions that begin together; return what each returned or raised."""
    barrier, found = threading.Barrier(AT_ONCE, timeout=30), list[Made | Exception]()

    def run() -> None:
        barrier.wait()
        try:
            found.append(database.transact(work))
        except Exception as error:
            found.append(error)

    threads = [threading.Thread(target=run) for _ in range(AT_ONCE)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


def tokens(database: Database) -> dict[str, str]:
    with database.read() as session:
        return {row.name: row.token_hash for row in session.scalars(select(OperatorRow))}


def test_servers_that_start_together_create_one_first_token(database: Database) -> None:
    made = at_once(database, lambda session: create_admin(session, 0.0, only_first=True))
    (first,) = [one for one in made if isinstance(one, OperatorToken)]
    assert tokens(database) == {"admin": hash_token(first.token)}


def test_admins_created_together_have_different_names(database: Database) -> None:
    made = at_once(database, lambda session: create_admin(session, 0.0))
    assert {hash_token(one.token) for one in made if isinstance(one, OperatorToken)} == set(tokens(database).values())
    assert set(tokens(database)) == {"admin", *(f"admin-{number}" for number in range(2, AT_ONCE + 1))}


def test_one_name_is_taken_once(database: Database) -> None:
    request = OperatorRequest(name="anna", role="operator")
    made = at_once(database, lambda session: create_operator(session, request, 0.0))
    problems = [one for one in made if isinstance(one, Problem)]
    assert [one.slug for one in problems] == ["conflict"] * (AT_ONCE - 1)
    (shown,) = [one for one in made if not isinstance(one, Exception)]
    assert tokens(database) == {"anna": hash_token(shown.token)}


def test_the_last_rotation_counts(database: Database) -> None:
    with database.write() as session:
        create_operator(session, OperatorRequest(name="anna", role="operator"), 0.0)
    made = at_once(database, lambda session: rotate_operator(session, "anna", 1.0).token)
    assert len({hash_token(str(one)) for one in made}) == AT_ONCE
    assert tokens(database)["anna"] in {hash_token(str(one)) for one in made}


def test_a_token_is_revoked_once(database: Database) -> None:
    with database.write() as session:
        create_operator(session, OperatorRequest(name="anna", role="operator"), 0.0)
    made = at_once(database, lambda session: revoke_operator(session, "anna", 1.0))
    assert sorted(type(one).__name__ for one in made) == ["OperatorView", *["Problem"] * (AT_ONCE - 1)]
    with database.read() as session:
        assert not list_operators(session, 2.0).operators
