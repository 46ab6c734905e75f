"""`python -m client_sdk.cli`: the command where no script is installed."""

from __future__ import annotations

from client_sdk.cli import main

if __name__ == "__main__":
    main()
