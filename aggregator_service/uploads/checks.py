"""The checks of an upload: of its request before a byte of the body is read (`check_request`), and of the body.

The rows that an upload inserts are checked once more as they are inserted (`uploads.new_contributions`).
"""

from __future__ import annotations

import hashlib
import logging
from dataclasses import dataclass, field, replace
from typing import Final

from fastapi import Request
from pydantic_core import to_json
from sqlalchemy import bindparam, select
from starlette.concurrency import run_in_threadpool

from aggregator_service.access.principals import Enrolled, Principal, member_of, round_of, task_of
from aggregator_service.http.authentication import signed_request
from aggregator_service.logs import fields
from aggregator_service.polling.cache import TaskCache
from aggregator_service.problems import Problem
from aggregator_service.rounds.oneshot import committee_of
from aggregator_service.services import Services
from aggregator_service.storage.blobs import forget_pages
from aggregator_service.storage.database import Database
from aggregator_service.storage.round_rows import find_contribution
from aggregator_service.storage.schema import ClientRow, ContributionRow, RoundRow, TaskRow
from aggregator_service.storage.stage_rows import prerequisite, takes_part, upload_progress
from aggregator_service.tasks.joining import Organiser, is_certified
from aggregator_service.tasks.plans import TaskPlan, plan_round, round_spec
from protocols.codec import exact
from protocols.crypto.aggregate_chain import AGGREGATE_CHAIN
from protocols.crypto.certificates import NO_CERTIFICATE
from protocols.crypto.http_signature import SIGNATURE, SIGNATURE_INPUT, SIGNED_FIELDS
from protocols.layout import Route
from protocols.sums.base import ChecksByParts
from protocols.sums.oneshot.server import check_upload

_PART: Final = 4 * 1024 * 1024
"""Bytes that are checked or hashed at a time: a body that is mapped from its file takes no more memory."""


@dataclass(frozen=True)
class Admission:
    """A client that may contribute to a round."""

    round: RoundRow
    plan: TaskPlan
    route: Route
    length: int
    """Exact bytes of its upload."""
    client: Enrolled
    stored: ContributionRow | None
    """The contribution that is stored already, if any."""
    status: tuple[int, int] = (0, 0)
    """Bytes stored of an upload in chunks, and the number of chunks."""
    attestation: str | None = None
    """What the client signed, see `ContributionRow`."""
    receipt_seed: bytes | None = field(default=None, repr=False)
    """Secret: of the task's receipt key; None without one."""

    def check(self, body: memoryview) -> None:
        """Raise `ContributionError` when the bytes must not enter the sum; body: the whole upload."""
        mechanism, plan, contribution = self.plan.mechanism, self.plan.sum_plan, body[self.plan.sum_plan.ticket_bytes :]
        if len(contribution) <= _PART or plan.layout.chosen or not isinstance(mechanism, ChecksByParts):
            mechanism.check(plan, self.route, contribution)
            return
        exact(contribution, plan.contribution_bytes(self.route), "a contribution along this route")
        for start in range(0, len(contribution), _PART):
            mechanism.check_part(plan, self.route, start, contribution[start : start + _PART])
            forget_pages(body)

    def refuse_late(self, now: float) -> None:
        """Raise `Problem` round-closed (409) unless the round takes contributions at `now`."""
        if self.round.state != "collecting" or now >= self.round.deadline:
            raise Problem("round-closed", f"the round is {self.round.state}: it takes no contributions now")


async def check_request(
    services: Services,
    principal: Principal,
    request: Request,
    task_id: str,
    number: int,
    client_id: str,
    *,
    resumable: bool = False,
) -> Admission:
    """Return what a client may upload now, or what it has uploaded: the first of the checks of an upload.

    1. *Whose.* It is the client's own contribution, to a round that asked it; in a masked round it has shared its keys
       (403, 404).
    2. *After what.* Aggregate-Chain states the aggregates that this server released before the round (400, 409).
    3. *When.* The round collects, and its deadline is not over (409 round-closed), unless the contribution is stored
       already: then its receipt is the answer.

    The route then compares what the headers announce (media type, digest, length), and the rest is `check_body`.

    Raises these as `Problem`. resumable: also read the progress of an upload in chunks, which the task cache lacks.
    """
    if resumable:
        found = await run_in_threadpool(admit, services.database, principal, task_id, number, client_id, resumable=True)
    else:
        found = await _admit_cached(services.database, services.task_cache, principal, task_id, number, client_id)
    admission = replace(found, attestation=_attestation(found, request))
    if admission.stored is None:
        services.outages.judge(admission.round.deadline)
        admission.refuse_late(services.clock.now())
    return admission


