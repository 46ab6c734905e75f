"""The organiser's ledger of subjects, their certificates, revoked certificates and one-time codes.

The ledger is one SQLite file of mode 0600. A *subject* is what the organiser's own login identifies: an account, a
customer number, a one-time code. A subject has one certified identity and one role in each scope, so that one person
cannot become many members, or a member and a key holder. A subject whose certificate was revoked gets no other until it
is readmitted.
"""

from __future__ import annotations

import secrets
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Final

from client_sdk.errors import LocalFileError
from protocols.crypto.certificates import CertifiedRole, check_scope
from protocols.errors import ParameterError

_SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS certified (
    scope TEXT NOT NULL, role TEXT NOT NULL, subject TEXT NOT NULL,
    identity_key BLOB NOT NULL, mailbox_key BLOB NOT NULL, serial TEXT NOT NULL UNIQUE, not_after INTEGER NOT NULL,
    PRIMARY KEY (scope, subject), UNIQUE (scope, identity_key)
);
CREATE TABLE IF NOT EXISTS revoked (
    scope TEXT NOT NULL, serial TEXT NOT NULL, not_after INTEGER NOT NULL, PRIMARY KEY (scope, serial)
);
CREATE TABLE IF NOT EXISTS barred (
    scope TEXT NOT NULL, subject TEXT NOT NULL, PRIMARY KEY (scope, subject)
);
CREATE TABLE IF NOT EXISTS codes (
    code_hash BLOB PRIMARY KEY, scope TEXT NOT NULL, role TEXT NOT NULL
);
"""
_CODE_BYTES: Final = 24
_CODE_PREFIX: Final = "hoc_"


@dataclass(frozen=True)
class IssuedRecord:
    """One subject's certified keys. not_after: expiry of the newest certificate, seconds since the epoch."""

    subject: str
    identity_key: bytes
    mailbox_key: bytes
    serial: int
    not_after: int


