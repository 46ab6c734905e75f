"""Many clients in one process: the fleet, a federation without a server, traffic costs."""

from __future__ import annotations
