"""Attacks on the keys of single rounds, each with and without its defence, and the key holder's restarts."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from client_sdk import Client, DirectoryStore, Identity, MemoryStore, Operator, Policy
from client_sdk.agreement.terms import TaskTerms
from client_sdk.api.calls import ApiCalls
from client_sdk.api.effects import Request, Response, content_digest
from client_sdk.api.retry import RetryPolicy
from client_sdk.local_state.client_store import ClientStore
from client_sdk.local_state.round_keys import RoundKeyPair, RoundKeys
from client_sdk.local_state.stores import Store
from client_sdk.participation import round_key, round_opening
from client_sdk.participation.certificates import MembershipCheck, obtain_certificate
from client_sdk.participation.events import Event, SnapshotPublished, SumRefused
from client_sdk.participation.participant import Participant
from client_sdk.participation.round_key import RoundKeyring, fetch_round_keyring
from protocols.codec import b64decode
from protocols.crypto.aggregate_chain import AggregateChain
from protocols.crypto.certificates import CertifiedRole
from protocols.crypto.envelope import EnvelopeSender
from protocols.crypto.keyring import Keyring
from protocols.crypto.round_key import RoundKeyPurpose, sign_round_key
from protocols.errors import CodecError, RoundKeyError
from protocols.layout import whole_route
from protocols.messages import RoundView, Schedule, TaskView
from protocols.sums.ckks import encryption
from protocols.sums.ckks.mechanism import CKKS
from protocols.sums.ckks.planner import CkksPlan
from tests.protocols.sums.ckks.key_extraction import false_contribution, read_contribution
from tests.support.organiser import TRIAL
from tests.support.programs import ProgramRunner, problem
from tests.support.server import AggregatorProcess, running_aggregator
from tests.support.tasks import SmallTask, interactions, small_task

POLICY = Policy()


def terms(task_id: str = "t_1") -> TaskTerms:
    view = {
        "task_id": task_id,
        "name": "movies",
        "state": "open",
        "recipe": {"name": "fedmf", "parameters": {"items": 20, "dim": 4, "clip": 0.5}},
        "mechanism": {"name": "ckks", "parameters": {"mode": "public"}},
        "schedule": Schedule(cohort_size=3).model_dump(),
        "seed": "A" * 43,
        "plan": {},
        "opened_by": "holder",
        "members": 3,
        "keyed_members": 3,
        "completed_rounds": 0,
        "failed_rounds": 0,
    }
    return TaskTerms.of(TaskView.model_validate(view))


def round_view(number: int) -> RoundView:
    view = {"task_id": "t_1", "number": number, "step": number, "state": "collecting", "seed": "A" * 43}
    counts = {"cohort": 3, "received": 0, "survivors": 0, "folded": 0, "seconds_left": 1.0, "aggregate_bytes": None}
    return RoundView.model_validate({**view, **counts})


def certified(role: CertifiedRole) -> EnvelopeSender:
    """A client that the organiser of the tests has certified."""
    identity = Identity.generate()
    issued = ProgramRunner(lambda _: problem("not-found")).run(
        obtain_certificate(TRIAL.source(role), identity, RetryPolicy())
    )
    return EnvelopeSender(identity.signing_key, identity.mailbox_key, b64decode(issued.certificate))


@dataclass
class World:
    """A member of a task, its pinned key holder, and a lying server that answers with `document`."""

    holder: EnvelopeSender
    document: bytes = b""

    def fetch(self, number: int = 2) -> RoundKeyring:
        store = ClientStore(MemoryStore(), "me")
        store.keep_holder_key("t_1", self.holder.signing_key.public_key().public_bytes_raw())
        plan = terms().sum_plan
        assert isinstance(plan, CkksPlan)
        keyring = CKKS.generate_keyring(plan).without_keys()
        calls = ApiCalls("https://server.example", "hrc_token")
        check = MembershipCheck(TRIAL.pin)
        program = fetch_round_keyring(calls, terms(), store, check, keyring, round_view(number))
        found: RoundKeyring = ProgramRunner(self.answer).run(program)
        return found

    def answer(self, request: Request) -> Response:
        assert request.url.endswith("/rounds/2/key")
        if not self.document:
            return problem("not-found")
        return Response(200, {"content-digest": content_digest(self.document)}, self.document)


def document_of(sender: EnvelopeSender, number: int = 2, task_id: str = "t_1") -> tuple[bytes, Keyring]:
    plan = terms().sum_plan
    assert isinstance(plan, CkksPlan)
    made = CKKS.generate_keyring(plan)
    purpose = RoundKeyPurpose(task_id, number, "ckks", plan.parameter_id)
    return sign_round_key(purpose, made.public_key, sender), made


def attacks(holder: EnvelopeSender) -> dict[str, tuple[tuple[bytes, Keyring], str]]:
    """What the server answers, with the key pair that it can open, and what the member says."""
    uncertified = EnvelopeSender(Ed25519PrivateKey.generate(), bytes(32), bytes(81))
    return {
        "its own key": (document_of(uncertified), "another client than the key holder"),
        "a member's key": (document_of(certified("member")), "another client than the key holder"),
        "another holder's key": (document_of(certified("holder")), "another client than the key holder"),
        "an old round's key": (document_of(holder, number=1), "signed for another task or round"),
        "another task's key": (document_of(holder, task_id="t_2"), "signed for another task or round"),
    }


@pytest.mark.parametrize("name", attacks(certified("holder")))
def test_a_server_that_exchanges_a_rounds_key_is_refused(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(certified("holder"))
    (world.document, stolen), text = attacks(world.holder)[name]
    with pytest.raises(RoundKeyError, match=text):
        world.fetch()
    # Without the check the member encrypts with that key, and who has its secret reads the contribution.
    monkeypatch.setattr(round_key, "open_round_key", lambda _, document, length, __: document[-length:])
    found, plan = world.fetch(), terms().sum_plan
    assert isinstance(plan, CkksPlan)
    vector = np.full(plan.layout.length, 0.25)
    body = CKKS.seal(plan, whole_route(plan.layout), plan.layout.split(vector), found.keyring)
    block = plan.layout.blocks[0]
    np.testing.assert_allclose(read_contribution(plan, body, stolen), np.full(block.length, 0.25), atol=1e-5)


def test_the_key_of_the_pinned_holder_is_accepted() -> None:
    world = World(certified("holder"))
    world.document, made = document_of(world.holder)
    found = world.fetch()
    assert found.keyring is not None
    assert (found.keyring.public_key, found.keyring.secret_key) == (made.public_key, b"")
    assert found.digest is not None


def test_an_uncertified_holder_and_a_missing_key_are_refused() -> None:
    world = World(certified("member"))  # pinned, but certified as a member
    world.document, _ = document_of(world.holder)
    with pytest.raises(RoundKeyError, match="not certified: the membership certificate is for the role member"):
        world.fetch()
    world.document = b""
    with pytest.raises(RoundKeyError, match="no public key of round 2"):
        world.fetch()


def test_stored_round_keys() -> None:
    keys = RoundKeys().with_pair(1, RoundKeyPair(b"p1", b"s1")).with_pair(2, RoundKeyPair(b"p2", b"s2"))
    assert RoundKeys.decode(keys.encode()).pairs == keys.pairs
    assert b"s1" not in keys.after(1).encode()
    assert "s1" not in repr(keys)
    for wrong in (b"", keys.encode()[:-1], keys.encode() + b"\0"):
        with pytest.raises(CodecError):
            RoundKeys.decode(wrong)


# --- on a real server ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AggregatorProcess]:
    with running_aggregator(tmp_path_factory.mktemp("round-keys") / "data") as running:
        yield running


@pytest.fixture(scope="module")
def operator(server: AggregatorProcess) -> Iterator[Operator]:
    with Operator(server.url, server.operator_token) as found:
        yield found


class Trial:
    """A key holder that does not contribute, whose store is a folder, and three members of one public-key task."""

    def __init__(self, server: AggregatorProcess, operator: Operator, name: str, folder: Path, **options: Any) -> None:
        self.operator, self.folder, self.url, self.name = operator, folder, server.url, name
        self.identity, self.events, self.clients = Identity.generate(), list[Event](), list[Client]()
        self.task: SmallTask = small_task(
            operator,
            name,
            users=3,
            recipe="fedmf",
            mechanism="ckks",
            mechanism_parameters={"mode": "public"},
            **options,
        )
        holder = self.holder(invitation=self.task.holder_invitation)
        holder.key_holder().create_keyring()
        self.members = [
            self.client(Identity.generate(), MemoryStore()).join(
                invitation=self.task.invitation, certificate=self.task.certificate, seed=seed
            )
            for seed in range(3)
        ]
        holder.key_holder().serve_keyring()
        self.attend(holder)

    def client(self, identity: Identity, store: Store) -> Client:
        self.clients.append(Client(self.url, identity, store, POLICY))
        return self.clients[-1]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for client in self.clients:
            client.close()

    def holder(self, invitation: str | None = None) -> Participant:
        """The key holder, in a new process as far as its memory is concerned."""
        client = self.client(self.identity, DirectoryStore(self.folder))
        certificate = None if invitation is None else self.task.holder_certificate
        return client.join(
            self.task.task_id if invitation is None else None, invitation=invitation, certificate=certificate
        )

    def attend(self, holder: Participant | None = None) -> int | None:
        return (holder or self.holder()).key_holder().attend_round(self.events.append)

    def stored_rounds(self) -> list[int]:
        (found,) = self.folder.glob("*/*/round_keys.bin")
        assert found.stat().st_mode & 0o777 == 0o600
        return sorted(RoundKeys.decode(found.read_bytes()).pairs)

    def contribute(self, number: int, members: list[Participant] | None = None) -> None:
        view = self.wait(number, "collecting")
        with ThreadPoolExecutor(3) as pool:
            chosen = members or self.members
            list(pool.map(lambda index: chosen[index].take_part_once(view, interactions(3)[index]), range(len(chosen))))

    def wait(self, number: int, state: str) -> RoundView:
        end = time.monotonic() + 90
        while time.monotonic() < end:
            time.sleep(0.1)
            view = self.members[0].current_round()
            if view is not None and (view.number, view.state) == (number, state):
                return view
        raise AssertionError(f"round {number} did not become {state}: {view}")


def test_a_holder_that_restarts_opens_the_sum_with_the_stored_key(
    server: AggregatorProcess, operator: Operator, tmp_path: Path
) -> None:
    with Trial(server, operator, "restart", tmp_path, rounds=2) as trial:
        assert trial.stored_rounds() == [1, 2]
        trial.contribute(1)
        trial.wait(1, "decrypting")
        assert trial.attend() == 1  # another process than the one that published the key
        assert trial.stored_rounds() == [2, 3]
        trial.contribute(2)
        trial.wait(2, "decrypting")
        assert trial.attend() == 2
        assert 2 not in trial.stored_rounds()
        assert operator.task("restart").state == "complete"
        assert [event.round for event in trial.events if isinstance(event, SnapshotPublished)] == [1, 2]
        assert {member.model().round_number for member in trial.members} == {2}


def test_a_holder_that_lost_its_keys_fails_the_round_and_the_task_continues(
    server: AggregatorProcess, operator: Operator, tmp_path: Path
) -> None:
    with Trial(server, operator, "lost-keys", tmp_path, rounds=1) as trial:
        trial.contribute(1)
        trial.wait(1, "decrypting")
        (stored,) = tmp_path.glob("*/*/round_keys.bin")
        stored.unlink()
        assert trial.attend() is None
        (refused,) = (event for event in trial.events if isinstance(event, SumRefused))
        assert refused.reason == "the key holder has lost the secret key of round 1"
        # The lost key of round 2 was published and stays, so that round is refused, too; round 3 has a new key.
        trial.contribute(2)
        trial.wait(2, "decrypting")
        assert trial.attend() is None
        trial.contribute(3)
        trial.wait(3, "decrypting")
        assert trial.attend() == 3
        assert operator.task("lost-keys").state == "complete"


@pytest.mark.parametrize("defended", [True, False], ids=["defended", "undefended"])
def test_a_members_false_ciphertext_ends_the_round_and_not_the_task(
    server: AggregatorProcess, operator: Operator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, defended: bool
) -> None:
    if not defended:
        monkeypatch.setattr(encryption, "check_slots", lambda *_: None)
        monkeypatch.setattr(round_opening, "require_possible", lambda *_: None)
    with Trial(server, operator, f"false-ciphertext-{int(defended)}", tmp_path, rounds=1) as trial:
        view = trial.wait(1, "collecting")
        attacker, plan = trial.members[2], trial.members[2].terms.sum_plan
        assert isinstance(plan, CkksPlan)
        body = false_contribution(plan, plan.parameter_set.modulus // 8)
        calls, membership = attacker.core.calls, attacker.membership
        chain = AggregateChain.first(trial.task.task_id).digest.hex()
        stated = {"round-key": view.key_digest or "", "aggregate-chain": chain}
        attacker.driver.run(calls.contribute(trial.task.task_id, 1, membership.client_id, body, stated))
        trial.contribute(1, trial.members[:2])
        trial.wait(1, "decrypting")
        assert trial.attend() == (None if defended else 1)
        assert operator.task(trial.name).state == ("open" if defended else "complete")
        if defended:
            (failed, *_) = operator.rounds(trial.task.task_id)
            assert failed.state == "failed"
            assert (failed.failure or "").startswith("the key holder refused the sum: ")
            trial.contribute(2)
            trial.wait(2, "decrypting")
            assert trial.attend() == 2
            assert operator.task(trial.name).state == "complete"
