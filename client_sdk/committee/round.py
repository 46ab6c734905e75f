"""A member's part in one round: it confirms one set of survivors, and sends one sum of shares.

Everything that must outlive the process is stored before it matters: the key before it is published, the record before
the signature or the share is sent. So a restart in any state sends the same bytes, and another set is refused.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from tempfile import SpooledTemporaryFile
from typing import IO, Final

from client_sdk.api.wire import Program, work
from client_sdk.committee.record import client_tag, close_keys, load_record, load_sets, secret_key, store_record
from client_sdk.errors import RoundLost
from client_sdk.rounds.events import ClientsNamed, Progress, ShareSent, SurvivorsConfirmed
from client_sdk.rounds.member import Member
from client_sdk.rounds.oneshot import committee_of, is_certified, oneshot_context
from protocols.crypto.certificates import CERTIFICATE_BYTES
from protocols.crypto.domain import SEED_BYTES
from protocols.errors import RefusalError
from protocols.messages import BadShares, RoundView
from protocols.messages.stages import MOST_BAD_SHARES, StageMessage
from protocols.sums.oneshot import member as stages
from protocols.sums.oneshot.committee import split_confirmations, split_statements
from protocols.sums.oneshot.member import Inspection, Ready, inspect
from protocols.sums.oneshot.plan import DIGEST_BYTES, KEY_BYTES, SIGNATURE_BYTES, OneshotPlan
from protocols.task_binding import broadcast_digest

__all__ = [
    "MemberRound",
    "inspect_proposal",
]


@dataclass
class MemberRound:
    """One member in round `view.number`. Call `confirm` and `unmask` with the round's view when the member is asked."""

    member: Member
    number: int
    _ready: stages.Ready | None = field(default=None, repr=False)
    _inspection: stages.Inspection | None = field(default=None, repr=False)
    _reported: bytes | None = field(default=None, repr=False)

    def confirm(self, view: RoundView, progress: Progress | None = None) -> Program[bool]:
        """Check the proposed survivors; sign the set, or name its clients whose share does not open, once for a set.

        Returns whether the signature was sent. Raises `RefusalError` when the set must not be signed.
        """
        inspection = yield from self._inspect(view)
        if inspection.bad:
            if self._reported == inspection.digest:
                return False  # t other members can open the shares of all, so the server kept the set
            yield from self._name(inspection)
            self._reported = inspection.digest
            if progress:
                progress(ClientsNamed(view.number, inspection.bad))
            return False
        proposed = yield from self.member.calls.round(self.member.task_id, view.number)
        if proposed.survivors_digest not in (None, inspection.digest.hex()):
            self._inspection = None
            return False  # another member has named a client meanwhile
        confirmed = yield from self._sign(view, inspection)
        yield from self._put("confirm", confirmed.signature)
        if progress:
            progress(SurvivorsConfirmed(view.number, len(inspection.clients)))
        return True

    def unmask(self, view: RoundView, progress: Progress | None = None) -> Program[None]:
        """Send the sum of this member's shares of the confirmed survivors, and delete its key of the round.

        Raises `ThresholdError` unless t members signed the set that this member signed.
        """
        task_id, store = self.member.task_id, self.member.store
        record = load_record(store, task_id)
        if record.round_number != view.number or record.signed is None:
            raise RefusalError("this member has confirmed no set of survivors in this round")
        confirmed = yield from self._sign(view, (yield from self._inspect(view)))
        committee = confirmed.ready.committee
        length = len(committee.members) * SIGNATURE_BYTES
        body = yield from self.member.calls.stage_body(task_id, view.number, "confirmations", length, length)
        share = stages.sum_share(confirmed, split_confirmations(committee, body))
        store_record(store, task_id, replace(load_record(store, task_id), summed=True))
        yield from self._put("unmask", share)
        self.close()
        if progress:
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
            yield from self.member.refresh_revocations()
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
            committee = yield from committee_of(self.member, context)
            policy = self.member.policy.for_oneshot_rounds(self.member.terms.schedule)
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
        digest = None if snapshot is None else bytes.fromhex(snapshot.digest)
        return broadcast_digest(self.member.terms.view, view.step, digest)

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
# The shares are spooled to an unnamed temporary file as they arrive and read one by one, so that the memory of a member
# does not grow with the number of clients. They are sealed; each is checked against the digest that its client signed.

_IN_MEMORY: Final = 1 << 20
_LONGEST_ID: Final = 64


def inspect_proposal(member: Member, ready: Ready) -> Program[Inspection]:
    """Fetch the proposed survivors of a round and check them; `clients` of the result are tags of identity keys.

    Raises `CodecError` for malformed statements, and `RefusalError` if the server sends another number of shares, or
    if nothing of what it proposes is valid: then it is the server that is at fault, and no client is named.
    """
    context = ready.committee.context
    plan, task_id, number = context.plan, context.task_id, context.round_number
    body = yield from member.calls.statements(task_id, number, context.cohort * _longest_statement(plan))
    statements = yield from work(lambda: split_statements(plan, body, context.cohort))
    with _SpooledShares() as shares:
        length = len(statements) * plan.sealed_bytes
        yield from member.calls.sealed_shares(task_id, number, member.client_id, length, shares)
        if shares.length != length:
            raise RefusalError(f"the server sent {shares.length} bytes of sealed shares, {length} were expected")
        found = yield from work(
            lambda: inspect(
                ready,
                statements,
                shares.each(plan.sealed_bytes),
                lambda statement: is_certified(member.check, statement, "member"),
            )
        )
    if statements and len(found.bad) == len(statements):
        raise RefusalError("no client of the proposed set has a valid statement and share for this round and committee")
    return replace(found, clients=frozenset(client_tag(statement.identity_key) for statement in statements))


def _longest_statement(plan: OneshotPlan) -> int:
    digests = (1 + plan.committee) * DIGEST_BYTES
    return 1 + _LONGEST_ID + 3 * KEY_BYTES + CERTIFICATE_BYTES + digests + SIGNATURE_BYTES


class _SpooledShares:
    """A sink that keeps sealed shares in a temporary file."""

    def __init__(self) -> None:
        self._file: IO[bytes] = SpooledTemporaryFile(max_size=_IN_MEMORY)  # noqa: SIM115 - closed by `__exit__`
        self.length = 0

    def begin(self) -> None:
        """Forget the shares."""
        self._file.seek(0)
        self._file.truncate()
        self.length = 0

    def add(self, piece: bytes) -> None:
        """Append the next piece."""
        self._file.write(piece)
        self.length += len(piece)

    def each(self, size: int) -> Iterator[bytes]:
        """Yield the shares of `size` bytes in order."""
        self._file.seek(0)
        for _ in range(self.length // size):
            yield self._file.read(size)

    def __enter__(self) -> _SpooledShares:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()
