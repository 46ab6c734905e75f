"""Telling the server that this client leaves a round, with one reason of a fixed list."""

from __future__ import annotations

from contextlib import suppress
from typing import Final, TypeVar

from client_sdk.api.effects import Program
from client_sdk.errors import Abstained, ClientSDKError, NotAttested, PolicyRefused
from client_sdk.participation.local_work import LocalWork
from protocols.errors import CertificateError, RefusalError
from protocols.messages import RefusalReason

__all__ = ["tell_refusals"]

T = TypeVar("T")
_REFUSED: Final = (PolicyRefused, RefusalError, CertificateError, NotAttested, Abstained)
"""Errors that follow from what the server sent, and a client that has no data for a sum. What depends on the values of
sums, such as an aggregate that does not open, is none of them."""
_REFUSED_IN: Final[dict[str, RefusalReason]] = {
    "sharing": "roster",
    "collecting": "sharers",
    "confirming": "survivors",
    "unmasking": "survivors",
}
"""What a client refuses a masked round for, by the state of the round."""


def tell_refusals(client: LocalWork, number: int, part: Program[T]) -> Program[T]:
    """Return the result of `part`, a client's part in round `number`; tell the server if it refuses it or abstains.

    The error is raised then; the server need not take note of the refusal.
    """
    try:
        return (yield from part)
    except _REFUSED as error:
        with suppress(ClientSDKError):  # the round has ended, or the server does not take notices
            yield from client.calls.refuse(client.terms.task_id, number, _reason(error))
        raise


def _reason(error: Exception) -> RefusalReason:
    match error:
        case RefusalError():
            return _REFUSED_IN.get(error.stage, "policy")
        case Abstained():
            return "no-data"
        case NotAttested():
            return "attestations"
        case CertificateError():
            return "certificates"
        case _:
            return "policy"
