"""The organiser: whoever publishes the app certifies its members' keys. Never run this beside the aggregator."""

from __future__ import annotations

from client_sdk.organiser.app import NotAuthorised, create_issuer
from client_sdk.organiser.organiser import Organiser

__all__ = ["NotAuthorised", "Organiser", "create_issuer"]
