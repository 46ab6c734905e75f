"""Checks that enough members hold the aggregates that this client holds, before it contributes.

The contributions to a round state the chain of the aggregates before it (`protocols.crypto.aggregate_chain`), signed
with keys that the organiser certified. So when round n is complete, a member learns from its attestations who holds the
aggregates of the rounds before n. A server that gives members different aggregates has to keep them in groups that
never see each other's attestations, and each group needs `min_clients` members.
"""

from __future__ import annotations

import hashlib
import json
import secrets
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Final, TypeVar
from urllib.parse import urlsplit

from client_sdk.agreement.terms import TaskTerms
from client_sdk.api.wire import Program, work
from client_sdk.errors import Abstained, ApiError, ClientSDKError, Equivocation, NotAttested, PolicyRefused
from client_sdk.rounds.member import LocalWork
from client_sdk.store.states import FollowedState
from protocols.codec import b64decode, b64encode
from protocols.crypto.aggregate_chain import AGGREGATE_CHAIN, AggregateChain, StatedChain, first_chain, stated_chain
from protocols.crypto.certificates import NO_CERTIFICATE
from protocols.crypto.http_signature import (
    SIGNATURE,
    SIGNATURE_INPUT,
    SignedRequest,
    format_authority,
    sign_request,
)
from protocols.errors import CertificateError, CodecError, RefusalError, SignatureError
from protocols.messages import Attestation, RefusalReason
from protocols.messages.attestations import LARGEST_ATTESTATION_PAGE
from protocols.recipes.base import ModelState, RoundSpec
from protocols.task_binding import broadcast_digest

__all__ = [
    "SAMPLE",
    "own_digest",
    "require_attested",
    "require_no_equivocation",
    "tell_refusals",
]


SAMPLE: Final = 8
"""Attestations that are checked beyond the `min_clients` that are needed, from a random place on."""


def require_no_equivocation(client: LocalWork) -> None:
    """Raise `Equivocation` if a proof is stored that the task's server gave members different aggregates."""
    proof = client.client_store.equivocation(client.terms.task_id)
    if proof is not None:
        raise Equivocation(client.terms.task_id, proof)


def require_attested(client: LocalWork, followed: FollowedState) -> Program[None]:
    """Raise unless `min_clients` members state the aggregates before the last completed round as this client does.

    followed: the state after that round. Nothing is checked where that round is the first. The client starts at a
    random place among the contributors of the round, looks at `SAMPLE` more than it needs, and goes on only while it
    lacks some. Raises `Equivocation` for a certified member that states another chain, and keeps the proof;
    `NotAttested` when too few state this one. A client whose chain is from a snapshot cannot tell whether the snapshot
    is false: it raises `NotAttested` instead, and makes its model anew from the aggregates.
    """
    chain, number, task_id = followed.chain, followed.state.round_number, client.terms.task_id
    if chain is None or chain.before == first_chain(task_id):
        return
    shared = client.follower.shared
    if shared is not None and not shared.claim_check(task_id, number):
        return  # a client that shares its model has checked it, or does so now
    needed, looked, same = client.terms.schedule.min_clients, 0, set[bytes]()
    start = after = f"c_{secrets.token_hex(10)}"
    wrapped = False
    while len(same) < needed or looked < needed + SAMPLE:
        left = needed + SAMPLE - looked
        limit = min(LARGEST_ATTESTATION_PAGE, left if left > 0 else needed)
        try:
            page = yield from client.calls.attestations(task_id, number, after, limit)
        except ApiError as error:
            raise NotAttested(f"the server returned no attestations of round {number}: {error}") from error
        shown = [one for one in page.attestations if not wrapped or one.client_id <= start]
        same |= yield from _same(client, chain, number, shown, followed)
        looked += len(shown)
        if page.more and shown and shown[-1].client_id > after:
            after = shown[-1].client_id
        elif wrapped:
            break
        else:
            after, wrapped = "", True
    if len(same) < needed:
        raise NotAttested(
            f"{len(same)} members have stated that they hold the aggregates before round {number} that this "
            f"client holds, and at least {needed} must: the server may have given members different ones"
        )


