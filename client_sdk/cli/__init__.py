"""The command `hushrec`. `app` lists its subcommands; scripts/reference_pages.py describes them."""

from __future__ import annotations

from client_sdk.cli.app import app, main

__all__ = ["app", "main"]
