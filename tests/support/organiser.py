"""The organiser of the tests' tasks: it certifies whoever asks."""

from __future__ import annotations

from client_sdk.organiser import TrialOrganiser

__all__ = ["TRIAL"]

TRIAL = TrialOrganiser("tests")
