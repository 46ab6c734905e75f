"""Run schedules of lies: python -m tests.simulation.lying_server --help"""

from __future__ import annotations

import sys

from tests.simulation.lying_server.play import LYING
from tests.simulation.runner import run

if __name__ == "__main__":
    sys.exit(run(LYING, sys.argv[1:]))