class IssuedCertificates:
    """The ledger, in one file. Every call opens its own connection, so threads and processes may share it.

    Raises `LocalFileError` for a file that cannot be opened or is damaged.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            if not path.exists():
                path.touch(mode=0o600)
            path.chmod(0o600)
            with self._connected() as connection:
                connection.executescript(_SCHEMA)
        except (OSError, sqlite3.DatabaseError) as error:
            raise LocalFileError(f"the organiser's ledger {path} cannot be used: {error}") from error

    @contextmanager
    def _connected(self) -> Iterator[sqlite3.Connection]:
        """Run a write transaction, which sqlite3 commits, or rolls back if the block raises."""
        with closing(sqlite3.connect(self._path, timeout=30, isolation_level=None)) as connection, connection:
            connection.execute("BEGIN IMMEDIATE")
            yield connection

    def record(
        self, scope: str, role: CertifiedRole, subject: str, identity_key: bytes, mailbox_key: bytes, not_after: int
    ) -> IssuedRecord:
        """Record a certificate for the subject's keys: the first one, or a renewal for the same keys.

        A renewal keeps the serial. Raises `ParameterError` if the subject has a certificate for other keys or another
        role, if its certificate was revoked, or if another subject has one for these keys.
        """
        with self._connected() as connection:
            if connection.execute("SELECT 1 FROM barred WHERE scope = ? AND subject = ?", (scope, subject)).fetchone():
                raise ParameterError(
                    f"the certificate of subject {subject!r} in scope {scope!r} was revoked: it gets no other, for any "
                    "keys, until the organiser readmits it (hushrec organiser readmit)"
                )
            known = connection.execute(
                "SELECT role, identity_key, mailbox_key, serial FROM certified WHERE scope = ? AND subject = ?",
                (scope, subject),
            ).fetchone()
            if known is None:
                serial = secrets.randbits(64)
                row = (scope, role, subject, identity_key, mailbox_key, str(serial), not_after)
                try:
                    connection.execute("INSERT INTO certified VALUES (?, ?, ?, ?, ?, ?, ?)", row)
                except sqlite3.IntegrityError:
                    raise ParameterError(
                        f"another subject of scope {scope!r} has a certificate for these keys"
                    ) from None
                return IssuedRecord(subject, identity_key, mailbox_key, serial, not_after)
            if known[0] != role:
                raise ParameterError(
                    f"subject {subject!r} already has a certificate for the role {known[0]} in scope {scope!r}, and a "
                    f"subject has one role: certify another subject as {role}, or revoke that certificate and readmit "
                    "the subject"
                )
            if known[1:3] != (identity_key, mailbox_key):
                raise ParameterError(
                    f"subject {subject!r} already has a certificate for other keys in scope {scope!r}: use another "
                    "code or account, or ask the organiser to revoke that certificate and readmit the subject"
                )
            connection.execute(
                "UPDATE certified SET not_after = max(not_after, ?) WHERE serial = ?", (not_after, known[3])
            )
        return IssuedRecord(subject, identity_key, mailbox_key, int(known[3]), not_after)

    def revoke(self, scope: str, subject: str) -> bool:
        """Revoke the subject's certificate in the scope; return False, and change nothing, if it has none.

        The subject, and so the code that it was certified with, gets no other certificate until `readmit`.
        """
        with self._connected() as connection:
            held = connection.execute(
                "DELETE FROM certified WHERE scope = ? AND subject = ? RETURNING serial, not_after", (scope, subject)
            ).fetchone()
            if held is not None:
                connection.execute("INSERT INTO revoked VALUES (?, ?, ?)", (scope, *held))
                connection.execute("INSERT INTO barred VALUES (?, ?)", (scope, subject))
        return held is not None

    def readmit(self, scope: str, subject: str) -> bool:
        """Allow a new certificate for a subject whose certificate was revoked; return False if none was."""
        with self._connected() as connection:
            found = connection.execute("DELETE FROM barred WHERE scope = ? AND subject = ?", (scope, subject))
            return found.rowcount > 0

    def revoked(self, scope: str, now: float) -> frozenset[int]:
        """Return the serials of the scope's revoked certificates that have not expired; delete the expired ones."""
        with self._connected() as connection:
            connection.execute("DELETE FROM revoked WHERE not_after < ?", (int(now),))
            rows = connection.execute("SELECT serial FROM revoked WHERE scope = ?", (scope,)).fetchall()
        return frozenset(int(serial) for (serial,) in rows)

    def held(self, scope: str) -> list[IssuedRecord]:
        """Return the certificates of the scope that are not revoked, in the order of their subjects."""
        with self._connected() as connection:
            rows = connection.execute(
                "SELECT subject, identity_key, mailbox_key, serial, not_after FROM certified WHERE scope = ? "
                "ORDER BY subject",
                (scope,),
            ).fetchall()
        return [IssuedRecord(row[0], row[1], row[2], int(row[3]), row[4]) for row in rows]

    def new_codes(self, scope: str, role: CertifiedRole, count: int) -> list[str]:
        """Return `count` new one-time codes, each for one identity. The ledger stores only their SHA-256.

        Raises `ParameterError` for a scope that no certificate can have.
        """
        check_scope(scope)
        codes = [_CODE_PREFIX + secrets.token_urlsafe(_CODE_BYTES) for _ in range(count)]
        with self._connected() as connection:
            connection.executemany("INSERT INTO codes VALUES (?, ?, ?)", [(_hash(code), scope, role) for code in codes])
        return codes

    def subject_of(self, code: str, scope: str, role: CertifiedRole) -> str | None:
        """Return the subject that belongs to a code; None if the code is not valid for this scope and role."""
        code_hash = _hash(code)
        with self._connected() as connection:
            found = connection.execute(
                "SELECT 1 FROM codes WHERE code_hash = ? AND scope = ? AND role = ?", (code_hash, scope, role)
            ).fetchone()
        return None if found is None else f"code {code_hash.hex()[:16]}"


def _hash(code: str) -> bytes:
    return sha256(code.encode()).digest()
