"""The set of survivors that the server proposes to a member: their statements, and the shares sealed for the member.

The shares are spooled to an unnamed temporary file as they arrive and read one by one, so that the memory of a member
does not grow with the number of clients. They are sealed; each is checked against the digest that its client signed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from tempfile import SpooledTemporaryFile
from typing import IO, Final

from client_sdk.api.committee_calls import CommitteeCalls
from client_sdk.api.effects import Program, work
from client_sdk.committee.record import client_tag
from client_sdk.participation.certificates import MembershipCheck
from client_sdk.participation.committee_keys import is_certified
from protocols.crypto.certificates import CERTIFICATE_BYTES
from protocols.errors import RefusalError
from protocols.sums.oneshot.handouts import split_statements
from protocols.sums.oneshot.member import Inspection, Ready, inspect
from protocols.sums.oneshot.messages import DIGEST_BYTES
from protocols.sums.oneshot.plan import KEY_BYTES, SIGNATURE_BYTES, OneshotPlan

__all__ = ["inspect_proposal"]

_IN_MEMORY: Final = 1 << 20
_LONGEST_ID: Final = 64


def inspect_proposal(
    calls: CommitteeCalls, ready: Ready, member_id: str, membership_check: MembershipCheck
) -> Program[Inspection]:
    """Fetch the proposed survivors of a round and check them; `clients` of the result are tags of identity keys.

    Raises `CodecError` for malformed statements, and `RefusalError` if the server sends another number of shares, or
    if nothing of what it proposes is valid: then it is the server that is at fault, and no client is named.
    """
    context = ready.committee.context
    plan, task_id, number = context.plan, context.task_id, context.round_number
    body = yield from calls.statements(task_id, number, context.cohort * _longest_statement(plan))
    statements = yield from work(lambda: split_statements(plan, body, context.cohort))
    with _SpooledShares() as shares:
        length = len(statements) * plan.sealed_bytes
        yield from calls.sealed_shares(task_id, number, member_id, length, shares)
        if shares.length != length:
            raise RefusalError(f"the server sent {shares.length} bytes of sealed shares, {length} were expected")
        found = yield from work(
            lambda: inspect(
                ready,
                statements,
                shares.each(plan.sealed_bytes),
                lambda statement: is_certified(membership_check, statement, "member"),
            )
        )
    if statements and len(found.bad) == len(statements):
        raise RefusalError("no client of the proposed set has a valid statement and share for this round and committee")
    return replace(found, clients=frozenset(client_tag(statement.identity_key) for statement in statements))


def _longest_statement(plan: OneshotPlan) -> int:
    digests = (1 + plan.committee) * DIGEST_BYTES
    return 1 + _LONGEST_ID + 3 * KEY_BYTES + CERTIFICATE_BYTES + digests + SIGNATURE_BYTES


class _SpooledShares:
    """A sink that keeps sealed shares in a temporary file."""

    def __init__(self) -> None:
        self._file: IO[bytes] = SpooledTemporaryFile(max_size=_IN_MEMORY)  # noqa: SIM115 - closed by `__exit__`
        self.length = 0

    def begin(self) -> None:
        """Forget the shares."""
        self._file.seek(0)
        self._file.truncate()
        self.length = 0

    def add(self, piece: bytes) -> None:
        """Append the next piece."""
        self._file.write(piece)
        self.length += len(piece)

    def each(self, size: int) -> Iterator[bytes]:
        """Yield the shares of `size` bytes in order."""
        self._file.seek(0)
        for _ in range(self.length // size):
            yield self._file.read(size)

    def __enter__(self) -> _SpooledShares:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()
