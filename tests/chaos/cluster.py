"""A PostgreSQL of the test's own, to be stopped, started again, and held still."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import psutil
from sqlalchemy import make_url

from tests.support.postgres import TestDatabase

__all__ = ["Cluster", "own_cluster"]

_SCRIPT = Path(__file__).parents[2] / "scripts" / "postgres.sh"


class Cluster:
    """A cluster in `folder`. It always comes back on the same port."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.url = self._run("start").strip()

    def schema(self) -> str:
        """The URL of an empty place for one server's tables."""
        return TestDatabase(make_url(self.url), "postgres").schema()

    def crash(self) -> None:
        """Every process ends at once; what was committed is recovered at the next start."""
        self._run("stop")

    def start_again(self) -> None:
        """After `crash`."""
        self._run("again")

    @contextmanager
    def held_still(self) -> Iterator[None]:
        """Within the block it takes connections and answers nothing."""
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
        done = subprocess.run([_SCRIPT, action, str(self._folder)], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout


@contextmanager
def own_cluster() -> Iterator[Cluster]:
    """A cluster that is gone after the block. Its folder is the user's who runs it, who may not be this one."""
    with TemporaryDirectory(prefix="hushrec-chaos-", ignore_cleanup_errors=True) as folder:
        Path(folder).chmod(0o755)
        cluster = Cluster(Path(folder) / "postgres")
        try:
            yield cluster
        finally:
            cluster._run("stop")
