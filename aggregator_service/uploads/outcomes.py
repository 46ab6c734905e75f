"""What storing an upload leads to. Refusals are `Problem`s."""

from __future__ import annotations

from dataclasses import dataclass

from protocols.messages import UploadReceipt

__all__ = ["AlreadyStored", "Stored", "UploadOutcome"]


@dataclass(frozen=True)
class Stored:
    """This request stored the upload."""

    receipt: UploadReceipt


@dataclass(frozen=True)
class AlreadyStored:
    """An earlier request stored the same bytes; nothing changed."""

    receipt: UploadReceipt


UploadOutcome = Stored | AlreadyStored
