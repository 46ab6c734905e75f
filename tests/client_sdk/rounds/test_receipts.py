"""Receipts on a real server, for every mechanism: made by a device, checked without the server, refused if false."""

from __future__ import annotations

import asyncio
import hashlib
import json
from dataclasses import replace
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from client_sdk import AsyncClient, Client, Identity, MemoryStore, Operator, ParameterError
from client_sdk.agreement.terms import AgreedTerms
from client_sdk.api.wire import Request, Response
from client_sdk.errors import ContractBroken
from client_sdk.rounds.account import Account
from client_sdk.rounds.loop import play
from client_sdk.rounds.receipts import make_receipt
from client_sdk.store.client_store import OwnContribution
from client_sdk.store.identity import Membership
from protocols.codec import b64encode
from protocols.messages import UploadReceipt
from protocols.messages.receipts import Receipt
from protocols.receipts import acknowledge, check_receipt
from tests.protocols.test_receipts import MEMBERS, ORGANISER, ROUND, SENT, SERVER, TASK, ended, public, shown
from tests.support.one_member import HISTORY, OneMember, aggregate_of, terms_of
from tests.support.pages import hushrec
from tests.support.programs import ProgramRunner, problem, task_view
from tests.support.server import AggregatorProcess
from tests.support.tasks import TRUSTING, enrolled_fleet, interactions, joined, small_task, take_part_together

USERS = 4


def verified(*arguments: str) -> tuple[int, str, str]:
    return hushrec("receipt", "verify", *arguments)


@pytest.mark.parametrize("mechanism", ["plain", "masked", "ckks", "paillier"])
def test_each_member_shows_that_it_was_counted(
    mechanism: str, server: AggregatorProcess, operator: Operator, tmp_path: Path
) -> None:
    size = {"recipe_parameters": {"dim": 2, "clip": 2.0, "rank": 2}} if mechanism == "paillier" else {}
    task = small_task(operator, f"{mechanism}-receipts", users=USERS, mechanism=mechanism, rounds=1, **size)
    policy = replace(TRUSTING, mechanisms=frozenset({mechanism}))
    with joined(server.url, task, USERS, policy) as parts:
        take_part_together(parts, interactions(USERS))
        accounts = [
            Account.at(server.url, one.part.member.identity, one.part.member.store.store, policy) for one in parts
        ]
        made = [
            part._driver.run(make_receipt(account, task.name, None))
            for part, account in zip(parts, accounts, strict=True)
        ]
    sums = {one.round.release.aggregate_digest for one in made if one.round is not None}
    assert sums == {next(operator.rounds(task.task_id)).aggregate_digest}
    assert len({one.round.places[0].index for one in made if one.round is not None}) == USERS
    files = [tmp_path / f"{place}.json" for place in range(USERS)]
    for file, one in zip(files, made, strict=True):
        checked = check_receipt(one)
        assert (checked.verdict, checked.certified) == ("counted", mechanism != "plain")
        file.write_text(one.model_dump_json())
    key = operator.task(task.task_id).receipt_key or ""
    status, out, err = verified(*map(str, files), "--server-key", key)
    assert (status, err, out.count("is in the sum")) == (0, "", USERS)


def test_one_shot_members_show_it_too(server: AggregatorProcess, operator: Operator) -> None:
    """They send one message and see no set of survivors: the server alone says who was counted."""
    task = small_task(operator, "oneshot-receipts", users=USERS, mechanism="oneshot", rounds=1)
    with enrolled_fleet(server.url, task, interactions(USERS)) as fleet:
        fleet.run()
        for part in fleet._clients:
            member = part.member
            record = member.store.contributions(task.task_id)[1]
            assert (len(record.signature), record.confirmed) == (86, "")
            ended = fleet._run(member.calls.round_receipt(task.task_id, 1))
            assert ended.release.survivors == USERS


