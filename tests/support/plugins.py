"""Packages that add a recipe or a mechanism, installed for a test into a folder of their own."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from protocols import plugins

__all__ = ["installed_plugin"]


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
