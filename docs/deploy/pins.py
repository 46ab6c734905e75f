"""Prints what of requirements.lock a server needs, hashes included: the lock also holds what only development needs.

    python docs/deploy/pins.py EXTRA... > pins.txt                 # the project's dependencies, and those of extras
    python docs/deploy/pins.py --only setuptools > build.txt       # one package, with what it needs
    pip install --require-hashes --no-deps -r pins.txt

Standard library alone: it runs where nothing is installed yet. A package is needed when pyproject.toml names it, in the
dependencies or in one of the extras, or when the lock says that it is there for one that is needed.
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
    """What pyproject.toml asks for, by name."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    asked = [*project["dependencies"]]
    for extra in extras:
        asked += project["optional-dependencies"][extra]
    return {_normal(_NAME.match(line).group()) for line in asked}  # type: ignore[union-attr]


def pins(lock: str, needed: set[str]) -> str:
    """The blocks of the lock for `needed` and for all that they need in turn."""
    blocks: dict[str, str] = {}
    for name, text in _blocks(lock):
        blocks[name] = blocks.get(name, "") + text  # one pin for old Pythons, and another for newer ones
    missing = needed - blocks.keys()
    if missing:
        raise SystemExit(f"requirements.lock lacks {', '.join(sorted(missing))}: run make lock")
    found = set[str]()
    while needed - found:
        found |= needed
        needed = {name for name, text in blocks.items() if name in found or _parents(text) & found}
    return "".join(blocks[name] for name in sorted(found))


def _blocks(lock: str) -> Iterator[tuple[str, str]]:
    """Packages, each with its pin, its hashes, and for whose sake it is there."""
    for text in re.split(r"^(?=[A-Za-z0-9])", lock, flags=re.MULTILINE):
        if name := _NAME.match(text):
            yield _normal(name.group()), text


def _parents(block: str) -> set[str]:
    via = [line for line in block.splitlines() if line.lstrip().startswith("#")]
    return {_normal(name) for name in _WORD.findall(" ".join(via))}


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def main(arguments: list[str]) -> None:
    """The command."""
    needed = set(arguments[1:]) if arguments[:1] == ["--only"] else wanted(arguments)
    sys.stdout.write(pins((ROOT / "requirements.lock").read_text(encoding="utf-8"), needed))


if __name__ == "__main__":
    main(sys.argv[1:])
