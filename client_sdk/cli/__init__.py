"""The command `hushrec`: demo, join, recommend, evaluate, cost, data, doctor, keyring."""

from __future__ import annotations

from client_sdk.cli.root import app, main

__all__ = ["app", "main"]
