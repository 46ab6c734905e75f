"""A complete one-shot sum with all parties in one process, from the plan to the opened sum, with absent parties."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from numpy.typing import NDArray

from protocols.crypto.certificates import NO_CERTIFICATE, Certificate, CertifiedRole, certify, check_certificate
from protocols.crypto.keys import DIGEST_BYTES, KEY_BYTES, SEED_BYTES
from protocols.crypto.random import Randomness
from protocols.crypto.sealing import SealingKey
from protocols.layout import whole_route
from protocols.sums.groups import group_of_each
from protocols.sums.oneshot import client, member, server
from protocols.sums.oneshot.committee import Committee, make_committee, make_committee_key
from protocols.sums.oneshot.mechanism import ONESHOT
from protocols.sums.oneshot.plan import OneshotContext, OneshotPlan, OneshotPolicy
from protocols.sums.oneshot.wire import CommitteeKey, Statement, Upload, body_digest, survivors_digest


@dataclass(frozen=True)
class OneshotTranscript:
    """What was sent, by client or member id, and the opened sum: total, float64 (layout.length,)."""

    committee: dict[str, bytes]
    uploads: dict[str, bytes]
    confirmations: dict[str, bytes]
    summed_shares: dict[str, bytes]
    wrong: tuple[str, ...]
    total: NDArray[np.float64]


@dataclass
class OneshotRun:
    """All parties of one round, which a caller can change between two steps, as attackers do."""

    context: OneshotContext
    members: Sequence[str]
    """Ids of the committee."""
    identities: Mapping[str, Ed25519PrivateKey]
    policy: OneshotPolicy
    encoded: Callable[[str], NDArray[np.int64]]
    """A client's whole steps, int64 (layout.length,)."""
    mailbox: bytes = bytes(KEY_BYTES)
    certificate: Callable[[str, CertifiedRole], bytes] = lambda *_: NO_CERTIFICATE
    """Of every party."""
    is_certified: Callable[[CommitteeKey | Statement, CertifiedRole], bool] = lambda *_: True
    """Whether a certificate is of the organiser and of a role."""
    random: Callable[[str], Randomness] = lambda _: os.urandom
    """Randomness for a label."""
    secrets: dict[str, SealingKey] = field(default_factory=dict)
    keys: dict[str, CommitteeKey] = field(default_factory=dict)
    committee: Committee = field(init=False)
    uploads: dict[str, Upload] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Ahead of the round: each member of the committee makes a key for it and signs it; everyone checks them."""
        for name in self.members:
            self.secrets[name], self.keys[name] = make_committee_key(
                self.identities[name],
                self.context.task_id,
                self.context.round_number,
                name,
                self.mailbox,
                self.certificate(name, "committee"),
                self.random(name),
            )
        self.committee = make_committee(
            self.context, self.keys.values(), lambda key: self.is_certified(key, "committee")
        )

    def contribute(self, *names: str) -> None:
        """collecting: each client sends one message."""
        for name in names:
            self.uploads[name] = client.contribute(
                self.committee, name, self.identities[name], self.policy, self.encoded(name), self.random(name)
            )

    def statement(self, name: str) -> Statement:
        """Return a client's statement, which the server has checked."""
        upload, key = self.uploads[name], self.identities[name].public_key().public_bytes_raw()
        own = (key, self.mailbox, self.certificate(name, "member"))
        ticket, digest = upload.ticket.encode(), body_digest(upload.contribution)
        return server.check_upload(self.committee, name, *own, ticket, digest)

    def statements(self, names: Iterable[str] | None = None) -> list[Statement]:
        """Return the statements of `names`, or of all that contributed."""
        return [self.statement(name) for name in names or self.uploads]

    def partial(self, names: Iterable[str] | None = None) -> bytes:
        """Return the server's fold of the contributions of `names`, or of all."""
        route, plan, chosen = whole_route(self.context.plan.layout), self.context.plan, list(names or self.uploads)
        if plan.groups == 1:
            return ONESHOT.fold(plan, None, ((route, self.uploads[name].contribution) for name in chosen))
        group = group_of_each(self.context.task_id, chosen, plan.groups)
        ordered = sorted(chosen, key=group.__getitem__)
        return ONESHOT.fold_groups(
            plan, None, ((group[name], route, self.uploads[name].contribution) for name in ordered)
        )

    def ready(self, name: str, policy: OneshotPolicy | None = None) -> member.Ready:
        """Return a member's state when the round begins. policy: instead of everyone's."""
        return member.join(self.committee, name, self.identities[name], self.secrets[name], policy or self.policy)

    def inspect(self, name: str, names: Iterable[str] | None = None) -> member.Inspection:
        """Return what a member finds in the statements and its shares of the proposed set `names`, or of all."""
        chosen, place = list(names or self.uploads), self.committee.place(name)
        shares = [self.uploads[other].ticket.sealed[place] for other in chosen]
        statements = self.statements(chosen)
        return member.inspect(self.ready(name), statements, shares, lambda one: self.is_certified(one, "member"))

    def confirm(
        self,
        name: str,
        names: Iterable[str] | None = None,
        ledger: member.Ledger | None = None,
        minimum: int = 3,
        policy: OneshotPolicy | None = None,
    ) -> tuple[member.Confirmed, member.Ledger]:
        """confirming: a member signs the proposed set. ledger: what it signed before; None: nothing."""
        found, seed = self.inspect(name, names), self.random(f"{name} confirms")(SEED_BYTES)
        return member.confirm(self.ready(name, policy), found, ledger or member.Ledger(), minimum, seed)

    def sum_shares(
        self, confirmed: Mapping[str, member.Confirmed], names: Iterable[str] | None = None
    ) -> dict[str, bytes]:
        """unmasking: with t signatures on one set, each member sends one summed share. The server checks both."""
        digest, shares = survivors_digest(self.statements(names)), {}
        signatures = {name: state.signature for name, state in confirmed.items()}
        for name, signature in signatures.items():
            server.check_confirmation(self.committee, name, digest, signature)
        server.check_confirmed(self.committee, confirmed)
        for name, state in confirmed.items():
            shares[name] = member.sum_share(state, signatures)
        return shares

    def checked(self, shares: Mapping[str, bytes], names: Iterable[str] | None = None) -> dict[str, NDArray[np.uint32]]:
        """Return summed shares for the set `names`, or of all, which the server has checked."""
        digest = survivors_digest(self.statements(names))
        return {name: server.check_summed_share(self.committee, name, digest, body) for name, body in shares.items()}

    def unmask(self, shares: Mapping[str, NDArray[np.uint32]], names: Iterable[str] | None = None) -> server.Unmasking:
        """Return the sum of `names`, or of all, without masks. Raises what `server.unmask` raises."""
        count = len(list(names or self.uploads))
        return server.unmask(self.committee, self.partial(names), count, shares)


