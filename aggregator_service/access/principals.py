"""Principals: who makes a request, an operator or a client enrolled in one task."""

from __future__ import annotations

from dataclasses import dataclass, field

from protocols.messages import OperatorRole, Role

__all__ = ["Enrolled", "Operator", "Principal"]


@dataclass(frozen=True)
class Operator:
    """An operator of the aggregator. name: the name of the token, `environment` for the one in the settings."""

    name: str
    role: OperatorRole


@dataclass(frozen=True, slots=True)
class Enrolled:
    """A client of one task.

    device_group: its device group, 0 in tasks without groups. identity_key: its Ed25519 public key, 32 bytes.
    """

    client_id: str
    task_id: str
    role: Role
    device_group: int = 0
    identity_key: bytes = field(default=b"", repr=False)


Principal = Operator | Enrolled
"""Whoever makes an authenticated request."""
