"""A member of the committee of a task with one-shot sums.

It publishes keys ahead, confirms one set of survivors in each round, and sends one sum.

Everything that must outlive the process is stored before it matters: the key before it is published, the record before
the signature or the share is sent. So a restart in any state sends the same bytes, and another set is refused.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from tempfile import SpooledTemporaryFile
from typing import Final

from client_sdk.api.calls import RoundChanged
from client_sdk.api.wire import Program, work
from client_sdk.committee.record import (
    client_tag,
    close_keys,
    load_record,
    load_sets,
    publish_keys,
    secret_key,
    store_record,
)
from client_sdk.errors import ApiError, Conflict, GaveUp, RoundLost
from client_sdk.rounds.events import (
    ClientsNamed,
    CommitteeRefused,
    Progress,
    ShareSent,
    SurvivorsConfirmed,
    ignore_event,
)
from client_sdk.rounds.loop import Role
from client_sdk.rounds.member import Member, require_known_people
from client_sdk.rounds.oneshot import committee_of, oneshot_context
from client_sdk.rounds.polling import NothingNew, RoundChange, is_over
from protocols.codec import b64decode
from protocols.crypto.certificates import CERTIFICATE_BYTES
from protocols.crypto.keys import DIGEST_BYTES, KEY_BYTES, SEED_BYTES, SIGNATURE_BYTES
from protocols.errors import CertificateError, CodecError, ParameterError, RefusalError, ThresholdError
from protocols.messages import BadShares, RoundView
from protocols.messages.stages import COMMITTEE_KEYS_AHEAD, MOST_BAD_SHARES, RoundState, StageMessage
from protocols.sums.oneshot import member as stages
from protocols.sums.oneshot.committee import split_confirmations, split_statements
from protocols.sums.oneshot.plan import OneshotPlan, OneshotPolicy
from protocols.task_terms import broadcast_digest, model_of_round

_REFUSED: Final = (ApiError, CertificateError, CodecError, GaveUp, RefusalError, RoundLost, ThresholdError)
"""Errors that end a round for this member, but not its part in the task."""


class CommitteeMember(Role):
    """A client in the committee of a task with one-shot sums. published: numbers of rounds whose keys the server has.

    progress: receives `SurvivorsConfirmed`, `ClientsNamed`, `ShareSent` and `CommitteeRefused`. Raises `ParameterError`
    unless the client enrolled for the role "committee", and `PolicyRefused` for a task without an organiser unless the
    policy trusts the server to say who takes part.
    """

    def __init__(self, member: Member, progress: Progress = ignore_event) -> None:
        super().__init__(member, progress)
        membership = member.membership
        if membership.role != "committee":
            raise ParameterError(
                f"this client is a {membership.role} of task {membership.task_name!r}, not in its committee"
            )
        require_known_people(member)
        self.published: set[int] = set()
        self._round: CommitteeRound | None = None
        self._refused: tuple[object, ...] | None = None
        self._newest = 0

    def before_poll(self, change: RoundChange | None, poll_seconds: float) -> Program[float]:
        """Publish the first keys before the first poll."""
        if change is None:
            yield from self.attend_newest()
            return 0.0
        return poll_seconds

    def on_round(self, change: RoundChanged) -> Program[None]:
        """Do this member's part in the newest round."""
        return self.attend(change.view)

    def on_waiting(self, change: NothingNew) -> Program[None]:
        """Publish again what the server has lost."""
        if change.task.waiting_for is not None:
            yield from self._check_published()
            yield from self._publish(self._newest)

    def known_rounds(self) -> tuple[int, int]:
        """Return the newest round that is over for this member, and the one before: the server still opens the sum."""
        closed = load_record(self.member.store, self.member.task_id).closed
        return closed, max(0, closed - 1)

    def on_restored(self, number: int) -> str:
        """Delete the keys of the lost rounds, so that new ones can be made for those after round `number`."""
        store, task_id = self.member.store, self.member.task_id
        record = load_record(store, task_id)
        close_keys(store, task_id, record.used)
        store_record(store, task_id, record.reopen(number))
        self.published.clear()
        self._round = None
        return "this member publishes new keys for the rounds that follow, and remembers the sums that it opened"

    def attend_newest(self) -> Program[RoundView | None]:
        """Publish the keys of the next rounds, and do this member's part in the newest round. Returns that round."""
        current = yield from self.member.calls.current_round(self.member.task_id)
        view = None if current is None else current.view
        yield from self.attend(view)
        return view

    def attend(self, view: RoundView | None) -> Program[None]:
        """Publish the keys of the next rounds, and do this member's part in the newest round; None: there is none.

        What this member refuses is reported as `CommitteeRefused`, once for each state and proposed set.
        """
        member = self.member
        newest = self._newest = 0 if view is None else view.number
        if view is not None:
            close_keys(member.store, member.task_id, newest if is_over(view) else newest - 1)
            if view.state == RoundState.FAILED:
                self.published.clear()  # the server drops the keys of members that did not answer
        yield from self._publish(newest)
        if view is None or not view.in_committee:
            return
        try:
            yield from self._take_part(view)
        except _REFUSED as error:
            about = (view.number, view.state, view.survivors_digest)
            if self._refused != about:
                self.progress(CommitteeRefused(view.number, str(error)))
            self._refused = about

    def _take_part(self, view: RoundView) -> Program[None]:
        if self._round is None or self._round.number != view.number:
            self._round = CommitteeRound(self.member, view.number)
        part = self._round
        if view.state == RoundState.UNMASKING and view.delivered:
            part.close()  # the process ended between sending the share and deleting the key
        elif view.expected and not view.delivered:
            if view.state == RoundState.CONFIRMING:
                yield from part.confirm(view, self.progress)
            elif view.state == RoundState.UNMASKING:
                yield from part.unmask(view, self.progress)

    def _publish(self, newest: int) -> Program[None]:
        closed = load_record(self.member.store, self.member.task_id).closed
        ahead = range(newest + 1, newest + COMMITTEE_KEYS_AHEAD + 1)
        missing = [number for number in ahead if number > closed and number not in self.published]
        accepted = yield from publish_keys(self.member, missing)
        self.published = {number for number in self.published if number > newest}.union(accepted)

    def _check_published(self) -> Program[None]:
        """Forget what this process has published, and the server no longer has."""
        with suppress(Conflict):
            found = yield from self.member.calls.committee(self.member.task_id)
            own = [each.keys for each in found.members if each.client_id == self.member.client_id]
            self.published.intersection_update(*own)


