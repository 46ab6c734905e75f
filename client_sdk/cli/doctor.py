"""`hushrec doctor`: check the installation, and name the command that installs what is missing."""

from __future__ import annotations

import importlib
import os
import platform
import shutil
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata
from itertools import islice
from pathlib import Path
from typing import Annotated, Final

from rich.markup import escape
from typer import Option

from client_sdk.api.http import check_environment, download
from client_sdk.api.requests import base_url
from client_sdk.cli.common import console, fail, table
from client_sdk.cli.install import install_command
from client_sdk.errors import ConnectionFailed
from protocols.errors import ParameterError

_PACKAGES: Final = (
    ("numpy", "", "arithmetic of all sums"),
    ("cryptography", "", "keys and encryption"),
    ("httpx", "", "HTTP client"),
    ("tenseal", "ckks", "CKKS sums (Microsoft SEAL)"),
    ("scipy", "lab", "simulations and the demo of PriviRec"),
    ("fastapi", "server", "hushrec-server, the demo, and an organiser's endpoint"),
    ("matplotlib", "plots", "curves in reports"),
    ("dp_accounting", "privacy", "tighter bounds in hushrec privacy plan"),
    ("phe", "paillier", "Paillier keys (GPL)"),
    ("polars", "data", "tables of interactions"),
    ("psycopg", "postgres", "PostgreSQL"),
    ("obstore", "s3", "S3-compatible blob stores"),
    ("distributed", "cluster", "a Dask cluster"),
    ("opentelemetry.sdk", "otel", "traces"),
)
"""Package, the extra that brings it ("" for what every installation has), and what it is for."""


@dataclass(frozen=True)
class Finding:
    """The result of one check."""

    name: str
    """What was checked."""
    ok: bool
    """Whether it is present and works."""
    needed: bool
    """Whether HushRec requires it; other components are optional."""
    found: str
    """Version or problem."""
    remedy: str = ""
    """A command that installs or fixes it, "" if there is none."""


def examine(data_dir: Path | None = None) -> list[Finding]:
    """Check the interpreter, the processor, the packages, a CKKS sum, free space and, if given, a data directory."""
    interpreter = f"{platform.python_implementation()} {platform.python_version()} at {sys.executable}"
    remedy = "apt-get install python3 python3-venv, on Debian 12, Ubuntu 24.04 or later"
    has_memfd = hasattr(os, "memfd_create")
    streams = "memfd" if has_memfd else "not available: SEAL's streams use temporary files"
    return [
        Finding("Python >= 3.11", sys.version_info >= (3, 11), True, interpreter, remedy),
        _processor(),
        Finding("memory files", has_memfd, False, streams),
        *_packages(),
        _ckks(),
        _network_settings(),
        *_folders(data_dir),
    ]


def _processor() -> Finding:
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8", errors="replace").splitlines() if info.exists() else []
    flags = next((line.partition(":")[2].split() for line in lines if line.startswith("flags")), [])
    have = [flag for flag in ("aes", "avx2", "avx512f", "bmi2", "sha_ni") if flag in flags]
    found = f"{platform.machine()}, {os.cpu_count()} cores, {' '.join(have) or 'flags unknown'}"
    return Finding("processor", True, False, found)


def _packages() -> Iterator[Finding]:
    for name, extra, purpose in _PACKAGES:
        try:
            importlib.import_module(name)
        except ImportError as error:
            missing = f"missing ({purpose}): {type(error).__name__}"
            yield Finding(name, False, not extra, missing, install_command(extra))
        else:
            version = metadata.version(name.replace(".", "-"))
            yield Finding(name, True, not extra, f"{version} ({purpose})")


def _ckks() -> Finding:
    """Encrypt, sum and decrypt two small vectors: a wheel that can be imported may still not run on this processor."""
    import numpy as np

    from protocols.layout import TRAINED, Block, Segment, VectorLayout
    from protocols.sums.registry import mechanism
    from protocols.sums.run import run_sum

    try:
        ckks = mechanism("ckks")
        layout = VectorLayout((Block("probe", (Segment("values", 8, 1.0),)),), sum_class=TRAINED)
        plan = ckks.plan({}, layout, 2)
        total = run_sum(ckks, plan, [np.linspace(-1, 1, 8)] * 2).total
    except (ImportError, ParameterError) as error:  # not installed, or the wheel does not fit this machine
        return Finding("CKKS sum", False, False, f"cannot run: {error}", install_command("ckks"))
    error_size = float(np.abs(total - 2 * np.linspace(-1, 1, 8)).max())
    found = f"sum of two ciphertexts, error {error_size:.1e}"
    return Finding("CKKS sum", error_size <= plan.predicted_error, True, found)


def _network_settings() -> Finding:
    """Check the proxies and the TLS files that the environment names. A server on this machine needs none of them."""
    try:
        proxies = ", ".join(map(str, check_environment()))
    except ParameterError as error:
        return Finding("network settings", False, False, str(error), "correct or remove the variable")
    return Finding("network settings", True, False, proxies or "no proxy")


def _folders(data_dir: Path | None) -> Iterator[Finding]:
    for name, folder in (("temporary folder", Path(tempfile.gettempdir())), ("data folder", data_dir)):
        if folder is None:
            continue
        ok = folder.is_dir() and os.access(folder, os.W_OK)
        free = f"{shutil.disk_usage(folder).free / 2**30:.1f} GiB free" if folder.is_dir() else "does not exist"
        yield Finding(name, ok, name == "temporary folder", f"{folder}: {free}", f"mkdir -p {folder}")


def server(url: str) -> Finding:
    """Return whether the server at `url` is ready (GET /readyz). Raises `ParameterError` if `url` is not a URL."""
    base = base_url(url)
    try:
        answer = b"".join(islice(download(f"{base}/readyz"), 1))
    except ConnectionFailed as error:
        return Finding("server", False, True, str(error), "hushrec-server serve")
    except ParameterError as error:
        return Finding("server", False, True, str(error), "correct or remove the variable")
    if not answer.startswith(b'{"status":'):
        found = f"{base} is answered by something else than an aggregator, such as a proxy"
        return Finding("server", False, True, found, "check the address")
    return Finding("server", True, True, f"{base} is ready")


def doctor(
    data_dir: Annotated[Path | None, Option(help="Folder of data sets to check as well.")] = None,
    url: Annotated[str | None, Option(help="Address of a server to check as well.")] = None,
) -> None:
    """Check Python, packages, a CKKS sum and free space, and print how to install what is missing.

    The exit code is 1 if a required component is missing.

    Example: hushrec doctor --url http://127.0.0.1:8000
    """
    findings = examine(data_dir) + ([] if url is None else [server(url)])
    rows = []
    for finding in findings:
        mark = "[green]ok[/]" if finding.ok else "[red]missing[/]" if finding.needed else "[yellow]optional[/]"
        rows.append((finding.name, mark, escape(finding.found), "" if finding.ok else escape(finding.remedy)))
    made = table("hushrec doctor", ("", "", "found", "to fix it"), rows)
    for column in made.columns:
        column.justify, column.overflow = "left", "fold"
    console.print(made)
    missing = [finding.name for finding in findings if finding.needed and not finding.ok]
    if missing:
        fail(f"missing required components: {', '.join(missing)}")