def test_the_command_saves_and_checks_receipts(
    server: AggregatorProcess, operator: Operator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the identity and its records are on the device, with the sum downloaded apart, and each fact altered."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "home"))
    key, file, task = (
        tmp_path / "me.key",
        tmp_path / "receipt.json",
        small_task(operator, "shown", users=USERS, mechanism="masked"),
    )
    own = ("--task", "shown", "--identity", str(key))
    with (
        joined(server.url, task, USERS - 1) as others,
        Client(server.url, Identity.load_or_create(key), policy=TRUSTING) as client,
    ):
        mine = task.join(client)
        status, _, err = hushrec("receipt", "export", str(file), *own)
        assert status == 1
        assert "it has those of rounds: none" in err
        take_part_together([mine, *others], interactions(USERS))
        assert client.receipt("shown").acknowledged.round == 2

        async def asynchronous() -> Receipt:
            account = client._account
            async with AsyncClient(server.url, account.identity, account.store.store) as other:
                return await other.receipt("shown", 1)

        first = asyncio.run(asynchronous())
        assert first.acknowledged.round == 1
        status, out, _ = hushrec("receipt", "export", str(file), *own, "--round", "1", "--to", "an auditor")
        assert (status, "is in the sum that the server released" in out) == (0, True)
        with pytest.raises(ParameterError, match="at most 200"):
            client.receipt("shown", 1, "a" * 201)
        store = client._account.store
        honest = store.contributions(task.task_id)[1]
        assert len(honest.confirmed) == 64
        for changed, text in (
            (replace(honest, confirmed="0" * 64), "another set of survivors"),
            (replace(honest, digest="0" * 64), "did not sign the acknowledgement"),
        ):
            store.record_contribution(task.task_id, 1, changed)
            with pytest.raises(ContractBroken, match=text):
                client.receipt("shown", 1)
        aggregate = tmp_path / "sum.bin"
        released = next(operator.rounds(task.task_id))
        facts = task.task_id, 1, released.aggregate_bytes or 0, released.aggregate_digest
        aggregate.write_bytes(client._driver.run(mine.part.member.calls.aggregate(*facts)))
    receipt_key, organiser = operator.task(task.task_id).receipt_key or "", first.organiser
    assert organiser is not None
    good = ("--server-key", receipt_key, "--organiser-key", organiser.key, "--aggregate", str(aggregate))
    status, out, err = verified(str(file), *good)
    assert (status, err) == (0, "")
    assert "valid. The contribution to round 1" in out
    assert "an auditor" in out
    (facts,) = json.loads(verified(str(file), "--json")[1])
    assert (facts["verdict"], facts["survivors"], facts["certified"]) == ("counted", USERS, True)
    aggregate.write_bytes(b"another sum")
    other = first.identity_key
    for options, text in (
        (("--server-key", other), "which is not the key given"),
        (("--organiser-key", other), "did not certify"),
        (("--aggregate", str(aggregate)), "is of another sum"),
    ):
        status, _, err = verified(str(file), *options)
        assert (status, text in err) == (1, True), (options, err)
    file.write_text(file.read_text().replace("an auditor", "somebody"))
    status, _, err = verified(str(file))
    assert (status, "was altered" in err) == (1, True)


def test_two_receipts_that_prove_a_lie_are_named(tmp_path: Path) -> None:
    files = [tmp_path / name for name in ("mine.json", "yours.json")]
    files[0].write_text(shown(ended(MEMBERS[1:])).model_dump_json())
    files[1].write_text(shown(ended(MEMBERS, MEMBERS[1]), MEMBERS[1]).model_dump_json())
    status, out, err = verified(*map(str, files))
    assert (status, "is NOT in the sum" in out, "two different ends of one round" in err) == (1, True, True)
    failed = tmp_path / "failed.json"
    failed.write_text(shown(ended([])).model_dump_json())
    status, out, _ = verified(str(failed))
    assert (status, "the round failed" in out) == (0, True)
    status, _, err = verified(str(failed), "--aggregate", str(files[0]))
    assert (status, "names no released sum" in err) == (1, True)


class AlmostOneRound:
    """A member with a signed acknowledgement of round 3, and a server that answers `said` when it is asked for more."""

    def __init__(self, said: Response) -> None:
        self.account = Account.at("https://server.example", Identity.generate(), MemoryStore())
        identity, store = self.account.identity, self.account.store
        store.keep_membership(Membership(self.account.calls.url, TASK, "movies", "c_me", "member", "hrc_token"))
        view = task_view(receipt_key=b64encode(public(SERVER)))
        store.keep_agreed(TASK, AgreedTerms.of(view))
        stated = acknowledge(SERVER, identity.public_key, TASK, ROUND, SENT, 100)
        store.record_contribution(TASK, ROUND, OwnContribution(SENT, True, 100, stated.signature))
        self.runner = ProgramRunner(lambda _: said)

    def receipt(self) -> Receipt:
        made = self.runner.run(make_receipt(self.account, None, None))
        assert isinstance(made, Receipt)
        return made


@pytest.mark.parametrize("slug", ["conflict", "not-found"])
def test_an_acknowledgement_stands_alone_while_the_server_says_nothing_else(slug: str) -> None:
    assert check_receipt(AlmostOneRound(problem(slug)).receipt()).verdict == "acknowledged"


def test_an_answer_that_is_not_signed_by_the_key_in_the_terms_is_refused() -> None:
    for said, text in (
        (ended(MEMBERS, key=ORGANISER), "did not sign how the round ended"),
        (ended(MEMBERS, number=ROUND + 1), "of different rounds"),
    ):
        with pytest.raises(ContractBroken, match=text):
            AlmostOneRound(Response(200, {}, said.model_dump_json().encode())).receipt()


def test_a_task_of_an_earlier_version_has_no_receipts() -> None:
    """Its members contribute as before."""
    one = AlmostOneRound(problem("not-found"))
    one.account.store.keep_agreed(TASK, AgreedTerms.of(task_view()))
    with pytest.raises(ParameterError, match="signs no acknowledgements"):
        one.receipt()


@pytest.mark.parametrize("signer", [None, ORGANISER, SERVER])
def test_an_acknowledgement_without_the_promised_signature_breaks_the_contract(
    signer: Ed25519PrivateKey | None,
) -> None:
    """The member notes that it was not acknowledged, and says so."""
    terms = terms_of("plain")
    keyed = replace(terms, view=terms.view.model_copy(update={"receipt_key": b64encode(public(SERVER))}))
    member = OneMember(keyed, None, {1: aggregate_of(terms, None)})

    def answer(request: Request) -> Response:
        if "/contributions/" not in request.url or signer is None:
            return member._answer(request)
        digest, length = hashlib.sha256(request.body).hexdigest(), len(request.body)
        stated = acknowledge(signer, member.identity.public_key, TASK, 2, digest, length)
        receipt = UploadReceipt(round=2, client_id="c_me", bytes=length, digest=digest, signature=stated.signature)
        return Response(201, {}, receipt.model_dump_json().encode())

    member.runner = ProgramRunner(answer)
    if signer is SERVER:
        member.runner.run(play(member.part, member.asked, HISTORY))
    else:
        with pytest.raises(ContractBroken, match="without the signature"):
            member.runner.run(play(member.part, member.asked, HISTORY))
    record = member.store.contributions(TASK)[2]
    assert (record.acknowledged, bool(record.signature)) == (signer is SERVER, signer is SERVER)
