"""The attestation of a contribution to an encrypted task: its signed components, which other members verify."""

from __future__ import annotations

import logging
from typing import Final

from fastapi import Request
from pydantic_core import to_json

from aggregator_service.access.request_signatures import signed_request
from aggregator_service.logs import fields
from aggregator_service.problems import Problem
from aggregator_service.uploads.admission import Admission
from protocols.crypto.aggregate_chain import AGGREGATE_CHAIN
from protocols.crypto.http_signature import SIGNATURE, SIGNATURE_INPUT, SIGNED_FIELDS

__all__ = ["attestation_of"]

_LOG: Final = logging.getLogger(__name__)


def attestation_of(admission: Admission, request: Request) -> str | None:
    """Return the attestation of the request, as JSON; None where the round's contributions have none.

    Raises `Problem`: bad-contribution (400) when the header Aggregate-Chain is missing or must be absent, and for a
    path that other members would not verify; aggregate-mismatch (409) when the client has absorbed other aggregates
    than this server released.
    """
    stated, expected = request.headers.get(AGGREGATE_CHAIN), admission.round.aggregate_chain
    if expected is None:
        if stated is not None:
            raise Problem(
                "bad-contribution",
                "contributions to this round have no header Aggregate-Chain: anyone can open the sums of the task, or "
                "the task is of an earlier version",
            )
        return None
    if stated is None:
        raise Problem("bad-contribution", "the header Aggregate-Chain is missing: state the absorbed aggregates")
    where = admission.round.task_id, admission.round.number, admission.client.client_id
    if stated != expected:
        _LOG.warning(
            "a client has absorbed other aggregates than this server released",
            extra=fields(task=where[0], round=where[1], client=where[2], stated=stated[:64], expected=expected),
        )
        raise Problem(
            "aggregate-mismatch",
            "this client has absorbed other aggregates than this server released before the round: somebody altered "
            "what it downloaded, or its snapshot is false",
        )
    signed = signed_request(request.scope)
    if signed is None:
        return None  # the server does not ask for signatures
    if (signed.path, signed.query) != ("/v1/tasks/{}/rounds/{}/contributions/{}".format(*where), ""):
        raise Problem("bad-contribution", "the address of a contribution must be written without escapes and query")
    attestation = {
        "method": signed.method,
        "authority": signed.authority,
        "fields": {name: signed.fields[name] for name in SIGNED_FIELDS if name in signed.fields},
        "signature_input": signed.fields[SIGNATURE_INPUT],
        "signature": signed.fields[SIGNATURE],
    }
    return to_json(attestation).decode()
