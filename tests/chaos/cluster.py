"""A PostgreSQL cluster of the test's own that can be crashed, restarted and paused."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import psutil
from sqlalchemy import make_url

from tests.support.needs import POSTGRES_SCRIPT, required
from tests.support.postgres import TestDatabase

__all__ = ["Cluster", "own_cluster"]


class Cluster:
    """A cluster in `folder`. It restarts on the same port."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.url = self._run("start").strip()

    def schema(self) -> str:
        """Return the URL of an empty schema for one server."""
        return TestDatabase(make_url(self.url), "postgres").schema()

    def crash(self) -> None:
        """Kill all processes at once. The next start recovers what was committed."""
        self._run("stop")

    def start_again(self) -> None:
        """Start the cluster after `crash`."""
        self._run("again")

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Inside the block the cluster accepts connections and answers nothing."""
        root = psutil.Process(int((self._folder / "data" / "postmaster.pid").read_text().split()[0]))
        halted = [root, *root.children(recursive=True)]
        for process in halted:
            process.suspend()
        try:
            yield
        finally:
            for process in reversed(halted):
                process.resume()

    def _run(self, action: str) -> str:
        done = subprocess.run([POSTGRES_SCRIPT, action, str(self._folder)], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout


@contextmanager
def own_cluster() -> Iterator[Cluster]:
    """Run a cluster and remove it after the block. Its folder belongs to the user that runs it, perhaps another one."""
    required("postgres programs")
    with TemporaryDirectory(prefix="hushrec-chaos-", ignore_cleanup_errors=True) as folder:
        Path(folder).chmod(0o755)
        cluster = Cluster(Path(folder) / "postgres")
        try:
            yield cluster
        finally:
            cluster._run("stop")
