"""Taking part in a task: rounds, masked rounds, the keyring, enrolment, the ledger and events."""

from __future__ import annotations
