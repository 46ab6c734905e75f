"""The released sums that contain this client's data: the server's list, compared with the client's own records.

A malicious server can omit sums from its ledger, but it cannot change this client's records. So each contribution is
recorded before it is sent, and the two lists are compared.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass

from client_sdk.api.calls import ApiCalls
from client_sdk.api.wire import Program
from client_sdk.errors import NotFound
from client_sdk.rounds.member import Member
from client_sdk.store.client_store import ClientStore, OwnContribution
from protocols.messages import LedgerEntry

__all__ = [
    "OwnLedger",
    "deliver",
    "read_ledger",
]


@dataclass(frozen=True)
class OwnLedger:
    """The released sums that contain this client's data.

    entries: the server's list, in order of rounds. warnings: where the client's own records differ from it.
    """

    task_id: str
    task_name: str
    entries: tuple[LedgerEntry, ...]
    warnings: tuple[str, ...]


def deliver(member: Member, number: int, body: bytes, statements: Mapping[str, str] | None = None) -> Program[None]:
    """Record a contribution, then upload it: if the answer is lost, the contribution may still have been counted.

    statements: see `ApiCalls.contribute`. Raises what `ApiCalls.contribute` raises.
    """
    digest, task_id = hashlib.sha256(body).hexdigest(), member.task_id
    member.store.record_contribution(task_id, number, OwnContribution(digest, acknowledged=False))
    yield from member.calls.contribute(task_id, number, member.client_id, body, statements)
    member.store.record_contribution(task_id, number, OwnContribution(digest, acknowledged=True))


def read_ledger(calls: ApiCalls, client_store: ClientStore, task_id: str, task_name: str) -> Program[OwnLedger]:
    """Fetch this client's ledger of one task and compare it with its own records."""
    entries: list[LedgerEntry] = []
    while True:
        page = yield from calls.own_ledger(task_id, entries[-1].round if entries else 0)
        entries += page.entries
        if not page.more or not page.entries:
            break
    recorded = client_store.contributions(task_id)
    warnings = [text for entry in entries if (text := _difference(entry, recorded.get(entry.round)))]
    listed = {entry.round for entry in entries}
    for number in sorted(recorded.keys() - listed):
        if not recorded[number].acknowledged:
            continue
        try:
            is_released = (yield from calls.round(task_id, number)).state == "complete"
        except NotFound:
            warnings.append(
                f"round {number}: the server acknowledged a contribution, and does not know the round: it was restored "
                "from a backup"
            )
            continue
        if is_released:
            warnings.append(
                f"round {number}: the server acknowledged a contribution and released the sum, but does not list it"
            )
    return OwnLedger(task_id, task_name, tuple(entries), tuple(warnings))


def _difference(entry: LedgerEntry, recorded: OwnContribution | None) -> str | None:
    if recorded is None:
        return f"round {entry.round}: the server lists a contribution that this device has no record of"
    if recorded.digest != entry.contribution_digest:
        return f"round {entry.round}: the server counted a contribution other than the one that this device sent"
    return None