@dataclass
class CommitteeRound:
    """One member in round `view.number`. Call `confirm` and `unmask` with the round's view when the member is asked."""

    member: Member
    number: int
    _ready: stages.Ready | None = field(default=None, repr=False)
    _inspection: stages.Inspection | None = field(default=None, repr=False)
    _reported: bytes | None = field(default=None, repr=False)

    def confirm(self, view: RoundView, progress: Progress = ignore_event) -> Program[bool]:
        """Check the proposed survivors; sign the set, or name its clients whose share does not open, once for a set.

        Returns whether the signature was sent. Raises `RefusalError` when the set must not be signed.
        """
        inspection = yield from self._inspect(view)
        if inspection.bad:
            if self._reported == inspection.digest:
                return False  # t other members can open the shares of all, so the server kept the set
            yield from self._name(inspection)
            self._reported = inspection.digest
            progress(ClientsNamed(view.number, inspection.bad))
            return False
        proposed = yield from self.member.calls.round(self.member.task_id, view.number)
        if proposed.survivors_digest not in (None, inspection.digest.hex()):
            self._inspection = None
            return False  # another member has named a client meanwhile
        confirmed = yield from self._sign(view, inspection)
        yield from self._put("confirm", confirmed.signature)
        progress(SurvivorsConfirmed(view.number, len(inspection.clients)))
        return True

    def unmask(self, view: RoundView, progress: Progress = ignore_event) -> Program[None]:
        """Send the sum of this member's shares of the confirmed survivors, and delete its key of the round.

        Raises `ThresholdError` unless t members signed the set that this member signed.
        """
        task_id, store = self.member.task_id, self.member.store
        record = load_record(store, task_id)
        if record.round_number != view.number or record.signed is None:
            raise RefusalError("this member has confirmed no set of survivors in this round")
        confirmed = yield from self._sign(view, (yield from self._inspect(view)))
        committee = confirmed.ready.committee
        share = stages.sum_share(confirmed, split_confirmations(committee, b64decode(view.confirmations or "")))
        store_record(store, task_id, replace(load_record(store, task_id), summed=True))
        yield from self._put("unmask", share)
        self.close()
        progress(ShareSent(view.number))

    def close(self) -> None:
        """Delete this member's key of the round, for ever."""
        task_id = self.member.task_id
        store_record(self.member.store, task_id, load_record(self.member.store, task_id).close(self.number))
        close_keys(self.member.store, task_id, self.number)

    def _sign(self, view: RoundView, inspection: stages.Inspection) -> Program[stages.Confirmed]:
        """Return the signature of the set, after storing that it is signed."""
        ready = yield from self._join(view)
        schedule, task_id = self.member.terms.schedule, self.member.task_id
        record = load_record(self.member.store, task_id)
        sum_class = ready.committee.context.plan.layout.sum_class
        data = sum_class.data if sum_class.repeated else None
        stored = load_sets(self.member.store, task_id, record, view.step)
        ledger = record.ledger_of(view.number, view.step, data, stored)
        difference = self.member.policy.min_difference(schedule)
        confirmed, after = yield from work(
            lambda: stages.confirm(ready, inspection, ledger, schedule.min_clients, os.urandom(SEED_BYTES), difference)
        )
        store_record(self.member.store, task_id, record.with_signature(view.number, view.step, after, data))
        return confirmed

    def _inspect(self, view: RoundView) -> Program[stages.Inspection]:
        kept = self._inspection
        if kept is None or view.survivors_digest not in (None, kept.digest.hex()):
            yield from self.member.check.refresh(self.member.calls, self.member.store, self.member.task_id)
            ready = yield from self._join(view)
            kept = yield from inspect_proposal(self.member, ready)
            self._inspection = kept
        return kept

    def _join(self, view: RoundView) -> Program[stages.Ready]:
        if self._ready is None:
            secret = secret_key(self.member.store, self.member.task_id, view.number)
            if secret is None:
                raise RefusalError(f"no key of round {view.number} is stored here: it was deleted, or made elsewhere")
            context = oneshot_context(self.member.terms, view, (yield from self._model_digest(view)))
            committee = yield from committee_of(self.member, context, view)
            policy = self.member.policy.requirements(OneshotPolicy, self.member.terms.schedule)
            signing_key = self.member.identity.signing_key
            self._ready = stages.join(committee, self.member.client_id, signing_key, secret, policy)
        return self._ready

    def _model_digest(self, view: RoundView) -> Program[bytes]:
        """Return the digest of the terms, which this member agreed to, and of the model, which the server names.

        The member need not know the model: clients that were given another one sealed no share that opens here.
        """
        recipe = self.member.terms.recipe
        group = recipe.device_group_of(view.step) if recipe.device_groups > 1 else None
        snapshot = yield from self.member.calls.latest_snapshot(self.member.task_id, group=group)
        if snapshot is not None and snapshot.round >= view.number:
            raise RoundLost(f"round {view.number} ended before this member took part in it")
        model = None if snapshot is None else model_of_round(snapshot.round, bytes.fromhex(snapshot.digest))
        return broadcast_digest(self.member.terms.view, view.step, model, view.levels)

    def _name(self, inspection: stages.Inspection) -> Program[None]:
        digest: str | None = inspection.digest.hex()
        for start in range(0, len(inspection.bad), MOST_BAD_SHARES):
            if digest is None:
                return  # the round has ended
            named = BadShares(survivors_digest=digest, clients=list(inspection.bad[start : start + MOST_BAD_SHARES]))
            view = yield from self.member.calls.name_bad_shares(self.member.task_id, self.number, named)
            digest = view.survivors_digest

    def _put(self, stage: StageMessage, body: bytes) -> Program[None]:
        yield from self.member.calls.put_stage(self.member.task_id, self.number, stage, self.member.client_id, body)


