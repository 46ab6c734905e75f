"""Packs the vectors and the pages of the wire as `hushrec-vectors-VERSION.tar.gz`, for authors of other clients.

    python scripts/vectors_archive.py FOLDER    write it to FOLDER; print its SHA-256 and its name

Everybody gets the same bytes: names in order, no times or owners. Other versions of zlib may compress otherwise. Needs
Python alone.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import sys
import tarfile
import tomllib
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]


def build(folder: Path, root: Path = ROOT) -> Path:
    """Write the archive to `folder` and return its path."""
    version = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    name, packed = f"hushrec-vectors-{version}", io.BytesIO()
    files = {"LICENSE": root / "LICENSE"}
    files |= {f"vectors/{path.name}": path for path in (root / "tests" / "vectors").glob("*.json")}
    files |= {f"wire/{path.name}": path for path in (root / "docs" / "wire").iterdir()}
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for inside, path in sorted(files.items()):
            body = path.read_bytes()
            entry = tarfile.TarInfo(f"{name}/{inside}")
            entry.size = len(body)
            archive.addfile(entry, io.BytesIO(body))
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / f"{name}.tar.gz"
    target.write_bytes(gzip.compress(packed.getvalue(), mtime=0))
    return target


if __name__ == "__main__":
    made = build(Path(sys.argv[1]))
    print(f"{hashlib.sha256(made.read_bytes()).hexdigest()}  {made.name}")
