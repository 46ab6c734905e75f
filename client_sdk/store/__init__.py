"""A client's files: identity, memberships, keyrings and states, readable by their owner only."""

from __future__ import annotations
