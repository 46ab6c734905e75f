"""The predicted cost and failure probabilities of a masked sum, before a task is created."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from protocols.messages.base import Message

__all__ = ["MaskedForecast"]


class MaskedForecast(Message):
    """Neighbours and threshold of a masked round, its failure probabilities, and the bytes per client."""

    clients: int = Field(description="Clients in the round.")
    degree: int = Field(description="Neighbours with whom each client shares its secrets.")
    threshold: int = Field(description="Shares needed to reconstruct a secret: as many neighbours must answer.")
    mode: Literal["curious", "semi-malicious"] = Field(description="Behaviour of the server that the round withstands.")
    log2_disconnected: float | None = Field(
        description="log2 of the probability that the graph of honest survivors falls apart; null: impossible."
    )
    log2_too_many_corrupt: float | None = Field(
        description="log2 of the probability that colluding neighbours can reconstruct a secret; null: impossible."
    )
    log2_too_few_survivors: float | None = Field(
        description="log2 of the probability that too few clients survive and the round fails; null: impossible."
    )
    sent: dict[str, int] = Field(description="Bytes that a client sends, by stage.")
    received: dict[str, int] = Field(description="Bytes that a client receives, by message.")
