"""The signed acknowledgement of a contribution, for the member's receipt (`protocols.receipts`)."""

from __future__ import annotations

from dataclasses import replace

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from sqlalchemy import select
from starlette.concurrency import run_in_threadpool

from aggregator_service.services import Services
from aggregator_service.storage.schema import TaskRow
from aggregator_service.tasks.receipts import signing_key
from aggregator_service.uploads.admission import Admission
from aggregator_service.uploads.contributions import UploadOutcome
from protocols.receipts import acknowledge


async def signed(services: Services, admission: Admission, outcome: UploadOutcome) -> UploadOutcome:
    """Return the outcome of an upload with the receipt signed; as it is in a task without a receipt key.

    Called once the contribution is durable. The same contribution gets the same signature: Ed25519 has no randomness.
    """
    task_id, member, receipt = admission.round.task_id, admission.client, outcome.receipt
    if task_id not in services.receipt_keys:
        services.receipt_keys[task_id] = await run_in_threadpool(_key_of, services, task_id)
    key = services.receipt_keys[task_id]
    if key is None:
        return outcome
    stated = acknowledge(key, member.identity_key, task_id, receipt.round, receipt.digest, receipt.bytes)
    return replace(outcome, receipt=receipt.model_copy(update={"signature": stated.signature}))


def _key_of(services: Services, task_id: str) -> Ed25519PrivateKey | None:
    with services.database.read() as session:
        seed = session.scalar(select(TaskRow.receipt_seed).where(TaskRow.id == task_id))
    return None if seed is None else signing_key(bytes(seed))
