"""One-shot rounds of a simulated task: what a client sends, and the members of the committee."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Final

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from aggregator_service.problems import Problem
from aggregator_service.rounds.oneshot import oneshot_context
from aggregator_service.storage.blobs import BlobDamagedError
from aggregator_service.storage.schema import RoundRow, TaskRow
from protocols.codec import b64decode
from protocols.crypto.certificates import NO_CERTIFICATE
from protocols.crypto.random import Randomness
from protocols.crypto.sealing import SealingKey
from protocols.layout import Floats, whole_route
from protocols.sums.oneshot import client, member
from protocols.sums.oneshot.committee import (
    Committee,
    make_committee,
    make_committee_key,
    split_confirmations,
    split_keys,
    split_statements,
)
from protocols.sums.oneshot.plan import OneshotPolicy
from tests.simulation.plan import BEYOND, COMMITTEE, LIE_PARTS, PLACES, UNMATCHED, Part
from tests.simulation.process import Process

POLICY: Final = OneshotPolicy()


def committee_shown(task: TaskRow, round_: RoundRow, keys: str) -> Committee:
    """Return the committee of a round, from its keys as the round shows them to a party that it awaits."""
    return make_committee(oneshot_context(task, round_), split_keys(b64decode(keys)), lambda _: True)


def make_upload(
    committee: Committee,
    client_id: str,
    identity: Ed25519PrivateKey,
    values: Floats,
    random: Randomness,
    lie: int | None,
    spoilt: int,
) -> bytes:
    """Return a client's message. lie: what it adds to its last value, `BEYOND` half of the range of a sum, `UNMATCHED`
    a mask of which it shares another one's secret; None: nothing. spoilt: for so many members, bytes that are no share.
    """
    plan = committee.context.plan
    steps_of = partial(plan.encode, whole_route(plan.layout))
    steps, more = steps_of(plan.layout.split(values)), np.zeros(plan.layout.length)
    if lie == BEYOND:
        steps[-1] += 1 << (plan.bits - 1)
    elif lie is not None and lie > 0:
        more[-1] = lie / LIE_PARTS  # within a client's bounds, which the sum of the parts need not be
        steps += LIE_PARTS * steps_of(plan.layout.split(more))
    made = client.contribute(committee, client_id, identity, POLICY, steps, random)
    body, sealed = made.contribution, list(made.ticket.sealed)
    if lie == UNMATCHED:
        body = client.contribute(committee, client_id, identity, POLICY, steps, random).contribution
    sealed[:spoilt] = [bytes([place + 1]) * len(one) for place, one in enumerate(sealed[:spoilt])]
    own = committee, client_id, identity, made.ticket.ephemeral_key
    return client.sign_upload(*own, tuple(sealed), body).encode()


class Keys:
    """The identity of a party, and the key that others seal to: from its index."""

    index: int

    @property
    def identity(self) -> Ed25519PrivateKey:
        return Ed25519PrivateKey.from_private_bytes(bytes([self.index + 1] * 32))

    @property
    def mailbox(self) -> SealingKey:
        return SealingKey(bytes([self.index + 1] * 32))


@dataclass
class CommitteeMember(Keys):
    """A member of the committee, and its state in the current round. It never dies, but may stop sending."""

    index: int
    """Behind those of all clients."""
    random: Randomness = field(repr=False)
    id: str
    token: str = field(repr=False)
    number: int = 0
    """Of the newest round that it knows of."""
    left: bool = False
    done: frozenset[Part] = frozenset()
    retry_at: float = 0.0
    offset: int | None = 0
    chain: str | None = None
    committee: Committee | None = None
    """Of that round, once it was shown to this member."""
    signed: member.Confirmed | None = None
    """What it agreed to in that round."""
    opened: dict[int, tuple[frozenset[str], ...]] = field(default_factory=dict)
    """The sets that it sent its share of, by sum."""
    secrets: dict[int, SealingKey] = field(default_factory=dict)
    """By round, as `keys` are."""
    keys: dict[int, bytes] = field(default_factory=dict)

    def enter(self, number: int) -> None:
        self.number, self.left, self.done, self.committee, self.signed = number, False, frozenset(), None, None

    def make(self, process: Process, task: TaskRow, round_: RoundRow, part: Part) -> bytes | None:
        """Return the message of this member for a part, always the same bytes; None: not now, or never."""
        if part == "key":
            return self._key(task.id, self.number + 1)
        if part == "unmask":
            return self._share(process, task, round_)
        found = self._inspect(process, task, round_)
        if found is None:
            return None
        ready, inspection = found
        if inspection.bad:
            process.report_sealed(round_.id, self.id, inspection.digest, inspection.bad)
            return None  # another set is proposed, or others open this one
        if self.signed is None:
            ledger, floor = member.Ledger(self.opened.get(round_.sum_index, ())), int(task.schedule["min_clients"])
            self.signed, _ = member.confirm(ready, inspection, ledger, floor, self.random(32))
        self.left = self.signed.inspection.digest != inspection.digest  # it signs one set a round
        return None if self.left else self.signed.signature

    def _key(self, task_id: str, number: int) -> bytes:
        if number not in self.keys:
            own = self.identity, task_id, number, self.id, self.mailbox.name, NO_CERTIFICATE, self.random
            self.secrets[number], made = make_committee_key(*own)
            self.keys[number] = made.encode()
        return self.keys[number]

    def _inspect(
        self, process: Process, task: TaskRow, round_: RoundRow
    ) -> tuple[member.Ready, member.Inspection] | None:
        """Return what this member finds in the proposed set; None if it did not get all of it."""
        committee = self.committee
        assert committee is not None
        plan, cohort = committee.context.plan, committee.context.cohort
        with suppress(Problem, LookupError, BlobDamagedError):  # the download of a damaged share ends early
            stated, body = process.proposal(task.id, round_.number, self.id)
            statements, size = split_statements(plan, stated, cohort), plan.sealed_bytes
            sealed = [body[start : start + size] for start in range(0, len(body), size)]
            if len(sealed) == len(statements):
                ready = member.join(committee, self.id, self.identity, self.secrets[round_.number], POLICY)
                return ready, member.inspect(ready, statements, sealed, lambda _: True)
        return None

    def _share(self, process: Process, task: TaskRow, round_: RoundRow) -> bytes | None:
        handed = process.hand_out(task.id, round_.number, "confirmations", self.id)
        if handed is None or self.signed is None:
            return None
        signatures = split_confirmations(self.signed.ready.committee, handed)
        before, clients = self.opened.get(round_.sum_index, ()), self.signed.inspection.clients
        self.opened[round_.sum_index] = before if clients in before else (*before, clients)
        return member.sum_share(self.signed, signatures)


def new_committee(random: Randomness) -> list[CommitteeMember]:
    """Return the members of a task's committee."""
    indices = range(PLACES, PLACES + COMMITTEE)
    return [CommitteeMember(index, random, f"m_{index:02}", f"token-{index}") for index in indices]
