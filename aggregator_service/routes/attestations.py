"""Attestations: what the contributors of a completed round stated about the aggregates before it."""

from __future__ import annotations

import json
from typing import Annotated

from fastapi import Query
from sqlalchemy import select

from aggregator_service.access.principals import task_of
from aggregator_service.http.authentication import PrincipalOf
from aggregator_service.problems import Problem
from aggregator_service.routes.bodies import api_router
from aggregator_service.routes.common import RoundNumber, TaskId, guarded
from aggregator_service.services import ServicesOf
from aggregator_service.storage.rounds import find_round
from aggregator_service.storage.schema import ClientRow, ContributionRow
from protocols.codec import b64encode
from protocols.messages import Attestation, AttestationPage
from protocols.messages.attestations import LARGEST_ATTESTATION_PAGE

__all__ = ["router"]

router = api_router("/v1/tasks/{task}/rounds/{number}/attestations", tag="rounds")

_COLUMNS = (
    *(ClientRow.id, ClientRow.identity_key, ClientRow.mailbox_key, ClientRow.certificate),
    ContributionRow.attestation,
)


@router.get("", summary="List attestations", responses=guarded())
def list_all(
    services: ServicesOf,
    principal: PrincipalOf,
    task: TaskId,
    number: RoundNumber,
    after: Annotated[str, Query(description="Return only clients with a larger id.", max_length=40)] = "",
    limit: Annotated[int, Query(description="Largest number of attestations.", ge=1, le=LARGEST_ATTESTATION_PAGE)] = (
        LARGEST_ATTESTATION_PAGE
    ),
) -> AttestationPage:
    """Return the signed components of the contributions to a completed round, with the clients' keys and certificates.

    In encrypted tasks they state which aggregates each client absorbed before the round, so that members can compare
    them. 404 until the round is complete; those of the newest two completed rounds are kept.
    """
    with services.database.read() as session:
        task_of(session, principal, task)
        round_ = find_round(session, task, number)
        if round_ is None or round_.state != "complete" or round_.aggregate_chain is None:
            raise Problem("not-found", "there are no attestations of this round")
        query = select(*_COLUMNS).join(ContributionRow, ContributionRow.client_id == ClientRow.id)
        query = query.where(ContributionRow.round_id == round_.id, ContributionRow.client_id > after)
        query = query.where(ContributionRow.attestation.is_not(None)).order_by(ContributionRow.client_id)
        rows = session.execute(query.limit(limit + 1)).all()
    shown = [
        Attestation(
            client_id=client_id,
            identity_key=b64encode(identity_key),
            mailbox_key=b64encode(mailbox_key),
            certificate=None if certificate is None else b64encode(certificate),
            **json.loads(attestation or "{}"),
        )
        for client_id, identity_key, mailbox_key, certificate, attestation in rows[:limit]
    ]
    return AttestationPage(attestations=shown, more=len(rows) > limit)
