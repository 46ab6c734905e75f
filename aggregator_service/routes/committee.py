"""The committee of tasks with one-shot sums: keys ahead of rounds, and what members download and report in a round."""

from __future__ import annotations

from typing import Annotated, Final

from fastapi import Query
from fastapi.responses import Response
from sqlalchemy.orm import Session

from aggregator_service.access.principals import member_of, round_of, task_of
from aggregator_service.http.authentication import CommitteeMemberOf, MemberOf, PrincipalOf, committee_member
from aggregator_service.polling.views import round_view
from aggregator_service.problems import Problem
from aggregator_service.rounds.masked import report_shares
from aggregator_service.rounds.oneshot import report_sealed_shares
from aggregator_service.routes.common import (
    AnswerOf,
    ClientId,
    RawBodyOf,
    RoundNumber,
    TaskId,
    api_router,
    binary_response,
    guarded,
    headers_of,
    stored_once,
)
from aggregator_service.services import ServicesOf
from aggregator_service.storage.schema import TaskRow
from aggregator_service.storage.stage_rows import takes_part
from aggregator_service.tasks.committee_keys import committee_view, store_committee_key
from aggregator_service.uploads.shares import check_shares, sealed_shares, statements
from protocols.messages import BadShares, CommitteeView, RoundView
from protocols.sums.oneshot.wire import LONGEST_KEY

_STREAMED: Final = binary_response("Successful Response", "not-in-cohort")
_SHORTER: Final = "A shorter body means that the set changed, or that the storage failed: ask again."
_STREAMED["responses"][200]["headers"] = {
    **headers_of({"ETag": "Changes with the proposed survivors."}),
    **headers_of({"Content-Length": _SHORTER}, "integer"),
}

router = api_router("/v1/tasks/{task}/committee", tag="committee")
rounds_router = api_router("/v1/tasks/{task}/rounds/{number}", tag="committee")


@router.get("", summary="Show the committee", responses=guarded())
def show(services: ServicesOf, principal: PrincipalOf, task: TaskId) -> CommitteeView:
    """Return the members of the committee and the rounds whose keys they have published; 404 without a committee."""
    with services.database.read() as session:
        return committee_view(session, task_of(session, principal, task))


@router.put(
    "/{client}/keys/{number}",
    summary="Publish a committee key",
    **stored_once(
        "The encoded key with its signature, 242 bytes and the member's id.",
        "Published.",
        "The same key was published before.",
    ),
)
async def put_key(
    services: ServicesOf,
    committee_member: CommitteeMemberOf,
    raw: RawBodyOf,
    task: TaskId,
    client: ClientId,
    number: RoundNumber,
) -> Response:
    """A member of the committee publishes its key of one of the next eight rounds. The first one stands.

    A round opens when enough members have published its key.
    """
    member = member_of(committee_member, task, client)

    def write(session: Session, document: bytes) -> bool:
        return store_committee_key(session, task, number, member.client_id, document, services.clock.now())

    return await raw.store(write, most=LONGEST_KEY)


@rounds_router.get("/statements", summary="Fetch the survivors' statements", **_STREAMED)
def get_statements(
    services: ServicesOf, member: CommitteeMemberOf, task: TaskId, number: RoundNumber, answer: AnswerOf
) -> Response:
    """Return what the proposed survivors signed, to the committee, in the states confirming and unmasking."""
    return answer.pieces(statements(services.database, member_of(member, task), number))


@rounds_router.get("/shares/{client}", summary="Fetch the sealed shares", **_STREAMED)
def get_shares(
    services: ServicesOf,
    member: CommitteeMemberOf,
    task: TaskId,
    number: RoundNumber,
    client: ClientId,
    answer: AnswerOf,
    after: Annotated[
        str, Query(description="Id of the client before the first one; without it from the first on.", max_length=40)
    ] = "",
    count: Annotated[int | None, Query(description="Most shares; without it all that are left.", ge=1)] = None,
) -> Response:
    """Return the shares that the proposed survivors sealed for this member, in the order of their statements.

    In a large round a member asks for some of them at a time.
    """
    member = member_of(member, task, client)
    return answer.pieces(sealed_shares(services.database, services.blobs, member, number, after, count))


@rounds_router.post(
    "/bad-shares",
    summary="Name bad shares",
    responses=guarded("conflict", "not-in-cohort", "round-closed"),
)
def bad_shares(
    services: ServicesOf, member: MemberOf, task: TaskId, number: RoundNumber, named: BadShares
) -> RoundView:
    """A client names others whose sealed shares for it do not open. Idempotent.

    In a masked round a neighbour does so before it contributes. The round fails if a client has too few good shares;
    one that is in dispute with many others leaves the task. In a one-shot round a member of the committee does so, with
    `survivors_digest`. While t members can open all shares, the set stays. Otherwise clients leave it: the smaller set
    is proposed if no member has confirmed, and the round fails if one has. A client that more than `corrupt` members
    named leaves the task. 409 for another set, and for a member that has confirmed it.
    """
    if named.survivors_digest is not None:
        check_shares(services.database, services.blobs, committee_member(member), number, named)

    def write(session: Session) -> RoundView:
        row, found = session.get_one(TaskRow, task), round_of(session, task, number)
        now = services.clock.now()
        if named.survivors_digest is not None:
            survivors = bytes.fromhex(named.survivors_digest)
            changed = report_sealed_shares(session, found.id, member.client_id, survivors, named.clients, now)
        elif takes_part(session, found.id, "share", member.client_id):
            changed = report_shares(session, found.id, member.client_id, named.clients, now)
        else:
            raise Problem("not-in-cohort", "this client has not shared its secrets in this round")
        return round_view(session, row, changed, member, now)

    return services.database.transact(write)
