"""The check that enough members hold the aggregates that this client holds, before it contributes.

The contributions to a round state the chain of the aggregates before it (`protocols.crypto.aggregate_chain`), signed
with keys that the organiser certified. So when round n is complete, a member learns from its attestations who holds
the aggregates of the rounds before n. A server that gives members different aggregates has to keep them in groups
that never see each other's attestations, and each group needs `min_clients` members.

In masked and one-shot tasks the chain covers the model too, which members compute themselves, and all clients of a
round bind their masks to one model. So only a client that takes more than the last sum on the server's word asks: one
that downloaded a snapshot, or the sums of several rounds. The sum of the last round is the server's word for everybody.
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Final, NoReturn
from urllib.parse import urlsplit

from client_sdk.api.wire import Program, work
from client_sdk.errors import ApiError, Equivocation, NotAttested
from client_sdk.model.follow import ModelFollower
from client_sdk.rounds.member import Member
from client_sdk.store.states import FollowedState
from protocols.codec import b64decode, b64encode
from protocols.crypto.aggregate_chain import AGGREGATE_CHAIN, StatedChain, first_chain, stated_chain
from protocols.crypto.certificates import NO_CERTIFICATE
from protocols.crypto.http_signature import (
    SIGNATURE,
    SIGNATURE_INPUT,
    SignedRequest,
    format_authority,
    sign_request,
)
from protocols.errors import CertificateError, CodecError, SignatureError
from protocols.messages import Attestation
from protocols.messages.rounds import LARGEST_ATTESTATION_PAGE

_SAMPLE: Final = 8
"""Attestations that are checked beyond the `min_clients` that are needed, from a random place on."""


def require_attested(member: Member, follower: ModelFollower, followed: FollowedState) -> Program[None]:
    """Raise unless `min_clients` members state the aggregates before the last completed round as this client does.

    follower: the client's copy of the model. followed: the state after that round. Nothing is checked where that round
    is the first. The client starts at a random place among the contributors of the round, looks at `_SAMPLE` more than
    it needs, and goes on only while it lacks some. Raises `Equivocation` for a certified member that states another
    chain, and keeps the proof; `NotAttested` when too few state this one. A client whose chain is from a snapshot
    cannot tell whether the snapshot is false: it raises `NotAttested` instead, and makes its model anew from the
    aggregates. In tasks whose sums anyone can open a client has not computed what it asks about (`unattested`): it
    raises `NotAttested` in every case, and forgets its model.
    """
    chain, number, task_id = followed.chain, followed.state.round_number, member.terms.task_id
    if chain is None or chain.before == first_chain(task_id):
        return
    needed, looked, same = member.terms.schedule.min_clients, 0, set[bytes]()
    start = after = f"c_{secrets.token_hex(10)}"
    wrapped = False
    while len(same) < needed or looked < needed + _SAMPLE:
        left = needed + _SAMPLE - looked
        limit = min(LARGEST_ATTESTATION_PAGE, left if left > 0 else needed)
        try:
            page = yield from member.calls.attestations(task_id, number, after, limit)
        except ApiError as error:
            raise NotAttested(f"the server returned no attestations of round {number}: {error}") from error
        shown = [one for one in page.attestations if not wrapped or one.client_id <= start]
        same |= yield from _same(member, follower, followed, chain.before, shown)
        looked += len(shown)
        if page.more and shown and shown[-1].client_id > after:
            after = shown[-1].client_id
        elif wrapped:
            break
        else:
            after, wrapped = "", True
    if len(same) < needed:
        if member.terms.checks_states:
            follower.start_again()
        raise NotAttested(
            f"{len(same)} members have stated that they hold the aggregates before round {number} that this "
            f"client holds, and at least {needed} must: the server may have given members different ones"
        )
    if followed.unattested:
        follower.keep(replace(followed, unattested=False))


def _same(
    member: Member, follower: ModelFollower, followed: FollowedState, before: bytes, shown: Sequence[Attestation]
) -> Program[set[bytes]]:
    """Return the identity keys of the certified members among `shown` that state this client's chain, `before`."""
    number = followed.state.round_number
    stated = yield from work(lambda: [(one, _stated(member, number, one)) for one in shown])
    same = set[bytes]()
    for attestation, other in stated:
        if other == before:
            same.add(b64decode(attestation.identity_key, 32))
        elif other is not None and b64decode(attestation.identity_key, 32) != member.identity.public_key:
            _accuse(member, follower, followed, before, attestation)
    return same


def _stated(member: Member, number: int, one: Attestation) -> bytes | None:
    """Return the chain that a certified member stated; None if it was not one, or did not sign for this round."""
    try:
        key, mailbox = b64decode(one.identity_key, 32), b64decode(one.mailbox_key, 32)
        certificate = NO_CERTIFICATE if one.certificate is None else b64decode(one.certificate)
        stated = StatedChain(one.client_id, one.method, one.authority, one.fields, one.signature_input, one.signature)
        chain, created = stated_chain(stated, key, member.terms.task_id, number)
        member.check.require(key, mailbox, certificate, ("member", "holder"), created)
    except (CertificateError, CodecError, SignatureError):
        return None
    return chain


def _accuse(
    member: Member, follower: ModelFollower, followed: FollowedState, before: bytes, other: Attestation
) -> NoReturn:
    """Keep the proof and raise `Equivocation`; where what the server said may be at fault, raise `NotAttested`."""
    task_id, number = member.terms.task_id, followed.state.round_number
    if member.terms.checks_states:
        follower.start_again()
        raise NotAttested(
            f"members have stated another model, or other aggregates, before round {number} than the server gave this "
            "client; it forgets its model and downloads it again"
        )
    if followed.from_snapshot and member.terms.opened_by == "members":
        follower.replay_all()
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
        "statements": [_own_statement(member, before, number).model_dump(), other.model_dump()],
    }
    proof = json.dumps(claim, indent=1).encode()
    member.store.keep_equivocation(task_id, proof)
    raise Equivocation(task_id, proof)


def _own_statement(member: Member, before: bytes, number: int) -> Attestation:
    """Return this client's statement of its chain `before` round `number`, signed as if it contributed now."""
    membership, identity = member.membership, member.identity
    url = urlsplit(member.calls.url)
    authority = format_authority(url.scheme, url.hostname or "", url.port)
    path = f"/v1/tasks/{member.terms.task_id}/rounds/{number}/contributions/{membership.client_id}"
    fields = {AGGREGATE_CHAIN: before.hex()}
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
