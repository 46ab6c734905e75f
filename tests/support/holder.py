"""A key holder of a CKKS task in public mode over real HTTP, and its members, whose contributions are made up."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from typing import Any

import httpx
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from protocols.crypto.aggregate_chain import AggregateChain
from protocols.crypto.certificates import NO_CERTIFICATE
from protocols.crypto.envelope import EnvelopeSender, seal_snapshot
from protocols.crypto.keyring import Keyring
from protocols.crypto.round_key import RoundKeyPurpose, sign_round_key
from protocols.sums.ckks.mechanism import CKKS
from protocols.sums.ckks.planner import CkksPlan
from tests.support.api import Api, TestMember, TestTask, digest_field, signed_enrolment

__all__ = ["CLIENTS", "Holder", "make_holder"]

CLIENTS = 3


@dataclass
class Holder:
    """The key holder of a task, its members, and the key pairs that it has published."""

    task: TestTask
    member: TestMember
    sender: EnvelopeSender
    members: list[TestMember]
    keyrings: dict[int, Keyring]
    documents: dict[int, bytes]

    @property
    def plan(self) -> CkksPlan:
        assert isinstance(self.task.plan, CkksPlan)
        return self.task.plan

    def document(self, number: int, task_id: str | None = None, sender: EnvelopeSender | None = None) -> bytes:
        """Make a key pair for a round, and sign its public key."""
        self.keyrings[number] = CKKS.generate_keyring(self.plan)
        purpose = RoundKeyPurpose(task_id or self.task.id, number, "ckks", self.plan.parameter_id)
        self.documents[number] = sign_round_key(purpose, self.keyrings[number].public_key, sender or self.sender)
        return self.documents[number]

    def publish(self, number: int, document: bytes, member: TestMember | None = None) -> httpx.Response:
        headers = {**(member or self.member).auth, "Content-Digest": digest_field(document)}
        return self.task.api.http.put(f"{self.task.path}/rounds/{number}/key", content=document, headers=headers)

    def publish_new(self, *numbers: int) -> None:
        for number in numbers:
            assert self.publish(number, self.document(number)).status_code == 201

    def contribute(self, number: int) -> None:
        self.task.wait_round(number, "collecting")
        for member in self.members:
            body = member.contribution(number, 0.25, self.keyrings[number].without_secret_key())
            assert member.put(number, body, {"Round-Key": self.key_digest(number)}).status_code == 201
        self.task.wait_round(number, "decrypting")

    def key_digest(self, number: int) -> str:
        return hashlib.sha256(self.documents[number]).hexdigest()

    def put_snapshot(self, number: int, member: TestMember | None = None) -> httpx.Response:
        state, chain = os.urandom(self.task.recipe.state_bytes(1)), AggregateChain.first(self.task.id)
        body = seal_snapshot(state, chain, bytes(32), self.task.id, number)
        headers = {**(member or self.member).auth, "Content-Digest": digest_field(body)}
        return self.task.api.http.put(f"{self.task.path}/snapshots/{number}", content=body, headers=headers)

    def refuse(self, number: int, reason: str = "not zero", member: TestMember | None = None) -> httpx.Response:
        path = f"{self.task.path}/rounds/{number}/sum-refusal"
        return self.task.api.http.post(path, json={"reason": reason}, headers=(member or self.member).auth)

    def view(self) -> dict[str, Any]:
        return dict(self.task.api.http.get(self.task.path, headers=self.task.api.operator).json())


def make_holder(api: Api, name: str, mode: str = "public", **schedule: Any) -> Holder:
    """A task whose members all have an envelope, so that only the round's key is missing."""
    task = api.create_task(
        name, items=20, dim=4, clip=0.5, cohort=CLIENTS, mechanism_name="ckks", mechanism_parameters={"mode": mode},
        **schedule,
    )  # fmt: skip
    identity, mailbox = Ed25519PrivateKey.generate(), X25519PrivateKey.generate()
    enrolled = api.http.post(
        "/v1/enrolments", json=signed_enrolment(api.invite(task.id, role="holder"), identity, mailbox)
    ).json()
    holder = TestMember(task, enrolled["client_id"], enrolled["token"])
    sender = EnvelopeSender(identity, mailbox.public_key().public_bytes_raw(), NO_CERTIFICATE)
    members = task.enrol(CLIENTS)
    for member in members:
        body = os.urandom(64)
        headers = {**holder.auth, "Content-Digest": digest_field(body)}
        path = f"{task.path}/keyring/{member.client_id}"
        assert api.http.put(path, content=body, headers=headers).status_code == 201
    return Holder(task, holder, sender, members, {}, {})
