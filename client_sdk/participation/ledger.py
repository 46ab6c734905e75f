"""Which released sums contain this client's data: the server's word, beside what the client noted down itself.

A server that means ill can leave sums out of its ledger; it cannot make this client forget what it has sent. So every
contribution is noted here before it leaves, and the two lists are compared.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from client_sdk.api.calls import ApiCalls
from client_sdk.api.effects import Program
from client_sdk.local_state.store import ClientStore, OwnContribution
from protocols.messages import LedgerEntry

__all__ = ["OwnLedger", "deliver", "read_ledger"]


@dataclass(frozen=True)
class OwnLedger:
    """The sums that contain this client's data, by the server; `warnings` say where its own notes differ."""

    task_id: str
    task_name: str
    entries: tuple[LedgerEntry, ...]
    warnings: tuple[str, ...]


def deliver(
    calls: ApiCalls, client_store: ClientStore, task_id: str, number: int, client_id: str, body: bytes
) -> Program[None]:
    """Upload a contribution, noted down before it leaves: a lost answer does not mean that it was not counted."""
    digest = hashlib.sha256(body).hexdigest()
    client_store.note_contribution(task_id, number, OwnContribution(digest, acknowledged=False))
    yield from calls.contribute(task_id, number, client_id, body)
    client_store.note_contribution(task_id, number, OwnContribution(digest, acknowledged=True))


def read_ledger(calls: ApiCalls, client_store: ClientStore, task_id: str, task_name: str) -> Program[OwnLedger]:
    """The ledger of one task, compared with this client's own notes."""
    entries: list[LedgerEntry] = []
    while True:
        page = yield from calls.own_ledger(task_id, entries[-1].round if entries else 0)
        entries += page.entries
        if not page.more or not page.entries:
            break
    noted = client_store.contributions(task_id)
    warnings = [text for entry in entries if (text := _differs(entry, noted.get(entry.round)))]
    listed = {entry.round for entry in entries}
    for number in sorted(noted.keys() - listed):
        if noted[number].acknowledged and (yield from calls.round(task_id, number)).state == "complete":
            warnings.append(
                f"round {number}: the server acknowledged a contribution and released the sum, but does not list it"
            )
    return OwnLedger(task_id, task_name, tuple(entries), tuple(warnings))


def _differs(entry: LedgerEntry, noted: OwnContribution | None) -> str | None:
    if noted is None:
        return f"round {entry.round}: the server lists a contribution that this device has not noted down"
    if noted.digest != entry.contribution_digest:
        return f"round {entry.round}: what the server counted is not what this device has sent"
    return None
