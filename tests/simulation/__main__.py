"""Run fault schedules: python -m tests.simulation --help"""

from __future__ import annotations

import sys

from tests.simulation.runner import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
