"""Run schedules of lies: python -m tests.simulation.lying_server --help"""

from __future__ import annotations

import sys

from tests.simulation.runner import run_lies

if __name__ == "__main__":
    sys.exit(run_lies(sys.argv[1:]))
