"""The organiser: whoever publishes the app certifies its members' keys. Never run this beside the aggregator."""

from __future__ import annotations

from client_sdk.organiser.app import NotAuthorised, create_issuer
from client_sdk.organiser.organiser import Organiser
from client_sdk.organiser.trial import TrialOrganiser

__all__ = ["NotAuthorised", "Organiser", "TrialOrganiser", "create_issuer"]
