"""`python -m client_sdk.cli` runs the command `hushrec` without an installed script."""

from __future__ import annotations

from client_sdk.cli import main

if __name__ == "__main__":
    main()
