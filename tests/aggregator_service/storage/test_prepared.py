"""Prepared statements: the same results, types and errors as SQLAlchemy's own execution, on both databases."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from sqlalchemy import Column, Float, Integer, LargeBinary, MetaData, String, Table, bindparam, insert, select, update
from sqlalchemy.exc import IntegrityError, OperationalError, ProgrammingError

from aggregator_service.storage.database import Database
from aggregator_service.storage.prepared import Prepared

TABLE = Table(
    "prepared",
    MetaData(),
    Column("name", String(20), primary_key=True),
    Column("body", LargeBinary),
    Column("count", Integer),
    Column("at", Float),
)
INSERT = Prepared(insert(TABLE), ("name", "body", "count"))
COUNT_UP = Prepared(
    update(TABLE)
    .where(TABLE.c.name == bindparam("name_"), TABLE.c.count < 7)
    .values(count=TABLE.c.count + 2)
    .returning(TABLE.c.count)
)
RENAME = Prepared(update(TABLE).where(TABLE.c.count == bindparam("count_")).values(name=bindparam("new")))
FIND = Prepared(select(TABLE.c.name, TABLE.c.body, TABLE.c.at).where(TABLE.c.name == bindparam("name_")))


@pytest.fixture
def database(database_url: str) -> Iterator[Database]:
    made = Database(database_url, connections=2)
    with made.engine.begin() as connection:
        TABLE.create(connection)
    yield made
    with made.engine.begin() as connection:
        TABLE.drop(connection)
    made.close()


def test_statements_give_the_rows_and_counts_of_the_database(database: Database) -> None:
    with database.write() as session:
        assert INSERT.change(session, {"name": "a", "body": b"\0\xff", "count": 5}) == 1
        assert COUNT_UP.first(session, {"name_": "a"}) == (7,)
        assert COUNT_UP.first(session, {"name_": "a"}) is None  # the constant 7 of the statement
        assert RENAME.change(session, {"count_": 7, "new": "b"}) == 1
        assert RENAME.change(session, {"count_": 7000, "new": "c"}) == 0
    with database.read() as session:
        assert FIND.first(session, {"name_": "a"}) is None
        found = FIND.first(session, {"name_": "b"})
    assert found is not None
    name, body, at = found
    assert (name, bytes(body), at) == ("b", b"\0\xff", None)


def test_an_error_is_the_one_that_sqlalchemy_raises_and_rolls_the_transaction_back(database: Database) -> None:
    row = {"name": "twice", "body": b"secret-of-the-row", "count": 1}
    with pytest.raises(IntegrityError) as caught, database.write() as session:
        INSERT.change(session, row)
        INSERT.change(session, row)
    assert "secret-of-the-row" not in str(caught.value)
    with database.read() as session:
        assert FIND.first(session, {"name_": "twice"}) is None


def test_a_statement_for_many_rows_counts_what_all_of_them_changed(database: Database) -> None:
    rows = [{"name": name, "body": name.encode(), "count": index} for index, name in enumerate("abc")]
    with database.write() as session:
        assert INSERT.change_all(session, rows) == 3
        assert RENAME.change_all(session, [{"count_": 1, "new": "x"}, {"count_": 7000, "new": "y"}]) == 1
        assert RENAME.change_all(session, [{"count_": 7000, "new": "y"}, {"count_": 2, "new": "z"}]) == 1
    with database.read() as session:
        assert [FIND.first(session, {"name_": name}) for name in "axz"] == [
            ("a", b"a", None),
            ("x", b"b", None),
            ("z", b"c", None),
        ]
    with pytest.raises(IntegrityError) as caught, database.write() as session:
        INSERT.change_all(session, [{"name": "d", "body": b"secret-of-the-row", "count": 1}] * 2)
    assert "secret-of-the-row" not in str(caught.value)
    with database.read() as session:
        assert FIND.first(session, {"name_": "d"}) is None


def test_a_statement_that_the_database_refuses_raises_its_error(database: Database) -> None:
    missing = Prepared(select(Table("missing", MetaData(), Column("id", Integer)).c.id))
    with pytest.raises((OperationalError, ProgrammingError)), database.read() as session:
        missing.first(session, {})


def test_a_missing_parameter_is_an_error_and_not_null(database: Database) -> None:
    with pytest.raises((KeyError, ProgrammingError)), database.write() as session:
        INSERT.change(session, {"name": "a", "count": 1})
