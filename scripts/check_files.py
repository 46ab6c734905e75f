"""Refuse files that do not belong in the repository: built or downloaded ones, and any over 500 kB.

    python scripts/check_files.py [FILE ...]     the files named, or every file that git tracks

Exit status 1 and one line a file when there are any.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Final

MOST_BYTES: Final = 500_000
CONTRACT: Final = Path("openapi/openapi.json")
"""The API's description is generated, and committed so that a change of the contract is seen: it may be larger."""
BUILT: Final = frozenset({".whl", ".so", ".pyc", ".egg", ".zip", ".gz", ".npz", ".db", ".sqlite3", ".key", ".keyring"})


def faults(paths: list[Path]) -> list[str]:
    """One line for each file that must not be committed: what is wrong with it."""
    found = []
    for path in paths:
        if path.suffix in BUILT:
            found.append(f"{path}: a built, downloaded or private file ({path.suffix}); add it to .gitignore instead")
        elif path != CONTRACT and path.is_file() and path.stat().st_size > MOST_BYTES:
            found.append(f"{path}: {path.stat().st_size:,} bytes, the limit is {MOST_BYTES:,}")
    return found


def tracked() -> list[Path]:
    """Every file that git tracks below the working directory."""
    listed = subprocess.run(["git", "ls-files", "-z"], check=True, capture_output=True, text=True).stdout
    return [Path(name) for name in listed.split("\0") if name]


if __name__ == "__main__":
    lines = faults([Path(name) for name in sys.argv[1:]] or tracked())
    print("\n".join(lines), end="\n" if lines else "")
    sys.exit(bool(lines))
