"""Searches all states of every instance of the models, and all mutants.

python -m tests.model             all instances: half a minute to two minutes
python -m tests.model committee   those whose name contains the word

Needs Spin and GCC. Exit status 1 if a claim does not hold, or holds without its defence.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

from tests.model.models import INSTANCES, Instance, build, search
from tests.support.needs import NEEDS


def main(arguments: list[str]) -> int:
    """Run the instances that the arguments name, print a line for each search, and return the exit status."""
    spin = NEEDS["spin"].find()
    if spin is None:
        raise SystemExit(NEEDS["spin"].reason)
    wrong = 0
    for instance in INSTANCES:
        if all(word in instance.name for word in arguments):
            with tempfile.TemporaryDirectory() as folder:
                wrong += _run(instance, spin, Path(folder))
    return int(wrong > 0)


def _run(instance: Instance, spin: str, folder: Path) -> int:
    """Search an instance and its mutants, print the outcomes, and return how many were not as expected."""
    program, wrong = build(instance, spin, folder), 0
    alone: dict[str, str | None] = dict.fromkeys(instance.in_depth)
    for without, expected in {"": instance.fails, **alone, **instance.mutants}.items():
        started = time.monotonic()
        outcome = search(instance, program, without)
        right = outcome.broken == expected
        wrong += not right
        print(
            f"{instance.name:<32} {f'without {without}' if without else '':<30} {outcome.states:>9,} states "
            f"{time.monotonic() - started:6.1f} s  {outcome.broken or 'all claims hold'}"
            + ("" if right else f"   WRONG: expected {expected or 'no claim to break'}"),
            flush=True,
        )
    return wrong


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
