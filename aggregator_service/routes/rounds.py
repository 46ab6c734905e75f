"""Rounds, their cohorts, aggregates and attestations, and operators' interventions."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Final

from fastapi import Query, Request, Response
from sqlalchemy import select
from sqlalchemy.orm import Session
from starlette.concurrency import run_in_threadpool

from aggregator_service.access.principals import (
    Enrolled,
    Operator,
    Principal,
    client_id_of,
    member_of,
    round_of,
    task_of,
)
from aggregator_service.http.authentication import ActorOf, MemberOf, PrincipalOf, ReaderOnly
from aggregator_service.http.fields import not_modified
from aggregator_service.logs import fields
from aggregator_service.polling.notifier import NOT_HELD
from aggregator_service.polling.pace import seconds_to_window
from aggregator_service.polling.views import CachedRound, ClientRoundStatus, compact_rounds, round_etag, round_view
from aggregator_service.problems import Problem
from aggregator_service.rounds.interventions import abort_round, extend_round
from aggregator_service.routes.common import (
    AnswerOf,
    IfNoneMatch,
    RoundNumber,
    TaskId,
    Wait,
    api_router,
    binary_response,
    guarded,
    headers_of,
)
from aggregator_service.services import Services, ServicesOf, services_of
from aggregator_service.storage.database import Database, Delivery, announce
from aggregator_service.storage.round_rows import (
    add_refusal,
    cohort_clients,
    find_round,
    last_round,
    list_rounds,
    lock_task,
)
from aggregator_service.storage.schema import ClientRow, ContributionRow
from aggregator_service.storage.stage_rows import awaited_message, of_one, takes_part
from aggregator_service.tasks.receipts import round_receipt
from protocols.codec import b64encode
from protocols.messages import Attestation, AttestationPage, CohortView, Extension, RefusalNotice, RoundPage, RoundView
from protocols.messages.receipts import RoundReceipt
from protocols.messages.rounds import LARGEST_ATTESTATION_PAGE
from protocols.messages.stages import RoundState

_LOG = logging.getLogger(__name__)

router = api_router("/v1/tasks/{task}/rounds", tag="rounds")

_NO_ROUND: Final = 'W/"0"'
"""The ETag of a task without rounds."""


@dataclass(frozen=True)
class _RoundAnswer:
    """A round as one principal sees it, made when it is needed, and the ETag of that view."""

    view: Callable[[], RoundView]
    etag: str
    begins_in: Callable[[], int] = lambda: 0
    """Returns the seconds until the window of a client that the round awaits; 0 for others."""


@router.get(
    "/current",
    summary="Follow the current round",
    response_model=RoundView,
    responses={
        200: {
            "headers": headers_of({"ETag": "Send it back in If-None-Match with `wait` to wait for the next change."})
            | headers_of(
                {"Retry-After": "Seconds until the client's window in a large round, to wait for."}, always=False
            )
        },
        204: {
            "description": "No round has been opened yet, nor within `wait` seconds.",
            "headers": headers_of({"ETag": "That of a task without rounds."}),
        },
        304: {
            "description": "Nothing changed within `wait` seconds, or the server has no room to let the poll wait.",
            "headers": headers_of(
                {"Retry-After": "Seconds after which to ask again, if there was no room."}, always=False
            ),
        },
        **guarded(),
    },
)
async def current(
    principal: PrincipalOf,
    http: Request,
    task: TaskId,
    wait: Wait = 0.0,
    if_none_match: IfNoneMatch = None,
) -> Response:
    """Return the newest round; 204 before the first. With `wait`, return as soon as it opens or changes.

    That it begins to fold ends no wait of a client, which has nothing to do then.
    """
    services = services_of(http)
    newest: _RoundAnswer | None = None

    async def changed() -> _RoundAnswer | None:
        nonlocal newest
        newest = await _newest_round(services, principal, task)
        return None if newest is None or not_modified(if_none_match, newest.etag) else newest

    # What operators watch (the number of contributions) wakes no long poll, so they also look at intervals.
    interval = services.settings.tuning.recheck_seconds if isinstance(principal, Operator) else None
    found = await services.notifier.follow(
        task, "round", wait, changed, interval, asked_by=client_id_of(principal), scope=http.scope
    )
    if found is not None:
        begins_in = found.begins_in()
        headers = {"ETag": found.etag} | ({"Retry-After": str(begins_in)} if begins_in else {})
        return Response(found.view().model_dump_json(), media_type="application/json", headers=headers)
    if NOT_HELD in http.scope and (cached_round := services.task_cache.cached_round(task)) is not None:
        http.scope[NOT_HELD] = cached_round.seconds_to_rest(services.settings.arrival_rate)
    if newest is None:
        unchanged = not_modified(if_none_match, _NO_ROUND)
        return Response(status_code=304 if unchanged else 204, headers={"ETag": _NO_ROUND})
    return Response(status_code=304, headers={"ETag": newest.etag})


async def _newest_round(services: Services, principal: Principal, task_id: str) -> _RoundAnswer | None:
    """Return the newest round as the principal sees it, from memory where that is reliable; None before the first."""
    if isinstance(principal, Enrolled):
        cached_round = await services.task_cache.current_round(member_of(principal, task_id).task_id)
        if cached_round is not None and not cached_round.has_round:
            return None
        if cached_round is not None:
            rate, client_id = services.settings.arrival_rate, principal.client_id
            status = cached_round.status(client_id)
            if status.is_awaited and not services.is_only_server:
                status = await services.lookups.run(lambda: _looked_up(services.database, cached_round, client_id))
            return _RoundAnswer(
                lambda: cached_round.view(status, services.clock.now()),
                cached_round.etag(status),
                lambda: cached_round.seconds_to_window(client_id, status, rate, services.clock.now()),
            )
    return await run_in_threadpool(_stored_round, services, principal, task_id)


def _looked_up(database: Database, cached_round: CachedRound, client_id: str) -> ClientRoundStatus:
    """Return the status of a client, after a look whether another server has stored what the round awaits from it."""
    _, round_, _ = cached_round.stages()
    awaited = awaited_message(round_)
    if awaited is not None and database.rows(of_one(awaited), {"round": round_.id, "client": client_id}):
        cached_round.add_delivery(Delivery(round_.task_id, round_.id, awaited, client_id))
    return cached_round.status(client_id)


def _stored_round(services: Services, principal: Principal, task_id: str) -> _RoundAnswer | None:
    with services.database.read() as session:
        task = task_of(session, principal, task_id)
        newest = last_round(session, task_id)
        if newest is None:
            return None
        now = services.clock.now()
        view = round_view(session, task, newest, principal, now)
    begins_in = 0
    if isinstance(principal, Enrolled) and view.expected and not view.delivered:
        begins_in = seconds_to_window(task, newest, principal.client_id, services.settings.arrival_rate, now)
    return _RoundAnswer(lambda: view, round_etag(task, view), lambda: begins_in)


@router.get("", summary="List rounds", responses=guarded())
def list_all(
    services: ServicesOf,
    principal: PrincipalOf,
    task: TaskId,
    after: Annotated[int, Query(description="Return only rounds with a larger number.", ge=0, le=2**31 - 1)] = 0,
    limit: Annotated[int, Query(description="Largest number of rounds in the page.", ge=1, le=1000)] = 100,
    state: Annotated[RoundState | None, Query(description="Return only rounds in this state.")] = None,
) -> RoundPage:
    """Return rounds in order, without the fields about the asking client; clients replay missed rounds from it."""
    with services.database.read() as session:
        task_of(session, principal, task)
        rows = list_rounds(session, task, after, limit + 1, state)
        now = services.clock.now()
        return RoundPage(rounds=compact_rounds(session, rows[:limit], now), more=len(rows) > limit)


@router.get("/{number}", summary="Show a round", responses=guarded())
def show(services: ServicesOf, principal: PrincipalOf, task: TaskId, number: RoundNumber) -> RoundView:
    """Return one round, with the fields about the asking client."""
    with services.database.read() as session:
        row = task_of(session, principal, task)
        return round_view(session, row, round_of(session, task, number), principal, services.clock.now())


@router.get("/{number}/cohort", summary="Show a cohort", dependencies=[ReaderOnly], responses=guarded())
def cohort(services: ServicesOf, principal: PrincipalOf, task: TaskId, number: RoundNumber) -> CohortView:
    """Return the ids of the clients in the round's cohort, for operators. Ids are pseudonyms; members see counts only.

    Whoever sees sums and cohorts could solve for the parts of single clients that do not change.
    """
    with services.database.read() as session:
        task_of(session, principal, task)
        row = round_of(session, task, number)
        return CohortView(round=row.number, clients=cohort_clients(session, row.id))


@router.post(
    "/{number}/refusals",
    summary="Report that a client leaves a round",
    responses=guarded("not-in-cohort"),
)
def refuse(
    services: ServicesOf, client: MemberOf, task: TaskId, number: RoundNumber, notice: RefusalNotice
) -> RoundView:
    """Store, log and count that the calling client leaves the round because of what the server sent. Idempotent.

    The client counts as a dropout: the round no longer waits for it. 403 for clients outside the cohort.
    """

    def write(session: Session) -> tuple[RoundView, bool]:
        now = services.clock.now()
        task_row, row = task_of(session, client, task), round_of(session, task, number)
        if not takes_part(session, row.id, "asked", client.client_id):
            raise Problem("not-in-cohort", "this client is not in the cohort of this round")
        lock_task(session, task)  # `announce` changes it; and the client may refuse twice at the same time
        is_new = add_refusal(session, row.id, client.client_id, notice.reason)
        if is_new:
            announce(session, task, "round")
        return round_view(session, task_row, row, client, now), is_new

    view, is_new = services.database.transact(write)
    if is_new:
        services.metrics.refusals.labels(notice.reason).inc()
        _LOG.warning(
            "client refused the round",
            extra=fields(task=task, round=number, client=client.client_id, reason=notice.reason),
        )
    return view


@router.post(
    "/{number}/extend",
    summary="Extend a stage",
    responses=guarded("conflict"),
)
def extend(
    services: ServicesOf,
    principal: PrincipalOf,
    actor: ActorOf,
    task: TaskId,
    number: RoundNumber,
    request: Extension,
) -> RoundView:
    """Move the deadline of the round's current stage by `seconds`; `seconds_left` counts down to the new deadline.

    409 if the round no longer waits for clients; 422 if more than a week would be left.
    """

    def write(session: Session) -> RoundView:
        task_row, round_row = extend_round(session, task, number, request.seconds, actor)
        return round_view(session, task_row, round_row, principal, actor.at)

    return services.database.transact(write)


@router.post("/{number}/abort", summary="Abort a round", responses=guarded("conflict"))
def abort(services: ServicesOf, principal: PrincipalOf, actor: ActorOf, task: TaskId, number: RoundNumber) -> RoundView:
    """Abort an active round: it fails, its contributions are deleted, and the task continues with the next round.

    An aborted round does not count as one of the consecutive failures that end a task. Idempotent. 409 if the round has
    ended for another reason.
    """

    def write(session: Session) -> RoundView:
        task_row, round_row = abort_round(session, task, number, actor)
        return round_view(session, task_row, round_row, principal, actor.at)

    return services.database.transact(write)


@router.get(
    "/{number}/aggregate",
    summary="Fetch an aggregate",
    **binary_response("The aggregate in the mechanism's format. It never changes."),
)
def aggregate(
    services: ServicesOf, principal: PrincipalOf, task: TaskId, number: RoundNumber, answer: AnswerOf
) -> Response:
    """Return the sum of a completed round; 404 before its release, and if the round failed."""
    with services.database.read() as session:
        task_of(session, principal, task)
        row = round_of(session, task, number)
    missing = "the round has released no aggregate"
    if row.aggregate_digest is not None and row.aggregate_key is None:
        missing = "the aggregate is no longer kept: start from the newest snapshot"
    return answer.blob(row.aggregate_key, row.aggregate_digest, row.aggregate_bytes, missing=missing)


@router.get("/{number}/receipt", summary="Fetch what a receipt says of a round", responses=guarded("conflict"))
def receipt(services: ServicesOf, client: MemberOf, task: TaskId, number: RoundNumber) -> RoundReceipt:
    """Return the signed end of a round, and the caller's place among its survivors, or between which two it is missing.

    409 while the round goes on; 404 for a client outside its cohort, and once the server no longer keeps who was in it.
    """
    with services.database.read() as session:
        row = task_of(session, client, task)
        return round_receipt(session, row, round_of(session, task, number), client.client_id)


_ATTESTED = (
    *(ClientRow.id, ClientRow.identity_key, ClientRow.mailbox_key, ClientRow.certificate),
    ContributionRow.attestation,
)


@router.get("/{number}/attestations", name="list_all", summary="List attestations", responses=guarded())
def attestations(
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

    They state which aggregates each client absorbed before the round, and in masked and one-shot tasks which model it
    computed from them, so that members can compare them. 404 until the round is complete, and where contributions state
    nothing; those of the newest two completed rounds are kept.
    """
    with services.database.read() as session:
        task_of(session, principal, task)
        round_ = find_round(session, task, number)
        if round_ is None or round_.state != "complete" or round_.aggregate_chain is None:
            raise Problem("not-found", "there are no attestations of this round")
        query = select(*_ATTESTED).join(ContributionRow, ContributionRow.client_id == ClientRow.id)
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
