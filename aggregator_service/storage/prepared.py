"""Frequent statements, compiled once and executed on the driver's cursor.

SQLAlchemy's execution of a compiled statement takes several times as long as the statement itself. A `Prepared`
statement keeps what is needed of it: the SQL text of each dialect, the order of the parameters and their conversion.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from sqlalchemy import ClauseElement, Connection, Dialect, LargeBinary
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

__all__ = ["Prepared", "run_plainly", "use_connection"]

_CONNECTION: Final = "connection"
_Convert = Callable[[Any], Any]


class Prepared:
    """A statement whose parameters are all given by name, and whose results need no conversion.

    Results are as the driver makes them: numbers, texts, bytes and None; a truth value may be 0 or 1. Select no columns
    of other types. columns: those that an INSERT sets, without VALUES or SELECT in `statement`; defaults of the others
    that Python computes are not applied.
    """

    def __init__(self, statement: ClauseElement, columns: Sequence[str] | None = None) -> None:
        self._statement, self._columns = statement, None if columns is None else list(columns)
        self._texts: Final[dict[str, _Text]] = {}

    def first(self, session: Session, parameters: Mapping[str, Any]) -> tuple[Any, ...] | None:
        """Execute; return the first row, None where there is none. Raises as `Connection.execute`."""
        cursor = self._execute(_connection(session), parameters)
        try:
            row: tuple[Any, ...] | None = cursor.fetchone()
        finally:
            cursor.close()
        return row

    def change(self, session: Session, parameters: Mapping[str, Any]) -> int:
        """Execute; return the number of rows that were changed. Raises as `Connection.execute`."""
        cursor = self._execute(_connection(session), parameters)
        try:
            count: int = cursor.rowcount
        finally:
            cursor.close()
        return count

    def change_all(self, session: Session, rows: Sequence[Mapping[str, Any]]) -> int:
        """Execute once for each of `rows`; return the number of rows that were changed by all. Raises as `change`."""
        connection = _connection(session)
        text, cursor = self._text(connection.dialect), connection.connection.cursor()
        try:
            cursor.executemany(text.sql, [text.arranged(parameters) for parameters in rows])
            count: int = cursor.rowcount
        except connection.dialect.loaded_dbapi.Error as error:
            raise _wrapped(text.sql, error, connection.dialect) from error
        finally:
            cursor.close()
        return count

    def _execute(self, connection: Connection, parameters: Mapping[str, Any]) -> Any:
        dialect = connection.dialect
        text, cursor = self._text(dialect), connection.connection.cursor()
        try:
            cursor.execute(text.sql, text.arranged(parameters))
        except dialect.loaded_dbapi.Error as error:
            cursor.close()
            raise _wrapped(text.sql, error, dialect) from error
        except BaseException:
            cursor.close()
            raise
        return cursor

    def _text(self, dialect: Dialect) -> _Text:
        text = self._texts.get(dialect.name)
        if text is None:
            text = self._texts[dialect.name] = _Text(self._statement, self._columns, dialect)
        return text


def run_plainly(connection: Connection, sql: str) -> None:
    """Execute a statement without parameters and results on the driver's cursor. Raises as `Connection.execute`."""
    cursor = connection.connection.cursor()
    try:
        cursor.execute(sql)
    except connection.dialect.loaded_dbapi.Error as error:
        raise _wrapped(sql, error, connection.dialect) from error
    finally:
        cursor.close()


def use_connection(session: Session, connection: Connection) -> None:
    """Let prepared statements of `session` be executed on `connection`, which is in the session's transaction."""
    session.info[_CONNECTION] = connection


def _connection(session: Session) -> Connection:
    """Return the connection of the session's transaction: finding it costs more than a statement. One a session."""
    found: Connection | None = session.info.get(_CONNECTION)
    if found is None:
        found = session.info[_CONNECTION] = session.connection()
    return found


class _Text:
    """A statement in the SQL of one dialect, and how the driver takes its parameters."""

    def __init__(self, statement: ClauseElement, columns: list[str] | None, dialect: Dialect) -> None:
        compiled: Any = statement.compile(dialect=dialect, column_keys=columns)
        self.sql = str(compiled)
        self._positions: list[str] | None = compiled.positiontup
        self._constants = {name: bound.value for name, bound in compiled.binds.items() if not bound.required}
        converters = {name: _converter(bound, dialect) for name, bound in compiled.binds.items()}
        self._converters = {name: convert for name, convert in converters.items() if convert is not None}

    def arranged(self, parameters: Mapping[str, Any]) -> Any:
        """Return the parameters as the driver takes them; `KeyError` if one is missing."""
        values = parameters
        if self._constants or self._converters:
            values = {**self._constants, **parameters}
            for name, convert in self._converters.items():
                values[name] = convert(values[name])
        return values if self._positions is None else [values[name] for name in self._positions]


def _converter(bound: Any, dialect: Dialect) -> _Convert | None:
    if isinstance(bound.type, LargeBinary):
        return None  # both drivers take bytes as they are
    convert: _Convert | None = bound.type.dialect_impl(dialect).bind_processor(dialect)
    return convert


def _wrapped(sql: str, error: Exception, dialect: Dialect) -> BaseException:
    """Return the exception that SQLAlchemy raises for an error of the driver; it holds no parameters."""
    base = dialect.loaded_dbapi.Error
    return DBAPIError.instance(sql, None, error, base, hide_parameters=True, dialect=dialect)
