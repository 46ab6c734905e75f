"""Mutation testing: change the code in small ways, run the tests that call it, and list the changes that none notices.

    python scripts/mutants.py                        every group
    python scripts/mutants.py masked crypto          some groups
    python scripts/mutants.py masked --only 'protocols.sums.masked.shamir*'  mutants of one module, as mutmut names them
    python scripts/mutants.py --sample 60                                    60 mutants a group, drawn at random

Needs mutmut (the extra `mutants`) and fork. Each group has a working copy in .mutants/, where mutmut keeps its results:
a second run tests only the mutants of functions that changed. Delete the copy after a change of the tests alone.
For each mutant mutmut runs those tests of the group that call the function, in as many processes as there are cores.
A sample is the same in every run on the same code; the score has a 95 % interval (Wilson).
Exit status 1 if the tests fail without a mutant; survivors are no failure.
"""

from __future__ import annotations

import argparse
import collections
import json
import shutil
import subprocess
import sys
from math import sqrt
from pathlib import Path
from typing import Final

import numpy as np

GENERAL: Final = [f"tests/protocols/sums/test_{name}.py" for name in ("mechanisms", "parts", "plain")] + [
    "tests/vectors"
]
"""Tests of all mechanisms."""
GROUPS: Final[dict[str, tuple[list[str], list[str]]]] = {  # name: (modules to mutate, tests to run)
    "masked": (["protocols/sums/masked/*"], ["tests/protocols/sums/masked", *GENERAL]),
    "oneshot": (["protocols/sums/oneshot/*"], ["tests/protocols/sums/oneshot", *GENERAL]),
    "ckks": (["protocols/sums/ckks/*"], ["tests/protocols/sums/ckks", *GENERAL]),
    "paillier": (["protocols/sums/paillier/*"], ["tests/protocols/sums/paillier", *GENERAL]),
    "sums": (["protocols/sums/[!/]*.py"], ["tests/protocols/sums", "tests/vectors"]),
    "privacy": (["protocols/privacy/*"], ["tests/protocols/privacy", "tests/vectors"]),
    "crypto": (["protocols/crypto/*"], ["tests/protocols/crypto", "tests/vectors"]),
    "rounds": (["client_sdk/rounds/*"], ["tests/client_sdk/rounds"]),
    "committee": (["client_sdk/committee/*"], ["tests/client_sdk/committee"]),
}
SOURCES: Final = ["client_sdk", "protocols"]
SUBPACKAGES_OF_SUMS: Final = [f"protocols/sums/{name}/*" for name in ("masked", "oneshot", "ckks", "paillier")]
READ_THE_SOURCE: Final = ["--ignore=tests/vectors/test_wire_pages.py"]
"""Tests that read the text of the modules, which is not theirs in a working copy."""
KILLED: Final = frozenset({"killed", "timeout", "segfault"})
ROOT: Final = Path(__file__).resolve().parent.parent


def working_copy(group: str) -> Path:
    """Copy the tracked files, as they stand in the working tree, to .mutants/GROUP, with mutmut's settings."""
    modules, tests = GROUPS[group]
    copy = ROOT / ".mutants" / group
    tracked = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    names = [name for name in tracked.split("\0") if name and (ROOT / name).is_file()]
    for name in names:
        target = copy / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if not target.exists() or target.read_bytes() != (ROOT / name).read_bytes():
            shutil.copy2(ROOT / name, target)
    settings = {
        "source_paths": SOURCES,
        "only_mutate": modules,
        "do_not_mutate": SUBPACKAGES_OF_SUMS if group == "sums" else [],
        "also_copy": sorted({name.partition("/")[0] for name in names} - {*SOURCES}),
        "pytest_add_cli_args_test_selection": tests,
        "pytest_add_cli_args": ["-p", "no:cacheprovider", "--hypothesis-seed=0", *READ_THE_SOURCE],
    }
    lines = [f"{key} = {json.dumps(value)}" for key, value in settings.items()]  # a list of texts is the same in TOML
    project = (ROOT / "pyproject.toml").read_text()
    (copy / "pyproject.toml").write_text("\n".join([project, "[tool.mutmut]", *lines, ""]))
    return copy


