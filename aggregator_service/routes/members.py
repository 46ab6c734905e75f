"""Members of a task: the task's public key, keyring envelopes, certificates and their revocation."""

from __future__ import annotations

import hashlib
from typing import Annotated, Final

from fastapi import Query, Request
from fastapi.responses import Response
from sqlalchemy.orm import Session
from starlette.concurrency import run_in_threadpool

from aggregator_service.access.audit_trail import Actor, record
from aggregator_service.access.principals import Enrolled, Operator, client_id_of, member_of, task_of
from aggregator_service.http.authentication import ActorOf, HolderOf, MemberOf, PrincipalOf, require_operator
from aggregator_service.observability.requests import client_address
from aggregator_service.problems import Problem
from aggregator_service.routes.common import (
    Answer,
    AnswerOf,
    ClientId,
    RawBodyOf,
    TaskId,
    Wait,
    api_router,
    binary_response,
    guarded,
    replaced,
    stored_once,
)
from aggregator_service.services import ServicesOf
from aggregator_service.storage.blobs import new_key
from aggregator_service.storage.bodies import is_small, new_small_key, small_bodies
from aggregator_service.storage.data_directory import body_path
from aggregator_service.storage.database import Database
from aggregator_service.storage.schema import ClientRow
from aggregator_service.tasks.erasure import erase_member
from aggregator_service.tasks.exports import export_member
from aggregator_service.tasks.joining import renew_certificate, store_revocations
from aggregator_service.tasks.membership import (
    check_recipient,
    end_membership,
    mailbox_topic,
    member_page,
    publish_key,
    revoke_member,
    store_envelope,
)
from aggregator_service.uploads.receive import store_file, stream_body
from protocols.crypto.certificates import CERTIFICATE_BYTES, LONGEST_REVOCATIONS
from protocols.messages import Erasure, Member, MemberExport, MemberPage

_PUBLIC_KEY_LIMIT: Final = 4096
_NO_ENVELOPE: Final = "the key holder has stored no envelope for this client yet"

router = api_router("/v1/tasks/{task}", tag="members")
certificates_router = api_router("/v1/tasks/{task}", tag="certificates")


@router.get("/members", summary="List members", responses=guarded())
async def list_members(
    services: ServicesOf,
    principal: PrincipalOf,
    http: Request,
    task: TaskId,
    after: Annotated[
        str, Query(description="`next` of the last page.", pattern=r"^[0-9]{1,9}$", examples=["100"])
    ] = "0",
    limit: Annotated[int, Query(description="Largest number of members in the page.", ge=1, le=1000)] = 100,
    unkeyed: Annotated[bool, Query(description="Return only members without a keyring envelope.")] = False,
    wait: Wait = 0.0,
) -> MemberPage:
    """Return members in order of enrolment, to the key holder and operators.

    With `unkeyed` and `wait`, wait until there is a member without an envelope.
    """

    def find() -> MemberPage | None:
        with services.database.read() as session:
            task_of(session, principal, task)
            if isinstance(principal, Enrolled) and principal.role != "holder":
                raise Problem("forbidden", "only the key holder and operators may list the members")
            page = member_page(session, task, int(after), limit, unkeyed)
            return page if page.members or not unkeyed else None

    found = await services.notifier.poll(
        task, "members", wait, find, asked_by=client_id_of(principal), scope=http.scope
    )
    return found or MemberPage(members=[])


@router.delete("/members/me", summary="Leave a task", responses=guarded())
def leave(
    services: ServicesOf,
    member: MemberOf,
    task: TaskId,
    erase: Annotated[bool, Query(description="Also erase what the server stores about the member.")] = False,
) -> Erasure:
    """End one's own membership for good: the token is void, and the identity key cannot enrol again.

    With `erase`, no row names the member afterwards; if it is in an active round, as soon as that is over. Sums that
    include its contributions stay as they are.
    """
    actor = Actor("(member)", "api", "", services.clock.now())

    def write(session: Session) -> Erasure:
        end_membership(session, task, member.client_id, actor, "membership left")
        if erase:
            return erase_member(session, task, member.client_id, actor)
        return Erasure(erased=False, waits_for_round=None)

    return services.database.transact(write)


@router.post("/members/{client}/erasure", summary="Erase a member", responses=guarded())
def erase(services: ServicesOf, actor: ActorOf, task: TaskId, client: ClientId) -> Erasure:
    """Revoke a membership and erase the member: no row names it afterwards; if it is in an active round, then later.

    Sums that include its contributions stay as they are, and so do the numbers of clients of its rounds.
    """
    return services.database.transact(lambda session: erase_member(session, task, client, actor))


@router.get("/members/{client}/data", summary="Export what is stored about a member", responses=guarded())
def export(services: ServicesOf, principal: PrincipalOf, http: Request, task: TaskId, client: ClientId) -> MemberExport:
    """Return everything that the server stores about a member, to the member itself and to operators."""
    if isinstance(principal, Operator):
        require_operator(principal, "operator")
        actor = Actor(principal.name, "api", client_address(http.scope), services.clock.now())
    else:
        member_of(principal, task, client)
        actor = None

    def read(session: Session) -> MemberExport:
        row = task_of(session, principal, task)
        found = export_member(session, row, client)
        if actor is not None:
            record(session, actor, "data of a member exported", task=row, target=client)
        return found

    return services.database.transact(read)


