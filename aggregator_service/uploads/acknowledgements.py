"""The signed acknowledgement of a contribution, for the member's receipt (`protocols.receipts`)."""

from __future__ import annotations

from dataclasses import replace

from aggregator_service.tasks.receipts import signing_key
from aggregator_service.uploads.checks import Admission
from aggregator_service.uploads.new_contributions import UploadOutcome
from protocols.receipts import acknowledge


def signed(admission: Admission, outcome: UploadOutcome) -> UploadOutcome:
    """Return the outcome of an upload with the receipt signed; as it is in a task without a receipt key.

    Called once the contribution is durable. The same contribution gets the same signature: Ed25519 has no randomness.
    """
    if admission.receipt_seed is None:
        return outcome
    key, member, receipt = signing_key(admission.receipt_seed), admission.client, outcome.receipt
    where = admission.round.task_id, receipt.round
    stated = acknowledge(key, member.identity_key, *where, receipt.digest, receipt.bytes)
    return replace(outcome, receipt=receipt.model_copy(update={"signature": stated.signature}))
