"""Enrolment: an invitation and a signed pair of keys become a client id and a token."""

from __future__ import annotations

from fastapi import APIRouter, Response

from aggregator_service.members import enrol
from aggregator_service.problems import responses
from aggregator_service.services import ServicesOf
from protocols.messages import Enrolment, EnrolmentRequest

__all__ = ["router"]

router = APIRouter(prefix="/v1/enrolments", tags=["enrolment"])


@router.post(
    "",
    status_code=201,
    summary="Enrol a client",
    responses={
        200: {
            "model": Enrolment,
            "description": "This identity is enrolled already: a fresh token, the old one is void.",
        },
        **responses(
            "bad-request",
            "forbidden",
            "conflict",
            "gone",
            "body-too-long",
            "upload-timeout",
            "invalid-parameters",
            "internal-error",
            "unavailable",
        ),
    },
)
def create(services: ServicesOf, request: EnrolmentRequest, response: Response) -> Enrolment:
    """Register an Ed25519 identity key and an X25519 mailbox key; the token is shown once."""
    with services.database.write() as session:
        enrolment, is_new = enrol(session, request, services.clock.now())
    response.status_code = 201 if is_new else 200
    return enrolment
