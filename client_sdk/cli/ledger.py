"""`hushrec ledger`: which released sums contain the user's data, and data of how many others."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Annotated

import typer
from rich.markup import escape

from client_sdk.cli.console import console, stderr, table
from client_sdk.cli.membership import READ_ONLY, AllowHttp, IdentityFile, TaskName, kept_membership, load_identity
from client_sdk.client import Client
from client_sdk.local_state.client_store import ClientStore, Membership
from client_sdk.local_state.identity import Identity
from client_sdk.local_state.stores import default_store
from client_sdk.participation.enroller import ClientOptions
from client_sdk.participation.ledger import OwnLedger
from protocols.messages import LedgerEntry

__all__ = ["ledger"]


def ledger(
    task: TaskName = None,
    identity: IdentityFile = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of the tables.")] = False,
    allow_http: AllowHttp = False,
) -> None:
    """List the released sums that contain your data, and compare them with the records on this device.

    Prints a warning for each sum that differs from the local record.

    Example: hushrec ledger --task movies
    """
    me = load_identity(identity)
    found = [_fetch(me, membership, ClientOptions(allow_http=allow_http)) for membership in _memberships(me, task)]
    if as_json:
        typer.echo(json.dumps([_as_json(one) for one in found], indent=2))
    else:
        for one in found:
            title = f"{escape(one.task_name)} ({one.task_id}): {len(one.entries)} sums with your data"
            headings = ("sum", "round", "recipe", "mechanism", "others", "released")
            console.print(table(title, headings, [_row(entry) for entry in one.entries]))
    for one in found:
        for warning in one.warnings:
            stderr.print(f"[yellow]warning:[/] {escape(one.task_name)}, {warning}", highlight=False, soft_wrap=True)


def _memberships(me: Identity, task: str | None) -> list[Membership]:
    kept = ClientStore(default_store(), me.fingerprint).memberships()
    return kept if task is None and kept else [kept_membership(me, task)]


def _fetch(me: Identity, membership: Membership, options: ClientOptions) -> OwnLedger:
    with Client(membership.url, me, policy=READ_ONLY, options=options) as client:
        return client.ledger(membership.task_id)


def _row(entry: LedgerEntry) -> tuple[str, ...]:
    released = datetime.fromtimestamp(entry.released_at).astimezone().strftime("%Y-%m-%d %H:%M")
    others = str(entry.survivors - 1)
    return str(entry.step), str(entry.round), entry.recipe, entry.mechanism, others, released


def _as_json(one: OwnLedger) -> dict[str, object]:
    return {
        "task_id": one.task_id,
        "task_name": one.task_name,
        "sums": [{**entry.model_dump(), "others": entry.survivors - 1} for entry in one.entries],
        "warnings": list(one.warnings),
    }