def run_oneshot_sum(
    plan: OneshotPlan,
    vectors: Mapping[str, NDArray[np.float64]],
    absent: Collection[str] = (),
    random: Randomness = os.urandom,
) -> OneshotTranscript:
    """Return the transcript of a one-shot sum over all clients that are not `absent`.

    vectors: client id -> float64 (layout.length,). absent: ids of clients, which never upload, and of members of the
    committee (`member-0` and so on), which leave after they published their keys. Raises `ThresholdError` if too few
    members are left, and the errors of the parties' functions.
    """
    # An organiser, whom the server does not control, has certified the keys of every client and member.
    organiser = Ed25519PrivateKey.from_private_bytes(random(SEED_BYTES))
    mailbox = SealingKey(random(SEED_BYTES)).name
    names = [f"member-{place}" for place in range(plan.committee)]
    identities = {name: Ed25519PrivateKey.from_private_bytes(random(SEED_BYTES)) for name in (*names, *vectors)}

    def certificate(name: str, role: CertifiedRole) -> bytes:
        key = identities[name].public_key().public_bytes_raw()
        serial = list(identities).index(name)  # one a subject
        return certify(organiser, "run", key, mailbox, role=role, serial=serial, not_after=1).encode()

    def is_certified(keys: CommitteeKey | Statement, role: CertifiedRole) -> bool:
        made, trusted = Certificate.decode(keys.certificate), organiser.public_key().public_bytes_raw()
        check_certificate(trusted, "run", keys.identity_key, keys.mailbox_key, made, now=0)  # raises for a stranger
        return made.role == role

    def encoded(name: str) -> NDArray[np.int64]:
        return plan.encode(whole_route(plan.layout), plan.layout.split(vectors[name]))

    # Everyone knows the round, and computes the model's digest itself.
    context = OneshotContext("t_1", 1, 0, plan, random(DIGEST_BYTES), max(3, len(vectors)))
    policy = OneshotPolicy(min_corrupt_members=0)
    run = OneshotRun(context, names, identities, policy, encoded, mailbox, certificate, is_certified, lambda _: random)

    run.contribute(*(name for name in vectors if name not in absent))
    for upload in run.uploads.values():
        ONESHOT.check(plan, whole_route(plan.layout), upload.contribution)
    confirmed = {name: run.confirm(name)[0] for name in names if name not in absent}
    summed = run.sum_shares(confirmed)
    done = run.unmask(run.checked(summed))

    # Anyone opens the sum.
    total = ONESHOT.open(plan, done.aggregate, len(run.uploads), None)
    keys = {name: key.encode() for name, key in run.keys.items()}
    uploads = {name: upload.encode() for name, upload in run.uploads.items()}
    confirmations = {name: state.signature for name, state in confirmed.items()}
    return OneshotTranscript(keys, uploads, confirmations, summed, done.wrong, total)
