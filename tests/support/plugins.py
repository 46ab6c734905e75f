"""Packages that add a recipe or a mechanism, installed for a test into a folder of their own."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from protocols import plugins

__all__ = ["installed_plugin", "write_files"]

_FILE = re.compile(r"^`([\w/]+\.(?:py|toml))`[^`\n]*:\n\n```(?:python|toml)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def write_files(page: Path, folder: Path) -> list[str]:
    """Write the files that a page of the documentation shows to `folder`, and return their names in its order."""
    files = _FILE.findall(page.read_text(encoding="utf-8"))
    for name, text in files:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    return [name for name, _ in files]


@contextmanager
def installed_plugin(source: Path, site: Path, package: str) -> Iterator[Path]:
    """Install the project in `source` into `site`, put that on the path of this process, and yield it.

    package: what it installs; it is unknown again after the block. Other processes need `site` in PYTHONPATH.
    """
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--no-build-isolation"]
    done = subprocess.run([*command, "--target", str(site), str(source)], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(site)
        plugins._found.cache_clear()
        try:
            yield site
        finally:
            for name in [name for name in sys.modules if name.split(".")[0] == package]:
                del sys.modules[name]
    plugins._found.cache_clear()