def _same(
    client: LocalWork, chain: AggregateChain, number: int, shown: Sequence[Attestation], followed: FollowedState
) -> Program[set[bytes]]:
    """Return the identity keys of the certified members among `shown` that state this client's chain."""
    stated = yield from work(lambda: [(one, _stated(client, number, one)) for one in shown])
    same = set[bytes]()
    for attestation, other in stated:
        if other == chain.before:
            same.add(b64decode(attestation.identity_key, 32))
        elif other is not None and b64decode(attestation.identity_key, 32) != client.identity.public_key:
            _accuse(client, chain, number, attestation, followed)
    return same


def _stated(client: LocalWork, number: int, one: Attestation) -> bytes | None:
    """Return the chain that a certified member stated; None if it was not one, or did not sign for this round."""
    try:
        key, mailbox = b64decode(one.identity_key, 32), b64decode(one.mailbox_key, 32)
        certificate = NO_CERTIFICATE if one.certificate is None else b64decode(one.certificate)
        stated = StatedChain(one.client_id, one.method, one.authority, one.fields, one.signature_input, one.signature)
        chain, created = stated_chain(stated, key, client.terms.task_id, number)
        client.membership_check.require_at(created, key, mailbox, certificate, ("member", "holder"))
    except (CertificateError, CodecError, SignatureError):
        return None
    return chain


def _accuse(client: LocalWork, chain: AggregateChain, number: int, other: Attestation, followed: FollowedState) -> None:
    """Keep the proof and raise `Equivocation`; where a member's snapshot may be at fault, raise `NotAttested`."""
    task_id = client.terms.task_id
    if followed.from_snapshot and client.terms.opened_by == "members":
        client.follower.replay_all()
        raise NotAttested(
            f"members hold other aggregates before round {number} than the snapshot that this client caught up with "
            "says; it goes back to the first round and downloads all aggregates"
        )
    claim = {
        "about": "Two members of one task signed that they hold different aggregates (header aggregate-chain) before "
        "the same round, so the server gave them different ones. Both sign as in RFC 9421; the path is "
        "/v1/tasks/{task_id}/rounds/{round}/contributions/{client_id}.",
        "task_id": task_id,
        "round": number,
        "statements": [_own_statement(client, chain, number).model_dump(), other.model_dump()],
    }
    proof = json.dumps(claim, indent=1).encode()
    client.client_store.keep_equivocation(task_id, proof)
    raise Equivocation(task_id, proof)


def _own_statement(client: LocalWork, chain: AggregateChain, number: int) -> Attestation:
    """Return this client's statement of its chain before round `number`, signed as if it contributed now."""
    membership, identity = client.membership, client.identity
    url = urlsplit(client.calls.url)
    authority = format_authority(url.scheme, url.hostname or "", url.port)
    path = f"/v1/tasks/{client.terms.task_id}/rounds/{number}/contributions/{membership.client_id}"
    fields = {AGGREGATE_CHAIN: chain.before.hex()}
    request = SignedRequest("PUT", authority, path, "", fields)
    signed = sign_request(identity.signing_key, membership.client_id, request, int(time.time()))
    return Attestation(
        client_id=membership.client_id,
        identity_key=b64encode(identity.public_key),
        mailbox_key=b64encode(identity.mailbox_key),
        certificate=None if membership.certificate is None else b64encode(membership.certificate),
        method="PUT",
        authority=authority,
        fields=fields,
        signature_input=signed[SIGNATURE_INPUT],
        signature=signed[SIGNATURE],
    )


# --- telling the server that this client leaves a round, with one reason of a fixed list -----------------------------

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


# --- the digest of the terms and the model that a client binds its keys and masks to, computed by the client itself ---


def own_digest(terms: TaskTerms, spec: RoundSpec, state: ModelState) -> bytes:
    """Return the digest (32 bytes) of the terms and of `state`, the model that this client trains on in the round."""
    held = terms.recipe.encode_view(state, terms.recipe.device_group_of(spec.sum_index)) if state.round_number else None
    model = None if held is None else hashlib.sha256(held).digest()
    return broadcast_digest(terms.view, spec.sum_index, model, spec.levels)
