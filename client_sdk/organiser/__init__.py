"""The organiser: certifies the keys of an app's members. Run it apart from the aggregator.

The issuing endpoint is `client_sdk.organiser.app.create_issuer`, which needs FastAPI.
"""

from __future__ import annotations

from client_sdk.organiser.organiser import Organiser, TrialOrganiser

__all__ = ["Organiser", "TrialOrganiser"]
