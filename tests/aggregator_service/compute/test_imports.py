"""What a worker imports before its first job: each package that it does not need delays the first fold of a server."""

from __future__ import annotations

import subprocess
import sys

NEEDLESS = ("anyio", "fastapi", "httpx", "prometheus_client", "scipy", "sqlalchemy", "starlette", "tenseal")


def test_jobs_need_neither_the_database_nor_http() -> None:
    program = (
        f"import aggregator_service.compute.jobs, sys; print([name for name in {NEEDLESS} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.strip() == "[]"
