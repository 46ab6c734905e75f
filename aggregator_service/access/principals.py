"""Principals: who makes a request, an operator or a client enrolled in one task, by its token, and what it may see.

Tokens are random texts of which only hashes are stored. Operators' tokens are created, listed and revoked here.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from dataclasses import dataclass, field
from typing import Final, cast

from sqlalchemy import bindparam, select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from aggregator_service.access.audit_trail import Actor, record
from aggregator_service.problems import Problem
from aggregator_service.storage.database import Database
from aggregator_service.storage.round_rows import find_round, lock_name
from aggregator_service.storage.schema import ClientRow, OperatorRow, RoundRow, TaskRow
from protocols.messages import OperatorPage, OperatorRequest, OperatorRole, OperatorToken, OperatorView, Role

_NO_TASK = "there is no such task"


@dataclass(frozen=True)
class Operator:
    """An operator of the aggregator."""

    name: str
    """The name of the token, `environment` for the one in the settings."""
    role: OperatorRole


@dataclass(frozen=True, slots=True)
class Enrolled:
    """A client of one task."""

    client_id: str
    task_id: str
    role: Role
    device_group: int = 0
    """Its device group, 0 in tasks without groups."""
    identity_key: bytes = field(default=b"", repr=False)
    """Its Ed25519 public key, 32 bytes."""


Principal = Operator | Enrolled
"""Whoever makes an authenticated request."""


def task_of(session: Session, principal: Principal, task_id: str) -> TaskRow:
    """Return the task. Raise `Problem` not-found if it does not exist, or if the client belongs to another task.

    The two cases look the same, so that a client cannot probe for other tasks.
    """
    if isinstance(principal, Enrolled) and principal.task_id != task_id:
        raise Problem("not-found", _NO_TASK)
    return existing_task(session, task_id)


def existing_task(session: Session, task_id: str) -> TaskRow:
    """Return the task; `Problem` not-found if there is none with this id."""
    task = session.get(TaskRow, task_id)
    if task is None:
        raise Problem("not-found", _NO_TASK)
    return task


def member_of(principal: Principal, task_id: str, client_id: str | None = None) -> Enrolled:
    """Return `principal` as a client of the task `task_id`.

    client_id: the client that the path names, if it names one. Raises `Problem`: not-found for a client of another
    task, forbidden for operators and for a client other than `client_id`.
    """
    if not isinstance(principal, Enrolled):
        raise Problem("forbidden", "this request needs a client's token")
    if principal.task_id != task_id:
        raise Problem("not-found", _NO_TASK)
    if client_id is not None and principal.client_id != client_id:
        raise Problem("forbidden", "the token belongs to another client")
    return principal


def client_id_of(principal: Principal) -> str | None:
    """Return the id of a client, None for an operator."""
    return principal.client_id if isinstance(principal, Enrolled) else None


def round_of(session: Session, task_id: str, number: int) -> RoundRow:
    """Return the round; `Problem` not-found if there is none with this number."""
    found = find_round(session, task_id, number)
    if found is None:
        raise Problem("not-found", "there is no such round")
    return found


# --- tokens -----------------------------------------------------------------------------------------------------------


def new_id(prefix: str) -> str:
    """Return an opaque id: `prefix`, an underscore and 80 random bits in hex."""
    return f"{prefix}_{secrets.token_hex(10)}"


def new_token(prefix: str) -> str:
    """Return a token: `prefix`, an underscore and 256 random bits. Secret scanners find it by its prefix."""
    return f"{prefix}_{secrets.token_urlsafe(32)}"


def hash_token(token: str) -> str:
    """Return the SHA-256 of a token, hex, which is stored in place of the token."""
    return hashlib.sha256(token.encode()).hexdigest()


def matches(token_hash: str, stored_hash: str) -> bool:
    """Return whether two hashes are equal, in constant time."""
    return hmac.compare_digest(token_hash, stored_hash)


_ENVIRONMENT: Final = "environment"


def environment_operator(own_hash: str | None, token_hash: str) -> Operator | None:
    """Return the operator of the token in the settings if it is this one; own_hash: SHA-256 (hex) of that token."""
    if own_hash is not None and matches(token_hash, own_hash):
        return Operator(_ENVIRONMENT, "admin")
    return None


_CLIENT: Final = (ClientRow.id, ClientRow.task_id, ClientRow.role, ClientRow.device_group, ClientRow.identity_key)
_CLIENT_WITH: Final = (
    select(*_CLIENT, ClientRow.token_hash, TaskRow.version)
    .join(TaskRow, TaskRow.id == ClientRow.task_id)
    .where(ClientRow.token_hash == bindparam("token_hash"))
)


def find_client(database: Database, token_hash: str) -> tuple[Enrolled, int] | None:
    """Return the client whose token has this SHA-256 (hex) and the version of its task, None if there is none."""
    for client_id, task_id, role, group, identity_key, stored, version in database.rows(
        _CLIENT_WITH, {"token_hash": token_hash}
    ):
        if matches(token_hash, stored):
            return Enrolled(client_id, task_id, cast(Role, role), group, identity_key), version
    return None


def find_operator(session: Session, token_hash: str, now: float) -> Operator | None:
    """Return the operator whose token has this SHA-256 (hex), None if there is none.

    now: seconds since the epoch. Raises `Problem` unauthenticated if the token has expired.
    """
    row = session.scalars(select(OperatorRow).where(OperatorRow.token_hash == token_hash)).one_or_none()
    if row is None or not matches(token_hash, row.token_hash):
        return None
    if row.expires_at is not None and row.expires_at <= now:
        raise Problem("unauthenticated", "the token has expired; ask an admin to rotate it")
    return Operator(row.name, cast(OperatorRole, row.role))


def create_operator(session: Session, request: OperatorRequest, actor: Actor) -> OperatorToken:
    """Create a token and return it; the database keeps its hash. Raises `Problem` conflict if the name is taken."""
    if request.name == _ENVIRONMENT:
        raise Problem("conflict", "the log names the token of the settings so: choose another name")
    row = OperatorRow(name=request.name, role=request.role, lifetime=request.expires_seconds)
    shown = _renew(row, actor.at)
    session.add(row)
    try:
        session.flush()
    except IntegrityError:
        raise Problem("conflict", "there is already a token with this name; rotate it or revoke it") from None
    record(session, actor, "operator token created", target=row.name, role=row.role, lifetime=row.lifetime)
    return shown


def create_admin(session: Session, actor: Actor, *, only_first: bool = False) -> OperatorToken | None:
    """Create an admin's token under the next free name (admin, admin-2, ...) and return it.

    only_first: return None if there is any operator already. A lock makes servers that start at the same time create
    one first token.
    """
    lock_name(session, "operators")
    taken = set(session.scalars(select(OperatorRow.name)))
    if only_first and taken:
        return None
    names = ("admin", *(f"admin-{number}" for number in range(2, len(taken) + 3)))
    name = next(name for name in names if name not in taken)
    return create_operator(session, OperatorRequest(name=name, role="admin"), actor)


def list_operators(session: Session, now: float) -> OperatorPage:
    """Return all tokens by name, including expired ones that are not revoked. now: seconds since the epoch."""
    rows = session.scalars(select(OperatorRow).order_by(OperatorRow.name))
    return OperatorPage(operators=[OperatorView.model_validate(_view(row, now)) for row in rows])


def rotate_operator(session: Session, name: str, actor: Actor) -> OperatorToken:
    """Replace a token by a new one with the same name, role and full lifetime; the old one is void at once.

    Raises `Problem` not-found if there is no token with this name.
    """
    row = _named(session, name)
    shown = _renew(row, actor.at)
    session.flush()
    record(session, actor, "operator token rotated", target=name, role=row.role)
    return shown


def revoke_operator(session: Session, name: str, actor: Actor) -> OperatorView:
    """Void a token at once and return its last state. Raises `Problem` not-found if there is none with this name."""
    row = _named(session, name)
    session.delete(row)
    session.flush()
    record(session, actor, "operator token revoked", target=name, role=row.role)
    return OperatorView.model_validate(_view(row, actor.at))


def _named(session: Session, name: str) -> OperatorRow:
    row = session.scalars(select(OperatorRow).where(OperatorRow.name == name).with_for_update()).one_or_none()
    if row is None:
        raise Problem("not-found", "there is no operator's token with this name")
    return row


def _renew(row: OperatorRow, now: float) -> OperatorToken:
    token = new_token("hro")
    row.token_hash, row.created_at = hash_token(token), now
    row.expires_at = None if row.lifetime is None else now + row.lifetime
    return OperatorToken.model_validate({**_view(row, now), "token": token})


def _view(row: OperatorRow, now: float) -> dict[str, object]:
    return {
        "name": row.name,
        "role": row.role,
        "age_seconds": max(0.0, now - row.created_at),
        "expires_seconds": None if row.expires_at is None else max(0.0, row.expires_at - now),
    }