def check_body(database: Database, admission: Admission, body: memoryview, now: float) -> bytes | None:
    """Return what the client of a one-shot round signed, for the committee; None in other rounds.

    The last checks of an upload, of all of its bytes, whose digest is right:

    1. *Values.* The length is the plan's, and no value exceeds its bounds, as far as the mechanism shows them.
    2. *Ticket*, in one-shot rounds: signed for this round, model and committee, by a client whose certificate is valid.

    Raises `ContributionError` when the bytes must not enter the sum, and `Problem` as `_check_ticket` does.
    """
    admission.check(body)
    return _check_ticket(database, admission, body, now)


def admit(
    database: Database, principal: Principal, task_id: str, number: int, client_id: str, *, resumable: bool = False
) -> Admission:
    """Admit a client to round `number`, whatever state the round is in.

    resumable: also read the progress of an upload in chunks.

    Raises `Problem`: 403 for another client, 403 not-in-cohort for a client outside the cohort or, in a masked round,
    without shared keys, 404 for an unknown task or round.
    """
    client = member_of(principal, task_id, client_id)
    with database.read() as session:
        task = task_of(session, principal, task_id)
        round_ = round_of(session, task_id, number)
        if not takes_part(session, round_.id, "asked", client.client_id):
            raise Problem("not-in-cohort", "this client is not in the cohort of this round")
        before = prerequisite(round_) if round_.state == "collecting" else None
        if before is not None and not takes_part(session, round_.id, before, client.client_id):
            raise Problem("not-in-cohort", "this client shared no keys in this round, so it has left the round")
        plan = plan_round(task, round_)
        route = plan.recipe.route(round_spec(round_), client.client_id)
        return Admission(
            round=round_,
            client=client,
            plan=plan,
            route=route,
            length=plan.upload_bytes(route),
            stored=find_contribution(session, round_.id, client.client_id),
            status=upload_progress(session, round_.id, client.client_id) if resumable else (0, 0),
            receipt_seed=task.receipt_seed,
        )


async def _admit_cached(
    database: Database, task_cache: TaskCache, principal: Principal, task_id: str, number: int, client_id: str
) -> Admission:
    """Admit a client as `admit` does, from the task cache when that shows that the round waits for its contribution.

    The cache may be out of date: the insert checks the round again.
    """
    client = member_of(principal, task_id, client_id)
    cached_round = await task_cache.current_round(task_id)
    if cached_round is None or not cached_round.awaits(number, "contribute", client_id):
        return await run_in_threadpool(admit, database, principal, task_id, number, client_id)
    of, seed = cached_round.contribution_of(client_id), cached_round.stages()[0].receipt_seed
    return Admission(*of, client, stored=None, receipt_seed=seed)


_LOG: Final = logging.getLogger(__name__)
_CERTIFIED: Final = (
    select(ClientRow.identity_key, ClientRow.mailbox_key, ClientRow.certificate, ClientRow.role)
    .add_columns(TaskRow.organiser_key, TaskRow.organiser_scope, TaskRow.revocations)
    .join(TaskRow, TaskRow.id == ClientRow.task_id)
    .where(ClientRow.id == bindparam("client"))
)
"""A client, and what its certificate is checked with."""


def _attestation(admission: Admission, request: Request) -> str | None:
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
                "contributions to this round have no header Aggregate-Chain: the server sees each contribution of the "
                "task, or its members train on views",
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


def _check_ticket(database: Database, admission: Admission, body: memoryview, now: float) -> bytes | None:
    """Return the encoded statement of a one-shot upload, for the committee; None in other rounds.

    Raises `ContributionError` unless the client signed the upload for this round, model and committee, and `Problem`:
    forbidden (403) for an expired certificate, round-closed (409) when the round is over.
    """
    size = admission.plan.sum_plan.ticket_bytes
    if not size:
        return None
    task_id, client_id = admission.round.task_id, admission.client.client_id
    try:
        committee = committee_of(database, task_id, admission.round.number)
    except LookupError:
        raise Problem("round-closed", "the round is over and takes no more contributions") from None
    [(identity_key, mailbox_key, certificate, role, *organiser)] = database.rows(_CERTIFIED, {"client": client_id})
    organiser_key, scope, revocations = organiser
    own = identity_key, mailbox_key, certificate or NO_CERTIFICATE
    if not is_certified(Organiser(organiser_key, scope, revocations), *own, role, now):
        raise Problem("forbidden", "the membership certificate has expired or was revoked: renew it first")
    return check_upload(committee, client_id, *own, body[:size], _digest(body, size)).encode()


def _digest(body: memoryview, start: int) -> bytes:
    """Return the SHA-256 of a body from `start` on."""
    state = hashlib.sha256()
    for first in range(start, len(body), _PART):
        state.update(body[first : first + _PART])
        forget_pages(body)
    return state.digest()
