"""Run schedules of lies: python -m tests.simulation.lying_server --help"""

from __future__ import annotations

import sys

from tests.simulation.lying_server.runner import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
