"""Parties of one-shot rounds over real HTTP: the protocol's own functions, one request a step, nothing retried."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx

from protocols.codec import b64decode
from protocols.crypto.certificates import NO_CERTIFICATE
from protocols.crypto.sealing import SealingKey
from protocols.layout import whole_route
from protocols.sums.oneshot import client, member
from protocols.sums.oneshot.committee import (
    Committee,
    make_committee,
    make_committee_key,
    split_confirmations,
    split_keys,
    split_statements,
)
from protocols.sums.oneshot.plan import OneshotContext, OneshotPlan, OneshotPolicy
from protocols.sums.oneshot.wire import Upload
from tests.support.api import Api, TestMember, TestTask
from tests.support.masked import vector_of

_POLICY = OneshotPolicy()


def oneshot_task(api: Api, name: str, cohort: int, **changes: Any) -> TestTask:
    """A small one-shot FedMF task whose cohort is everybody; `changes` go to the schedule, or to the mechanism."""
    own = ("bits", "committee", "corrupt", "groups", "tau")
    parameters = {key: changes.pop(key) for key in own if key in changes}
    schedule = {"min_clients": 3, "stage_seconds": 3600, "collect_seconds": 3600, **changes}
    return api.create_task(name, cohort=cohort, mechanism_name="oneshot", mechanism_parameters=parameters, **schedule)


class OneshotParty(TestMember):
    """A client or a member of the committee of one task."""

    def committee(self, number: int) -> Committee:
        """The committee of a round, which awaits the first that asks; the model's digest is this party's own doing."""
        if number in self.task.contexts:
            return self.task.contexts[number][1]
        round_ = self.view(number)
        context = OneshotContext(
            task_id=self.task.id,
            round_number=number,
            step=round_["step"],
            plan=OneshotPlan.of(self.task.plan_of(round_["step"])),
            model_digest=self.model_digest(round_),
            cohort=round_["cohort"],
        )
        made = make_committee(context, split_keys(b64decode(round_["committee_keys"])), lambda _: True)
        self.task.contexts[number] = round_["levels"], made
        return made


class OneshotClient(OneshotParty):
    def make(self, number: int, value: float = 1.0) -> Upload:
        committee = self.committee(number)
        plan = committee.context.plan
        blocks = plan.layout.split(vector_of(plan.layout, value))
        steps = plan.encode(whole_route(plan.layout), blocks)
        return client.contribute(committee, self.client_id, self.identity, _POLICY, steps)

    def send(self, number: int, body: bytes) -> httpx.Response:
        return self.put(number, body)

    def take(self, number: int, value: float = 1.0) -> httpx.Response:
        return self.send(number, self.make(number, value).encode())

    def resigned(self, number: int, upload: Upload, **changes: Any) -> Upload:
        """The upload with another contribution, or other sealed shares, that this client signs: a client that cheats.

        changes: `contribution`, or `sealed`, shares by place in the committee.
        """
        shares = dict(enumerate(upload.ticket.sealed)) | changes.get("sealed", {})
        body = changes.get("contribution", upload.contribution)
        own = (self.committee(number), self.client_id, self.identity, upload.ticket.ephemeral_key)
        return client.sign_upload(*own, tuple(shares.values()), body)


@dataclass
class OneshotMember(OneshotParty):
    """A member of the committee."""

    secrets: dict[int, SealingKey] = field(default_factory=dict)
    """Its secret keys by round."""
    keys: dict[int, bytes] = field(default_factory=dict)
    ledgers: dict[int, member.Ledger] = field(default_factory=dict)
    """By step."""
    confirmed: dict[int, member.Confirmed] = field(default_factory=dict)

    def key(self, number: int) -> bytes:
        if number not in self.keys:
            self.secrets[number], made = make_committee_key(
                self.identity, self.task.id, number, self.client_id, self.mailbox_key, NO_CERTIFICATE
            )
            self.keys[number] = made.encode()
        return self.keys[number]

    def publish(self, number: int, body: bytes | None = None) -> httpx.Response:
        return self.deliver(f"committee/{self.client_id}/keys/{number}", self.key(number) if body is None else body)

    def inspect(self, number: int) -> member.Inspection:
        """Fetch statements and shares of the proposed set and check them."""
        committee = self.committee(number)
        plan = committee.context.plan
        statements = split_statements(plan, self.fetch(number, "statements"), committee.context.cohort)
        body, size = self.fetch(number, f"shares/{self.client_id}"), plan.sealed_bytes
        sealed = [body[start : start + size] for start in range(0, len(body), size)]
        return member.inspect(self._ready(committee, number), statements, sealed, lambda _: True)

    def _ready(self, committee: Committee, number: int) -> member.Ready:
        return member.join(committee, self.client_id, self.identity, self.secrets[number], _POLICY)

    def confirm(self, number: int, inspection: member.Inspection | None = None) -> httpx.Response:
        """Sign the proposed set and send the signature."""
        found = self.inspect(number) if inspection is None else inspection
        committee = self.committee(number)
        ledger = self.ledgers.get(committee.context.step, member.Ledger()).begin()
        state, _ = member.confirm(self._ready(committee, number), found, ledger, 3, os.urandom(32))
        self.confirmed[number] = state
        return self.deliver(f"rounds/{number}/stages/confirm/{self.client_id}", state.signature)

    def name_bad(self, number: int, clients: Collection[str]) -> httpx.Response:
        """Name clients whose share does not open."""
        body = {"survivors_digest": self.view(number)["survivors_digest"], "clients": sorted(clients)}
        return self.task.post(f"rounds/{number}/bad-shares", body, self.auth)

    def summed_share(self, number: int) -> bytes:
        """Its summed share, once t members have confirmed."""
        signatures = split_confirmations(self.committee(number), b64decode(self.view(number)["confirmations"]))
        return member.sum_share(self.confirmed[number], signatures)

    def unmask(self, number: int, body: bytes | None = None) -> httpx.Response:
        sent = self.summed_share(number) if body is None else body
        return self.deliver(f"rounds/{number}/stages/unmask/{self.client_id}", sent)


def enrol_clients(task: TestTask, count: int) -> list[OneshotClient]:
    return sorted(task.enrol_as(OneshotClient, count), key=lambda one: one.client_id)


def enrol_committee(task: TestTask, count: int) -> list[OneshotMember]:
    """`count` new members of the committee in order of enrolment."""
    return task.enrol_as(OneshotMember, count, role="committee")


def publish_keys(members: Sequence[OneshotMember], *numbers: int) -> None:
    for one in members:
        for number in numbers:
            assert one.publish(number).is_success


Parties = tuple[TestTask, list[OneshotClient], list[OneshotMember]]
"""A task with the clients of its cohort and the members of its committee."""


def begin_oneshot(api: Api, name: str, cohort: int, committee: int, *ahead: int, **changes: object) -> Parties:
    """Begin a task, and wait for its first round; the committee publishes keys of the rounds `ahead`."""
    task = oneshot_task(api, name, cohort, **changes)
    members = enrol_committee(task, committee)
    publish_keys(members, *ahead)
    clients = enrol_clients(task, cohort)
    task.wait_round(1, "collecting")
    return task, clients, members


def committee_turn(
    task: TestTask,
    members: Sequence[OneshotMember],
    number: int = 1,
    *,
    absent: Mapping[str, Sequence[OneshotMember]] | None = None,
    summed: Callable[[OneshotMember], bytes] | None = None,
) -> None:
    """The committee confirms and unmasks; `absent`: members that miss "confirm" or "unmask", so that it expires."""
    absent = absent or {}
    missing = list(absent.get("confirm", ()))
    task.wait_round(number, "confirming")
    for one in members:
        if one not in missing:
            answer = one.confirm(number)
            assert answer.is_success, answer.text
    if missing:
        task.expire(number)
    if task.wait_round(number, "unmasking", "failed")["state"] == "failed":
        return
    silent = list(absent.get("unmask", ()))
    for one in members:
        if one not in missing and one not in silent:
            answer = one.unmask(number, None if summed is None else summed(one))
            assert answer.is_success, answer.text
    if silent:
        task.expire(number)
