"""`hushrec receipt`: save a proof of what became of a contribution, and check the one that somebody shows."""

from __future__ import annotations

import hashlib
import json
from itertools import combinations
from pathlib import Path
from typing import Annotated, Final

import typer
from typer import Argument, Option

from client_sdk.cli.common import AsJson, command_group, expiry_text, fail, say
from client_sdk.cli.membership import READ_ONLY, AllowHttp, IdentityFile, TaskName, kept_membership, load_identity
from client_sdk.client import Client
from client_sdk.rounds.account import ClientOptions
from protocols.codec import b64decode
from protocols.crypto.certificates import Certificate
from protocols.errors import ReceiptError
from protocols.receipts import CheckedReceipt, Verdict, check_receipt, contradiction, read_receipt

receipt: Final = command_group("Prove that a contribution was in a released sum, or that the server left it out.")

_WORDS: Final[dict[Verdict, str]] = {
    "counted": "is in the sum that the server released",
    "omitted": "was acknowledged, and is NOT in the sum that the server released",
    "failed": "was acknowledged, and the round failed: no sum of it was released",
    "acknowledged": "was acknowledged; the server has not said how the round ended",
}


@receipt.command("export")
def export(
    file: Annotated[Path, Argument(help="File to write, as JSON.")],
    task: TaskName = None,
    number: Annotated[int | None, Option("--round", min=1, help="Round.", show_default="the last one")] = None,
    audience: Annotated[str, Option("--to", help="To whom you show it, or why: is signed with the rest.")] = "",
    identity: IdentityFile = None,
    allow_http: AllowHttp = False,
) -> None:
    """Save the receipt of your contribution to a round. It holds no secret and nothing of your data.

    Do it soon: the server keeps who contributed for a limited number of rounds.

    Example: hushrec receipt export receipt.json --task movies --to "the data protection officer"
    """
    me = load_identity(identity)
    membership, options = kept_membership(me, task), ClientOptions(allow_http=allow_http)
    with Client(membership.url, me, policy=READ_ONLY, options=options) as client:
        made = client.receipt(membership.task_id, number, audience)
    file.write_text(made.model_dump_json(indent=1) + "\n", encoding="utf-8")
    say(f"{file}: round {made.acknowledged.round}: the contribution {_WORDS[check_receipt(made).verdict]}")


@receipt.command("verify")
def verify(
    files: Annotated[list[Path], Argument(help="Receipts; two of one round are compared.")],
    server_key: Annotated[
        str | None, Option("--server-key", help="The task's receipt key, as its operator publishes it.")
    ] = None,
    organiser_key: Annotated[str | None, Option("--organiser-key", help="Key of the organiser of members.")] = None,
    aggregate: Annotated[Path | None, Option("--aggregate", help="File of the released sum.")] = None,
    as_json: AsJson = False,
) -> None:
    """Check receipts without a server: signatures, places in the signed set, digests, and that they agree.

    The exit code is 1 for a receipt that is not valid, for keys or an aggregate
    other than those given, and for two that prove that the server lied. It is 0
    for a valid receipt, whatever it says became of the contribution.

    Example: hushrec receipt verify receipt.json --server-key KEY
    """
    checked = [_checked(file, server_key, organiser_key, aggregate) for file in files]
    if as_json:
        typer.echo(json.dumps([_facts(file, one) for file, one in zip(files, checked, strict=True)], indent=2))
    else:
        for file, one in zip(files, checked, strict=True):
            _print(file, one, server_key, organiser_key)
    for (first, one), (second, other) in combinations(zip(files, checked, strict=True), 2):
        lie = contradiction(one.receipt, other.receipt)
        if lie is not None:
            fail(f"{first} and {second} together prove it: {lie}")


def _checked(file: Path, server_key: str | None, organiser_key: str | None, aggregate: Path | None) -> CheckedReceipt:
    try:
        one = check_receipt(read_receipt(file.read_bytes()))
    except ReceiptError as error:
        raise ReceiptError(f"{file}: {error}") from None
    shown, ended = one.receipt, one.receipt.round
    if server_key is not None and shown.server_key != server_key:
        raise ReceiptError(f"{file}: signed with {shown.server_key}, which is not the key given with --server-key")
    certified_by = shown.organiser.key if one.certified and shown.organiser is not None else None
    if organiser_key not in (None, certified_by):
        raise ReceiptError(f"{file}: the organiser with the key given did not certify this member")
    if aggregate is not None:
        released = None if ended is None else ended.release.aggregate_digest
        if released is None:
            raise ReceiptError(f"{file}: names no released sum to compare {aggregate} with")
        with aggregate.open("rb") as opened:
            if hashlib.file_digest(opened, "sha256").hexdigest() != released:
                raise ReceiptError(f"{file}: is of another sum than {aggregate}")
    return one


def _facts(file: Path, one: CheckedReceipt) -> dict[str, object]:
    shown, ended = one.receipt, one.receipt.round
    return {
        "file": str(file),
        "verdict": one.verdict,
        "task_id": shown.acknowledged.task_id,
        "round": shown.acknowledged.round,
        "contribution_digest": shown.acknowledged.digest,
        "survivors": None if ended is None else ended.release.survivors,
        "aggregate_digest": None if ended is None else ended.release.aggregate_digest,
        "identity_key": shown.identity_key,
        "certified": one.certified,
        "server_key": shown.server_key,
        "audience": shown.audience,
    }


def _print(file: Path, one: CheckedReceipt, server_key: str | None, organiser_key: str | None) -> None:
    shown, ended = one.receipt, one.receipt.round
    of = shown.acknowledged
    say(f"{file}: valid. The contribution to round {of.round} of task {of.task_id} {_WORDS[one.verdict]}.")
    say(f"  contribution  sha-256 {of.digest}, {of.bytes:,} bytes")
    if ended is not None and ended.release.aggregate_digest is not None:
        say(f"  released sum  sha-256 {ended.release.aggregate_digest}, of {ended.release.survivors} clients")
    say(f"  member        {shown.identity_key}, {_certified(one)}")
    say(f"  shown to      {shown.audience or '(nobody in particular)'}")
    say(f"  signed with   {shown.server_key}{'' if server_key else ': compare it with what the operator publishes'}")
    if one.certified and organiser_key is None and shown.organiser is not None:
        say(f"  organiser     {shown.organiser.key}, scope {shown.organiser.scope}: compare it, too")


def _certified(one: CheckedReceipt) -> str:
    if not one.certified or one.receipt.certificate is None:
        return "certified by nobody"
    return f"certified until {expiry_text(Certificate.decode(b64decode(one.receipt.certificate)).not_after)}"
