"""Builds the wheel so that everybody gets the same bytes, with its software bill of materials (PEP 770).

    python scripts/build_wheel.py FOLDER    write it to FOLDER; print its SHA-256 and its name

Run it with the Python of `make setup`: setuptools is the locked one. Times of files are SOURCE_DATE_EPOCH, by default
that of the commit; order, modes and RECORD follow from the content. Other versions of zlib may compress otherwise.
"""

from __future__ import annotations

import base64
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from pathlib import Path
from typing import Final

sys.path.insert(0, str(Path(__file__).resolve().parent))
from build_tag import ROOT, build_tag
from sbom import encoded

_EARLIEST: Final = 315532800  # 1980, where the times of zip files begin


def build(folder: Path, root: Path = ROOT) -> Path:
    """Build the wheel of a checkout and return its path in `folder`. Raises `SystemExit` if the build fails."""
    environment = {
        **os.environ,
        "BUILD_TAG": os.environ.get("BUILD_TAG", build_tag(root)),
        "SOURCE_DATE_EPOCH": str(_epoch(root)),
    }
    with tempfile.TemporaryDirectory() as work:
        source = Path(work) / "source"
        for package in ("aggregator_service", "client_sdk", "protocols"):
            shutil.copytree(root / package, source / package, ignore=shutil.ignore_patterns("__pycache__"))
        for name in ("pyproject.toml", "setup.py", "LICENSE"):
            shutil.copy(root / name, source / name)
        uv = Path(sys.executable).with_name("uv")
        options = ["--wheel", "--no-build-isolation", "--offline", "--python", sys.executable, "--out-dir", work]
        done = subprocess.run(
            [uv, "build", *options, source], env=environment, check=False, capture_output=True, text=True
        )
        if done.returncode:
            raise SystemExit(done.stderr)
        (built,) = Path(work).glob("*.whl")
        folder.mkdir(parents=True, exist_ok=True)
        return _rewritten(built, folder / built.name, encoded(root), _epoch(root))


def _epoch(root: Path) -> int:
    given = os.environ.get("SOURCE_DATE_EPOCH")
    if given is None:
        command = ["git", "log", "-1", "--format=%ct"]
        given = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True).stdout
    return max(int(given), _EARLIEST)


def _rewritten(built: Path, target: Path, sbom: bytes, epoch: int) -> Path:
    """Write the wheel anew: with the document, in order, with one time and mode for all, and a RECORD of it."""
    with zipfile.ZipFile(built) as wheel:
        files = {name: wheel.read(name) for name in wheel.namelist() if not name.endswith("/")}
    (record,) = (name for name in files if name.endswith(".dist-info/RECORD"))
    del files[record]
    files[record.replace("RECORD", "sboms/hushrec.cdx.json")] = sbom
    lines = [f"{name},sha256={_urlsafe(body)},{len(body)}" for name, body in sorted(files.items())]
    files[record] = "\n".join([*lines, f"{record},,", ""]).encode()
    moment = time.gmtime(epoch)[:6]
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as wheel:
        # as the specification of wheels recommends, .dist-info is last
        for name in sorted(files, key=lambda name: (".dist-info/" in name, name)):
            entry = zipfile.ZipInfo(name, moment)
            entry.external_attr, entry.compress_type, entry.create_system = 0o100644 << 16, zipfile.ZIP_DEFLATED, 3
            wheel.writestr(entry, files[name])
    return target


def _urlsafe(body: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(body).digest()).rstrip(b"=").decode()


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit(__doc__)
    made = build(Path(sys.argv[1]))
    print(f"{hashlib.sha256(made.read_bytes()).hexdigest()}  {made.name}")
