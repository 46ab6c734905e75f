"""The command `hushrec`. `app` lists its subcommands; docs/cli.md describes them."""

from __future__ import annotations

from client_sdk.cli.app import app, main

__all__ = ["app", "main"]
