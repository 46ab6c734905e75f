"""A member's receipt of one contribution: made from its own records and what the server signs, and checked."""

from __future__ import annotations

from client_sdk.api.requests import or_none
from client_sdk.api.wire import Program
from client_sdk.errors import Conflict, ContractBroken
from client_sdk.rounds.account import Account, find_membership, own_calls
from protocols.codec import b64encode
from protocols.errors import ParameterError, ReceiptError
from protocols.messages.receipts import LONGEST_AUDIENCE, Acknowledged, Receipt
from protocols.receipts import show_receipt


def make_receipt(account: Account, task: str | None, number: int | None, audience: str = "") -> Program[Receipt]:
    """Return the receipt of this identity's contribution to a round, signed for `audience`.

    task: name or id; None for the only stored membership. number: of the round; None for the last one to which the
    server acknowledged a contribution. The server is asked how the round ended; while it goes on, or where it no longer
    keeps who contributed, the receipt holds the acknowledgement alone. Raises `NotEnrolled`; `ParameterError`
    where there is nothing to show; `ContractBroken` if the server's answer is not signed as the terms say, or is about
    other survivors than this device confirmed in a masked round.
    """
    if len(audience) > LONGEST_AUDIENCE:
        raise ParameterError(f"the text for whom a receipt is has at most {LONGEST_AUDIENCE} characters")
    membership = find_membership(account, task)
    task_id, name, identity = membership.task_id, membership.task_name, account.identity
    agreed, records = account.store.agreed(task_id), account.store.contributions(task_id)
    if agreed is None or agreed.receipt_key is None:
        raise ParameterError(
            f"the server of task {name!r} signs no acknowledgements: the task was made without receipts"
        )
    signed = [each for each, record in records.items() if record.signature]
    number = number or max(signed, default=0)
    if number not in signed:
        of = f"round {number}" if number else "any round"
        raise ParameterError(
            f"this device has no signed acknowledgement of a contribution to {of} of task {name!r}; "
            f"it has those of rounds: {', '.join(map(str, sorted(signed))) or 'none'}"
        )
    record, calls = records[number], own_calls(account, membership)
    try:
        ended = yield from or_none(calls.round_receipt(task_id, number))
    except Conflict:
        ended = None  # the round goes on
    url = f"/v1/tasks/{task_id}/rounds/{number}/receipt"
    released = None if ended is None or ended.release.aggregate_digest is None else ended.release.survivors_digest
    if released is not None and record.confirmed not in ("", released):
        detail = "the server signed another set of survivors than this device confirmed in the round"
        raise ContractBroken("GET", url, 200, detail)
    unsigned = Receipt(
        server_key=agreed.receipt_key,
        identity_key=b64encode(identity.public_key),
        mailbox_key=b64encode(identity.mailbox_key),
        organiser=agreed.organiser,
        certificate=None if membership.certificate is None else b64encode(membership.certificate),
        acknowledged=Acknowledged(
            task_id=task_id, round=number, digest=record.digest, bytes=record.bytes, signature=record.signature
        ),
        round=ended,
        audience=audience,
        signature=b64encode(bytes(64)),
    )
    try:
        return show_receipt(identity.signing_key, unsigned)
    except ReceiptError as error:
        raise ContractBroken("GET", url, 200, str(error)) from error