def mutmut(copy: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run mutmut in a working copy; its output is printed, except what `results` prints."""
    command = [sys.executable, "-m", "mutmut", *arguments]
    captured = subprocess.PIPE if arguments[0] == "results" else None
    return subprocess.run(command, cwd=copy, check=False, stdout=captured, text=True)


def results(copy: Path) -> dict[str, str]:
    """The state of every mutant: name -> killed, survived, no tests, timeout, not checked ..."""
    pairs = (line.strip().rpartition(": ") for line in mutmut(copy, "results", "--all", "true").stdout.splitlines())
    return {name: state for name, colon, state in pairs if colon}


def drawn(copy: Path, count: int) -> list[str]:
    """`count` mutants at random, the same in every run; mutmut makes them first, and stops as none has this name."""
    mutmut(copy, "run", "only.made")
    names = sorted(results(copy))
    return np.random.default_rng(0).permutation(names)[:count].tolist()


def main(arguments: list[str] | None = None) -> int:
    """Run the groups, print a score a module and the survivors; see the module's docstring."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("groups", nargs="*", metavar="GROUP", help=f"one of {', '.join(GROUPS)}; all without one")
    chosen = parser.add_mutually_exclusive_group()
    chosen.add_argument("--only", nargs="+", default=[], metavar="NAME", help="mutants by name; * stands for anything")
    chosen.add_argument("--sample", type=int, metavar="N", help="N mutants of each group, drawn at random")
    parser.add_argument("--processes", type=int, metavar="N", help="as many as there are cores without it")
    options = parser.parse_args(arguments)
    if unknown := set(options.groups) - GROUPS.keys():
        parser.error(f"no group {', '.join(sorted(unknown))}; there are {', '.join(GROUPS)}")
    processes = ["--max-children", str(options.processes)] if options.processes else []
    for group in options.groups or GROUPS:
        copy = working_copy(group)
        names = drawn(copy, options.sample) if options.sample else options.only
        if status := mutmut(copy, "run", *processes, *names).returncode:
            print(f"mutants: mutmut failed in {copy} (exit status {status})", file=sys.stderr)
            return 1
        states = results(copy)
        wanted = set(names) if options.sample else states.keys()
        report({name: states[name] for name in wanted if states[name] != "not checked"})
        print(f"mutants: what a survivor changes: cd {copy.relative_to(ROOT)} && mutmut show NAME")
    return 0


def interval(killed: int, tested: int) -> tuple[float, float]:
    """The 95 % interval of a share (Wilson 1927, Probable inference, JASA 22)."""
    z, share = 1.96, killed / tested
    middle = share + z * z / (2 * tested)
    half = z * sqrt(share * (1 - share) / tested + z * z / (4 * tested * tested))
    return (middle - half) / (1 + z * z / tested), (middle + half) / (1 + z * z / tested)


def report(states: dict[str, str]) -> None:
    """Print the killed and the tested mutants of each module, then the names of the others."""
    modules: dict[str, collections.Counter[bool]] = collections.defaultdict(collections.Counter)
    for name, state in states.items():
        modules[name.rpartition(".")[0]][state in KILLED] += 1
    for module, counts in sorted(modules.items()):
        print(f"mutants: {module}: {counts[True]} of {counts.total()} killed")
    killed = sum(state in KILLED for state in states.values())
    low, high = interval(killed, len(states)) if states else (0, 1)
    score = f"{killed / max(len(states), 1):.1%}, 95 % interval of a sample {low:.0%} to {high:.0%}"
    print(f"mutants: all: {killed} of {len(states)} killed ({score})")
    for name, state in sorted(states.items()):
        if state not in KILLED:
            print(f"  {state}: {name}")


if __name__ == "__main__":
    sys.exit(main())
