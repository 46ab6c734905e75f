"""What a server has imported when it gives its first answer: each of these packages takes 20 to 400 ms of its start."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.support.server import free_port

NEEDLESS = (
    "dask",
    "distributed",
    "jinja2",
    "matplotlib",
    "obstore",
    "opentelemetry.sdk",
    "psycopg",
    "rich",
    "scipy",
    "tenseal",
)
_PROGRAM = """
import os, signal, sys, threading, time, urllib.error, urllib.request

def wait_until_ready():
    while True:
        try:
            urllib.request.urlopen("http://127.0.0.1:{port}/readyz")
            break
        except urllib.error.URLError:
            time.sleep(0.05)
    print("imported:", [name for name in {needless} if name in sys.modules], flush=True)
    os.kill(os.getpid(), signal.SIGTERM)

threading.Thread(target=wait_until_ready, daemon=True).start()
sys.argv[1:] = ["serve", "--data-dir", {folder!r}, "--port", "{port}"]
from aggregator_service.cli import main
main()
"""


def test_a_server_imports_no_package_before_it_needs_it(tmp_path: Path) -> None:
    program = _PROGRAM.format(port=free_port(), needless=NEEDLESS, folder=str(tmp_path / "data"))
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False)
    assert "imported: []" in done.stdout, done.stdout + done.stderr
