"""One client in one unmasked round: catch up, train, seal, upload.

In encrypted tasks it also checks that enough members hold the same aggregates, and computes a part of its next seal
while it waits for a round, where the mechanism has such a part.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import sys
import threading
import time
from collections.abc import Callable, Sequence
from queue import Empty, Queue
from typing import Any, Final, NoReturn, Self
from urllib.parse import urlsplit

import numpy as np

from client_sdk.api.wire import Program, work
from client_sdk.errors import AggregateMismatch, ApiError, Equivocation, NotAttested, RoundLost
from client_sdk.history import History
from client_sdk.model.follow import CaughtUp, ModelFollower
from client_sdk.rounds.events import Progress, RoundReport, SnapshotPublished
from client_sdk.rounds.ledger import deliver
from client_sdk.rounds.member import Member
from client_sdk.rounds.part import OwnRound, Part
from client_sdk.store.states import FollowedState
from client_sdk.training.base import LocalResult
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
from protocols.messages import Attestation, RoundView
from protocols.messages.rounds import LARGEST_ATTESTATION_PAGE
from protocols.recipes.base import RoundSpec
from protocols.sums.base import WorksAhead, one_message
from protocols.sums.participation import with_participation

_SNAPSHOT_VOLUNTEERS = 3.0
"""Average number of cohort members that check whether a snapshot is due: of several uploads only one is kept."""


def take_unmasked_part(part: Part, view: RoundView, history: History, progress: Progress) -> Program[RoundReport]:
    """Catch up, train, seal and upload one contribution to the round `view`; return the report.

    Raises `PolicyRefused`, `Abstained`, and the errors of catching up, of `require_attested`, of `Part.train` and of
    the upload.
    """
    member, own = part.member, OwnRound(part, view, history, progress)
    member.policy.check_round(view)
    member.store.require_no_equivocation(member.task_id)
    spec = own.spec
    with own.timed("catch_up"):
        yield from part.ready(progress)
        if member.terms.chained and part.follower.known >= view.number:
            raise RoundLost(
                f"this device holds the sums up to round {part.follower.known}, and the server would release others "
                "for the same rounds: an encrypted task cannot go on after its server was restored from a backup; its "
                "operator closes it and creates another"
            )
        caught_up = yield from own.catch_up()
        if part.checks_aggregates(caught_up):
            yield from own.metered(require_attested(member, part.follower, caught_up.followed))
        part.require_data(spec, caught_up.state, history)
    local = yield from own.train(caught_up)
    with own.timed("seal"):
        body = yield from work(lambda: _seal(part, spec, local))
    chain = caught_up.followed.chain
    statements = {} if chain is None else {AGGREGATE_CHAIN: chain.digest.hex()}
    try:
        with own.timed("upload"):
            yield from own.metered(deliver(member, spec, body, statements))
    except AggregateMismatch:
        if caught_up.followed.from_snapshot and member.terms.opened_by == "members":
            part.follower.replay_all()  # the snapshot may be false
        raise
    yield from own.settle(local)
    yield from own.metered(_publish_snapshot_when_due(own, caught_up))
    return own.report(caught_up, local, len(body))


def _seal(part: Part, spec: RoundSpec, local: LocalResult) -> bytes:
    """Return the sealed contribution; that of a training that failed is not counted among those that carry data."""
    terms = part.member.terms
    plan = terms.sum_plan_at(spec.sum_index)
    blocks = with_participation(plan, local.blocks, local.failure is None)
    mechanism, route, keyring = one_message(terms.mechanism), part.route(spec), part.follower.keyring
    if part.take_ahead is not None and isinstance(mechanism, WorksAhead):
        return mechanism.seal_ahead(plan, route, blocks, keyring, part.take_ahead)
    return mechanism.seal(plan, route, blocks, keyring)


def _publish_snapshot_when_due(own: OwnRound, caught_up: CaughtUp) -> Program[None]:
    member, follower = own.part.member, own.part.follower
    if np.random.default_rng().random() * own.view.cohort > _SNAPSHOT_VOLUNTEERS:
        return
    published = yield from follower.publish_when_due(caught_up.followed, member.policy.snapshot_every)
    if published:
        own.progress(SnapshotPublished(caught_up.state.round_number))


# --- the check that enough members hold the aggregates that this client holds, before it contributes -----------------
# The contributions to a round state the chain of the aggregates before it (`protocols.crypto.aggregate_chain`), signed
# with keys that the organiser certified. So when round n is complete, a member learns from its attestations who holds
# the aggregates of the rounds before n. A server that gives members different aggregates has to keep them in groups
# that never see each other's attestations, and each group needs `min_clients` members.

_SAMPLE: Final = 8
"""Attestations that are checked beyond the `min_clients` that are needed, from a random place on."""


def require_attested(member: Member, follower: ModelFollower, followed: FollowedState) -> Program[None]:
    """Raise unless `min_clients` members state the aggregates before the last completed round as this client does.

    follower: the client's copy of the model. followed: the state after that round. Nothing is checked where that round
    is the first. The client starts at a random place among the contributors of the round, looks at `_SAMPLE` more than
    it needs, and goes on only while it lacks some. Raises `Equivocation` for a certified member that states another
    chain, and keeps the proof; `NotAttested` when too few state this one. A client whose chain is from a snapshot
    cannot tell whether the snapshot is false: it raises `NotAttested` instead, and makes its model anew from the
    aggregates.
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
        raise NotAttested(
            f"{len(same)} members have stated that they hold the aggregates before round {number} that this "
            f"client holds, and at least {needed} must: the server may have given members different ones"
        )


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
    """Keep the proof and raise `Equivocation`; where a member's snapshot may be at fault, raise `NotAttested`."""
    task_id, number = member.terms.task_id, followed.state.round_number
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


# --- work ahead: while a client waits for a round, a thread computes a part of its next seal -------------------------

_NICE: Final = 19
"""Niceness of the thread where every thread has its own (Linux): the lowest priority."""


class WorkAhead:
    """At most `most` pieces, 1 or more, that `make` computes in a thread within the `with` block, and one in its hand.

    Each piece leaves once and is never put back, written down or copied. A forked process has none: a piece that two
    processes use would reveal what it hides (`protocols.sums.base.WorksAhead`).
    """

    def __init__(self, make: Callable[[], Any], most: int) -> None:
        self._make, self._most = make, most
        self._ready: Queue[Any] = Queue(most)
        self._owner = os.getpid()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="work-ahead", daemon=True)

    def __repr__(self) -> str:
        return f"<WorkAhead {len(self)} of {self._most}>"

    def __reduce__(self) -> NoReturn:
        raise TypeError("pieces of a seal cannot be copied or pickled")

    def __len__(self) -> int:
        """Number of pieces that are ready."""
        return self._ready.qsize() if os.getpid() == self._owner else 0

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping = True
        self.take(self._most)  # the thread may wait for a place
        self._thread.join()
        self.take(self._most)

    def take(self, count: int) -> list[Any]:
        """Remove and return at most `count` pieces; new ones are made in their place."""
        taken: list[Any] = []
        with contextlib.suppress(Empty):
            while os.getpid() == self._owner and len(taken) < count:
                taken.append(self._ready.get_nowait())
        return taken

    def _run(self) -> None:
        if sys.platform == "linux":
            with contextlib.suppress(OSError):
                os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICE)
        while not self._stopping:
            self._ready.put(self._make())