@router.delete("/members/{client}", summary="Revoke a membership", responses=guarded())
def revoke(services: ServicesOf, actor: ActorOf, task: TaskId, client: ClientId) -> Member:
    """Revoke a membership for good: the token is void, and the identity key cannot enrol again. Idempotent.

    Sums that include the client's contributions stay as they are, and the client still has the keys that it received.
    """
    return services.database.transact(lambda session: revoke_member(session, task, client, actor))


@router.put(
    "/public-key",
    summary="Publish the public key",
    **stored_once(
        "The public key in the mechanism's format, at most 4 KiB.", "Published.", "The same key was published before."
    ),
)
async def put_public_key(_holder: HolderOf, raw: RawBodyOf, task: TaskId) -> Response:
    """The key holder publishes the public key under which the server sums (paillier), once, before any envelope."""
    return await raw.store(lambda session, public_key: publish_key(session, task, public_key), most=_PUBLIC_KEY_LIMIT)


@router.put(
    "/keyring/{client}",
    summary="Leave a keyring envelope",
    **stored_once(
        "The envelope, sealed to the member's mailbox key; at most 256 KiB.",
        "Stored.",
        "The same envelope was stored before.",
    ),
)
async def put_envelope(
    services: ServicesOf, _holder: HolderOf, request: Request, raw: RawBodyOf, task: TaskId, client: ClientId
) -> Response:
    """The key holder stores the keys for a member in a sealed envelope, which the server cannot open."""
    length, digest = raw.announced(most=services.settings.tuning.envelope_limit)
    if length <= services.settings.tuning.inline_bytes:
        envelope = await raw.receive(exact=length)
        key = new_small_key(task)
        stored = await services.member_writes.run(
            lambda session: store_envelope(session, task, client, key, digest, length, envelope)
        )
        return Response(status_code=201 if stored else 200)
    await run_in_threadpool(_check_recipient, services.database, task, client)  # before a long body is received
    path, blob = body_path(services.settings.upload_dir, "envelope"), new_key("envelopes", task, client)

    def insert(session: Session) -> bool:
        return store_envelope(session, task, client, blob, digest, length)

    def is_named(session: Session) -> bool:
        member = session.get(ClientRow, client)
        return member is not None and member.envelope_key == blob

    async with stream_body(services.settings, request, path, length, digest) as body:
        await run_in_threadpool(body.persist)
        stored = await run_in_threadpool(store_file, services.database, services.blobs, path, blob, insert, is_named)
    return Response(status_code=201 if stored else 200)


def _check_recipient(database: Database, task_id: str, client_id: str) -> None:
    with database.read() as session:
        check_recipient(session, task_id, client_id)


@router.get("/keyring", summary="Fetch one's keyring envelope", **binary_response("The envelope."))
async def get_envelope(
    services: ServicesOf, member: MemberOf, http: Request, task: TaskId, answer: AnswerOf, wait: Wait = 0.0
) -> Response:
    """Return the envelope that the key holder stored for the asking client; 404 while there is none."""

    def find() -> ClientRow | None:
        with services.database.read() as session:
            row = session.get_one(ClientRow, member.client_id)
            return row if row.envelope_key is not None else None

    row = await services.notifier.poll(
        task, mailbox_topic(member.client_id), wait, find, asked_by=member.client_id, scope=http.scope
    )
    if row is None:
        raise Problem("not-found", _NO_ENVELOPE)
    return await run_in_threadpool(_envelope, services.database, row, answer)


def _envelope(database: Database, row: ClientRow, answer: Answer) -> Response:
    key, digest = row.envelope_key, row.envelope_digest
    if key is None or digest is None or not is_small(key):
        return answer.blob(key, digest, row.envelope_bytes, missing=_NO_ENVELOPE)
    with database.read() as session:
        found = small_bodies(session, [key])
    if key not in found:  # the membership was revoked meanwhile
        raise Problem("not-found", _NO_ENVELOPE)
    return answer.bytes(found[key], digest)


@certificates_router.put(
    "/members/me/certificate",
    summary="Renew one's certificate",
    **replaced("The new membership certificate, 81 bytes."),
)
async def renew(services: ServicesOf, member: MemberOf, raw: RawBodyOf, task: TaskId) -> Response:
    """Replace the calling client's membership certificate by a newer one from the organiser."""

    def write(session: Session, body: bytes) -> bool:
        renew_certificate(session, task, member.client_id, body, services.clock.now())
        return False

    return await raw.store(write, exact=CERTIFICATE_BYTES)


@certificates_router.put(
    "/revocations",
    summary="Publish the organiser's revocation list",
    **replaced("The revocation list, signed by the organiser."),
)
async def publish(principal: PrincipalOf, actor: ActorOf, raw: RawBodyOf, task: TaskId) -> Response:
    """Store the organiser's revocation list and revoke the members on it."""

    def write(session: Session, body: bytes) -> bool:
        store_revocations(session, task_of(session, principal, task), body, actor)
        return False

    return await raw.store(write, most=LONGEST_REVOCATIONS)


@certificates_router.get(
    "/revocations",
    summary="Download the revocation list",
    **binary_response("The revocation list, signed by the organiser."),
)
def show(services: ServicesOf, principal: PrincipalOf, task: TaskId, answer: AnswerOf) -> Response:
    """Return the organiser's newest revocation list; 404 if none is stored."""
    with services.database.read() as session:
        body = task_of(session, principal, task).revocations
    if body is None:
        raise Problem("not-found", "no revocation list is stored for this task")
    return answer.bytes(body, hashlib.sha256(body).hexdigest())
