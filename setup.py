"""Gives builds of a checkout a version of their own, such as 0.1.0.dev20261129124235+g1a2b3c4d5e6f.

pyproject.toml has everything else, the version without the tag among it. The tag comes from BUILD_TAG, where an image
is built without the repository, or from `scripts/build_tag.py`; a source archive has it in its own setup.cfg.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from setuptools import setup

SCRIPT = Path(__file__).resolve().parent / "scripts" / "build_tag.py"

tag = os.environ.get("BUILD_TAG")
if tag is None and SCRIPT.exists():
    tag = subprocess.run([sys.executable, SCRIPT], capture_output=True, text=True, check=True).stdout.strip()
setup(options={"egg_info": {"tag_build": tag}} if tag else {})
