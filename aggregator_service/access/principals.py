"""Who makes a request: an operator, or a client enrolled in one task."""

from __future__ import annotations

from dataclasses import dataclass, field

from protocols.messages import OperatorRole, Role

__all__ = [
    "Enrolled",
    "Operator",
    "Principal",
]


@dataclass(frozen=True)
class Operator:
    """Somebody who runs the aggregator; `name` is the token's."""

    name: str
    role: OperatorRole


@dataclass(frozen=True, slots=True)
class Enrolled:
    """A client of one task. identity_key: the Ed25519 key that it signs with, 32 bytes."""

    client_id: str
    task_id: str
    role: Role
    device_group: int = 0
    identity_key: bytes = field(default=b"", repr=False)


Principal = Operator | Enrolled
