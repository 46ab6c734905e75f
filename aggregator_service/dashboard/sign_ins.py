"""Who is signed in: a row that all replicas share, and a secret that only the browser holds.

The operator's token is asked for once and not kept; the row has its hash, so that whoever rotates or revokes the token
ends what was begun with it.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
from dataclasses import dataclass
from typing import cast

from sqlalchemy import delete, select

from aggregator_service.access.principals import Operator
from aggregator_service.access.tokens import hash_token, matches, new_token
from aggregator_service.logs import fields
from aggregator_service.services import Services
from aggregator_service.storage.schema import OperatorRow, SignInRow
from protocols.messages import OperatorRole

__all__ = ["Visitor", "begin", "end", "find"]

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class Visitor:
    """An operator at a browser. secret_hash: names the row; form_token: what this visitor's forms carry."""

    operator: Operator
    secret_hash: str
    token_hash: str
    form_token: str

    @property
    def may_act(self) -> bool:
        """Whether extend and abort are for this operator."""
        return self.operator.role != "read-only"


def begin(services: Services, token: str) -> str | None:
    """The secret for the browser of the operator with this token; None when there is none."""
    token_hash = hash_token(token)
    operator = _operator(services, token_hash)
    if operator is None:
        return None
    secret, now = new_token("hrs"), services.clock.now()
    with services.database.write() as session:
        session.execute(delete(SignInRow).where(SignInRow.expires_at <= now))
        session.add(
            SignInRow(
                secret_hash=hash_token(secret),
                token_hash=token_hash,
                expires_at=now + services.settings.sign_in_seconds,
            )
        )
    _LOG.info("operator signed in", extra=fields(operator=operator.name, role=operator.role))
    return secret


def find(services: Services, secret: str) -> Visitor | None:
    """Who holds this secret; None when it is not known, is over, or its operator's token is void."""
    secret_hash = hash_token(secret)
    with services.database.read() as session:
        row = session.get(SignInRow, secret_hash)
    if row is None or not matches(row.secret_hash, secret_hash) or row.expires_at <= services.clock.now():
        return None
    operator = _operator(services, row.token_hash)
    return None if operator is None else Visitor(operator, secret_hash, row.token_hash, _form_token(secret))


def end(services: Services, visitor: Visitor) -> None:
    """The secret is void, in all windows and replicas."""
    with services.database.write() as session:
        session.execute(delete(SignInRow).where(SignInRow.secret_hash == visitor.secret_hash))
    _LOG.info("operator signed out", extra=fields(operator=visitor.operator.name))


def _operator(services: Services, token_hash: str) -> Operator | None:
    """The operator whose token has this hash, if it is good for anything now."""
    if services.operator_token_hash is not None and matches(token_hash, services.operator_token_hash):
        return Operator("environment", "admin")
    with services.database.read() as session:
        row = session.scalars(select(OperatorRow).where(OperatorRow.token_hash == token_hash)).one_or_none()
    if row is None or not matches(token_hash, row.token_hash):
        return None
    over = row.expires_at is not None and row.expires_at <= services.clock.now()
    return None if over else Operator(row.name, cast(OperatorRole, row.role))


def _form_token(secret: str) -> str:
    """Follows from the secret, which pages cannot read: another site neither knows nor guesses it."""
    return hmac.new(secret.encode(), b"hushrec dashboard form", hashlib.sha256).hexdigest()
