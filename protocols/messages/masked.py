"""What a masked sum would cost and bear, before there is a task."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from protocols.messages.base import Message

__all__ = ["MaskedForecast"]


class MaskedForecast(Message):
    """Neighbours and threshold of a masked round, what may still go wrong, and the bytes of each client."""

    clients: int
    degree: int = Field(description="Neighbours among which each client shares its secrets.")
    threshold: int = Field(description="Shares that open a secret: so many neighbours must answer.")
    mode: Literal["curious", "semi-malicious"]
    log2_disconnected: float | None = Field(
        description="log2 of the probability that honest survivors fall into parts; null: impossible."
    )
    log2_too_many_corrupt: float | None = Field(
        description="log2 of the probability that somebody's secret is the colluders' alone; null: impossible."
    )
    log2_too_few_survivors: float | None = Field(
        description="log2 of the probability that the round fails; null: impossible."
    )
    sent: dict[str, int] = Field(description="Bytes that a client sends, by stage.")
    received: dict[str, int] = Field(description="Bytes that a client is handed, by what they are.")
