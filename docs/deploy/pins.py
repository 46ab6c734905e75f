"""Prints the part of requirements.lock that a server needs, with hashes; the lock also contains development packages.

    python docs/deploy/pins.py EXTRA... > pins.txt                 # dependencies of the project and the extras
    python docs/deploy/pins.py --only setuptools > build.txt       # one package and its dependencies
    pip install --require-hashes --no-deps -r pins.txt

Uses only the standard library, so that it runs before anything is installed. A package is needed if pyproject.toml has
it in the dependencies or in one of the extras, or if the lock says that it was added for a package that is needed.
"""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
_WORD = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_NAME = re.compile(f"^{_WORD.pattern}")


def wanted(extras: list[str]) -> set[str]:
    """Return the normalised names of the packages that pyproject.toml requires, with the extras."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    asked, todo = [*project["dependencies"]], list(extras)
    while todo:
        for line in project["optional-dependencies"][todo.pop()]:
            own = re.match(rf"{project['name']}\[(.+)\]$", line)  # an extra that includes others
            todo += own.group(1).split(",") if own else []
            asked += [] if own else [line]
    return {_normal(_NAME.match(line).group()) for line in asked}  # type: ignore[union-attr]


def pins(lock: str, needed: set[str]) -> str:
    """Return the blocks of the lock for `needed` and their dependencies. Raises `SystemExit` if the lock lacks one."""
    blocks: dict[str, str] = {}
    for name, text in _blocks(lock):
        blocks[name] = blocks.get(name, "") + text  # a package can have different pins for different Python versions
    missing = needed - blocks.keys()
    if missing:
        raise SystemExit(f"requirements.lock lacks {', '.join(sorted(missing))}: run make lock")
    found = set[str]()
    while needed - found:
        found |= needed
        needed = {name for name, text in blocks.items() if name in found or _parents(text) & found}
    return "".join(blocks[name] for name in sorted(found))


def _blocks(lock: str) -> Iterator[tuple[str, str]]:
    """Yield (name, block) for each package: its pin, hashes, and the packages that require it."""
    for text in re.split(r"^(?=[A-Za-z0-9])", lock, flags=re.MULTILINE):
        if name := _NAME.match(text):
            yield _normal(name.group()), text


def _parents(block: str) -> set[str]:
    via = [line for line in block.splitlines() if line.lstrip().startswith("#")]
    return {_normal(name) for name in _WORD.findall(" ".join(via))}


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def main(arguments: list[str]) -> None:
    """Print the pins for the extras in `arguments`, or for one package after `--only`."""
    needed = set(arguments[1:]) if arguments[:1] == ["--only"] else wanted(arguments)
    sys.stdout.write(pins((ROOT / "requirements.lock").read_text(encoding="utf-8"), needed))


if __name__ == "__main__":
    main(sys.argv[1:])