# --- the set of survivors that the server proposes to a member -------------------------------------------------------
# The shares come in pieces, so that neither memory nor disk of a member grows with the round. A piece is spooled to an
# unnamed temporary file as it arrives and read one by one. Shares are sealed; each is checked against the digest that
# its client signed.

SHARES_AT_ONCE: Final = 10_000
"""Shares of a piece: 169 MB of a ring of degree 4,096."""

_IN_MEMORY: Final = 1 << 20
_LONGEST_ID: Final = 64


def inspect_proposal(member: Member, ready: stages.Ready) -> Program[stages.Inspection]:
    """Fetch the proposed survivors of a round and check them; the result has tags of identity keys in place of ids.

    Raises `CodecError` for malformed statements, and `RefusalError` if the server sends another number of shares, or
    if nothing of what it proposes is valid: then it is the server that is at fault, and no client is named.
    """
    context = ready.committee.context
    plan, task_id, number = context.plan, context.task_id, context.round_number
    body = yield from member.calls.statements(task_id, number, context.cohort * _longest_statement(plan))
    statements = yield from work(lambda: split_statements(plan, body, context.cohort))
    inspecting = yield from work(lambda: stages.Inspecting(ready, statements, member.check))
    for start in range(0, len(statements), SHARES_AT_ONCE):
        count = min(SHARES_AT_ONCE, len(statements) - start)
        piece: dict[str, str | int] = {} if count == len(statements) else {"count": count}
        if start:
            piece["after"] = statements[start - 1].client_id
        with _SpooledShares(max_size=_IN_MEMORY) as shares:
            length = count * plan.sealed_bytes
            yield from member.calls.sealed_shares(task_id, number, member.client_id, length, shares, piece)
            if shares.tell() != length:
                raise RefusalError(f"the server sent {shares.tell()} bytes of sealed shares, {length} were expected")
            yield from work(partial(inspecting.add, shares.each(plan.sealed_bytes)))
    found = yield from work(inspecting.found)
    if statements and len(found.bad) == len(statements):
        raise RefusalError("no client of the proposed set has a valid statement and share for this round and committee")
    tags = {statement.client_id: client_tag(statement.identity_key) for statement in statements}
    groups = tuple(frozenset(tags[client] for client in group) for group in found.groups)
    return replace(found, clients=frozenset(tags.values()), groups=groups)


def _longest_statement(plan: OneshotPlan) -> int:
    digests = (1 + plan.committee) * DIGEST_BYTES
    return 1 + _LONGEST_ID + 3 * KEY_BYTES + CERTIFICATE_BYTES + digests + SIGNATURE_BYTES


class _SpooledShares(SpooledTemporaryFile[bytes]):
    """A sink that keeps sealed shares in a temporary file."""

    def begin(self) -> None:
        """Forget the shares."""
        self.seek(0)
        self.truncate()

    def add(self, piece: bytes) -> None:
        """Append the next piece."""
        self.write(piece)

    def each(self, size: int) -> Iterator[bytes]:
        """Yield the shares of `size` bytes in order."""
        shares = self.tell() // size
        self.seek(0)
        for _ in range(shares):
            yield self.read(size)
