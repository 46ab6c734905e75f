"""Release notes, and the version in every file that names it. pyproject.toml is where it comes from.

    python scripts/release.py notes [VERSION]     the changelog's section, as Markdown; default: what is unreleased
    python scripts/release.py prepare VERSION     write the version into the files, and date the unreleased section
    python scripts/release.py check TAG           whether version, changelog, images and a tag such as v1.2.3 agree

`prepare` commits and tags nothing. Exit status 1 with a reason where there is nothing to release.
"""

from __future__ import annotations

import re
import sys
import tomllib
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
_HEADING: Final = re.compile(r"^## \[(.+?)\].*$", re.MULTILINE)
_VERSION: Final = re.compile(r"[0-9]+\.[0-9]+\.[0-9]+((a|b|rc)[0-9]+)?")
UNRELEASED: Final = "Unreleased"
PACKAGE: Final = Path("examples/web/hushrec/package.json")


def notes(changelog: str, version: str) -> str:
    """Return the section of a version without its heading. Raises `SystemExit` if there is none or it is empty."""
    parts = _HEADING.split(changelog)
    sections = dict(zip(parts[1::2], parts[2::2], strict=True))
    text = sections.get(version, "").strip()
    if not text:
        raise SystemExit(f"CHANGELOG.md has no entries for {version}; it has: {', '.join(sections)}")
    return text


def released(changelog: str, version: str, day: date) -> str:
    """Return the changelog with the unreleased entries under a dated heading. Raises as `notes`."""
    notes(changelog, UNRELEASED)
    return changelog.replace(f"## [{UNRELEASED}]\n", f"## [{UNRELEASED}]\n\n## [{version}] - {day:%Y-%m-%d}\n", 1)


def current(root: Path = ROOT) -> str:
    """Return the version in pyproject.toml."""
    return str(tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"])


def images(root: Path = ROOT) -> list[Path]:
    """Return the files that name the image with its version as tag."""
    deploy = [path for path in (root / "docs" / "deploy").rglob("*") if path.is_file() and path.suffix != ".pyc"]
    named = re.compile(r"\bhushrec:[0-9]+\.[0-9]")
    return [path for path in (*deploy, root / "docs" / "deploy.md") if named.search(path.read_text(encoding="utf-8"))]


def prepare(version: str, day: date, root: Path = ROOT) -> list[Path]:
    """Write the version into all files that name it; return them. Raises `SystemExit` for an invalid version."""
    old = current(root)
    if not _VERSION.fullmatch(version):
        raise SystemExit(f"{version!r} is not a version of the form 1.2.3 or 1.2.3rc1")
    changes = {
        root / "CHANGELOG.md": lambda text: released(text, version, day),
        root / PACKAGE: lambda text: text.replace(f'"version": "{old}"', f'"version": "{version}"', 1),
        root / "docs" / "wire" / "changes.json": lambda text: text.replace(f'"{UNRELEASED}"', f'"{version}"', 1),
        root / "pyproject.toml": lambda text: text.replace(f'\nversion = "{old}"\n', f'\nversion = "{version}"\n', 1),
        root / "openapi" / "openapi.json": lambda text: text.replace(
            f'"version": "{old}"', f'"version": "{version}"', 1
        ),
        **{path: lambda text: text.replace(f"hushrec:{old}", f"hushrec:{version}") for path in images(root)},
    }
    made = {path: change(path.read_text(encoding="utf-8")) for path, change in changes.items()}
    for path, text in made.items():
        path.write_text(text, encoding="utf-8")
    return list(made)


def disagreements(tag: str, root: Path = ROOT) -> list[str]:
    """Return what does not name the version of a release with this tag, a line each; empty if all agree."""
    version = tag.removeprefix("v")
    changelog = (root / "CHANGELOG.md").read_text(encoding="utf-8")
    dated = re.search(rf"^## \[{re.escape(version)}\] - [0-9]{{4}}-[0-9]{{2}}-[0-9]{{2}}$", changelog, re.MULTILINE)
    package = (root / PACKAGE).read_text(encoding="utf-8")
    contract = (root / "openapi" / "openapi.json").read_text(encoding="utf-8")
    return [
        line
        for line, agrees in {
            f"{tag} is not v and a version": tag == f"v{version}" and _VERSION.fullmatch(version),
            f"pyproject.toml has version {current(root)}": current(root) == version,
            f"CHANGELOG.md has no dated section {version}": dated,
            f"openapi/openapi.json does not have version {version}": f'"version": "{version}"' in contract,
            f"{PACKAGE} does not have version {version}": f'"version": "{version}"' in package,
            **{
                f"{path.relative_to(root)} names another image": f"hushrec:{version}" in path.read_text("utf-8")
                for path in images(root)
            },
        }.items()
        if not agrees
    ]


def main(arguments: list[str]) -> None:
    """Run the command in `arguments`."""
    match arguments:
        case ["notes", *version] if len(version) < 2:
            print(notes((ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), (version or [UNRELEASED])[0]))
        case ["prepare", version]:
            for path in prepare(version, datetime.now(UTC).date()):
                print(path.relative_to(ROOT))
        case ["check", tag]:
            if found := disagreements(tag):
                raise SystemExit("\n".join([*found, "run python scripts/release.py prepare VERSION, commit, and tag"]))
        case _:
            raise SystemExit(__doc__)


if __name__ == "__main__":
    main(sys.argv[1:])
