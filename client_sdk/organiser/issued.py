"""The organiser's ledger: its subjects, their certificates, revoked certificates and one-time codes.

It is one SQLite file of mode 0600. A *subject* is what the organiser's own login identifies: an account, a customer
number, a one-time code. A subject has one certified identity and one role in each scope, so that one person cannot
become many members, or a member and a key holder. A subject whose certificate was revoked gets no other until it is
readmitted.
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
from protocols.codec import b64encode
from protocols.crypto.certificates import CertifiedRole, check_scope
from protocols.errors import ParameterError

_LONGEST_SUBJECT: Final = 255
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
    code_hash BLOB PRIMARY KEY, scope TEXT NOT NULL, role TEXT NOT NULL, subject TEXT NOT NULL
);
"""
_CODE_BYTES: Final = 24
_CODE_PREFIX: Final = "hoc_"


@dataclass(frozen=True)
class IssuedRecord:
    """One subject's certified keys."""

    subject: str
    identity_key: bytes
    mailbox_key: bytes
    serial: int
    not_after: int
    """Expiry of the newest certificate, seconds since the epoch."""


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

    def revoke(self, scope: str, subject: str) -> None:
        """Revoke the subject's certificate, and bar the subject; see `Organiser.revoke`."""
        with self._connected() as connection:
            held = connection.execute(
                "DELETE FROM certified WHERE scope = ? AND subject = ? RETURNING serial, not_after", (scope, subject)
            ).fetchone()
            if held is None:
                raise ParameterError(f"subject {subject!r} holds no certificate in scope {scope!r}")
            connection.execute("INSERT INTO revoked VALUES (?, ?, ?)", (scope, *held))
            connection.execute("INSERT INTO barred VALUES (?, ?)", (scope, subject))

    def readmit(self, scope: str, subject: str) -> None:
        """Bar the subject no longer; see `Organiser.readmit`."""
        with self._connected() as connection:
            found = connection.execute("DELETE FROM barred WHERE scope = ? AND subject = ?", (scope, subject))
            if not found.rowcount:
                raise ParameterError(f"no certificate of subject {subject!r} was revoked in scope {scope!r}")

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

    def about(self, subject: str) -> list[dict[str, str | int]]:
        """Return what each table holds about a subject."""
        with self._connected() as connection:
            certified = connection.execute(
                "SELECT scope, role, identity_key, mailbox_key, serial, not_after FROM certified WHERE subject = ?",
                (subject,),
            ).fetchall()
            barred = connection.execute("SELECT scope FROM barred WHERE subject = ?", (subject,)).fetchall()
            codes = connection.execute("SELECT scope, role FROM codes WHERE subject = ?", (subject,)).fetchall()
        certificates: list[dict[str, str | int]] = [
            {
                "kind": "certificate",
                "scope": scope,
                "role": role,
                "identity_key": b64encode(identity_key),
                "mailbox_key": b64encode(mailbox_key),
                "serial": f"{int(serial):016x}",
                "not_after": not_after,
            }
            for scope, role, identity_key, mailbox_key, serial, not_after in certified
        ]
        others: list[dict[str, str | int]] = [{"kind": "barred", "scope": scope} for (scope,) in barred]
        return [*certificates, *others, *({"kind": "code", "scope": scope, "role": role} for scope, role in codes)]

    def erase(self, subject: str, now: float) -> list[str]:
        """Delete what is stored about a subject; see `Organiser.erase`. now: seconds since the epoch."""
        with self._connected() as connection:
            connection.execute("PRAGMA secure_delete = ON")  # overwrites what it deletes
            held = connection.execute(
                "DELETE FROM certified WHERE subject = ? RETURNING scope, serial, not_after", (subject,)
            ).fetchall()
            valid = [row for row in held if row[2] >= int(now)]
            connection.executemany("INSERT INTO revoked VALUES (?, ?, ?)", valid)
            others = [
                connection.execute(f"DELETE FROM {table} WHERE subject = ?", (subject,)).rowcount  # noqa: S608
                for table in ("barred", "codes")
            ]
            if not held and not any(others):
                raise ParameterError(f"nothing is stored about subject {subject!r}")
        return sorted({scope for scope, _, _ in valid})

    def new_codes(self, scope: str, role: CertifiedRole, count: int, subject: str | None = None) -> list[str]:
        """Return `count` new one-time codes, each for one identity. The ledger stores only their SHA-256.

        subject: the user who gets the code, of which there is one; None: each code is a subject of its own, named by
        the start of its SHA-256. Raises `ParameterError` for a scope or a subject that no certificate can have, and for
        several codes of one subject.
        """
        check_scope(scope)
        if subject is not None:
            check_subject(subject)
            if count != 1:
                raise ParameterError(
                    f"a subject gets one code, not {count}: make the codes of others without a subject"
                )
        codes = [_CODE_PREFIX + secrets.token_urlsafe(_CODE_BYTES) for _ in range(count)]
        rows = [(_hash(code), scope, role, subject or f"code {_hash(code).hex()[:16]}") for code in codes]
        with self._connected() as connection:
            connection.executemany("INSERT INTO codes VALUES (?, ?, ?, ?)", rows)
        return codes

    def subject_of(self, code: str, scope: str, role: CertifiedRole) -> str | None:
        """Return the subject that belongs to a code; None if the code is not valid for this scope and role."""
        code_hash = _hash(code)
        with self._connected() as connection:
            found = connection.execute(
                "SELECT subject FROM codes WHERE code_hash = ? AND scope = ? AND role = ?", (code_hash, scope, role)
            ).fetchone()
        return None if found is None else str(found[0])


def check_subject(subject: str) -> None:
    if not subject.strip() or not subject.isprintable() or len(subject) > _LONGEST_SUBJECT:
        raise ParameterError(
            f"a subject must have 1 to {_LONGEST_SUBJECT} printable characters: name the user as your login does"
        )


def _hash(code: str) -> bytes:
    return sha256(code.encode()).digest()
