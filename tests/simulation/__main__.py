"""Run fault schedules: python -m tests.simulation --help"""

from __future__ import annotations

import sys

from tests.simulation.runner import run_faults

if __name__ == "__main__":
    sys.exit(run_faults(sys.argv[1:]))
