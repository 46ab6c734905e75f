"""The demo: train through a server process with many clients, in several ways, and report the results."""

from __future__ import annotations
