"""Run fault schedules: python -m tests.simulation --help"""

from __future__ import annotations

import sys

from tests.simulation.runner import run
from tests.simulation.world import FAULTY

if __name__ == "__main__":
    sys.exit(run(FAULTY, sys.argv[1:]))
