"""How to install an extra of HushRec into this environment, from the place that HushRec itself was installed from."""

from __future__ import annotations

import json
import shlex
from importlib import metadata
from pathlib import Path
from urllib.parse import unquote, urlsplit


def install_command(extra: str = "") -> str:
    """Return the command that installs HushRec with an extra; "": HushRec alone.

    It names the checkout, file or address that this installation came from (PEP 610). Only an installation from a
    package index gives the name alone, in the version that is installed: elsewhere, whoever registers that name first
    would decide what the command installs.
    """
    suffix = f"[{extra}]" if extra else ""
    distribution = metadata.distribution("hushrec")
    origin = json.loads(distribution.read_text("direct_url.json") or "{}")
    url = origin.get("url")
    if url is None:
        wanted = f"hushrec{suffix}=={distribution.version}"
    elif "dir_info" in origin:
        editable = "-e " if origin["dir_info"].get("editable") else ""
        folder = Path(unquote(urlsplit(url).path))
        return f"pip install {editable}{shlex.quote(f'{folder}{suffix}')}"
    elif "vcs_info" in origin:
        vcs = origin["vcs_info"]
        wanted = f"hushrec{suffix} @ {vcs['vcs']}+{url}@{vcs['commit_id']}"
    else:
        wanted = f"hushrec{suffix} @ {url}"
    return f"pip install {shlex.quote(wanted)}"
