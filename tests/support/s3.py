"""A real S3 server in a child process: SeaweedFS, whose wheel contains the program `weed`.

It checks signatures and bucket names, supports ranges, conditions, multipart uploads and bulk deletion, and keeps its
objects on disk over a restart. It does not have eventual listings, throttling and roles.
"""

from __future__ import annotations

import json
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import obstore
from obstore.store import S3Store

from tests.support.server import free_port

BUCKET = "hushrec-tests"
_SECRET = "secret-key-of-the-tests"
_START_SECONDS = 60.0
_VOLUME = 128
"""Megabytes of one of its files."""


class S3Server:
    """A server, its settings and its objects below `folder`. megabytes: of objects that it takes at most."""

    def __init__(self, program: str, folder: Path, megabytes: int = 1024) -> None:
        self._program, self._folder, self._megabytes = program, folder, megabytes
        self._process: subprocess.Popen[bytes] | None = None
        names = ("s3.port", "s3.port.grpc", "master.port", "master.port.grpc", "volume.port", "volume.port.grpc")
        self._ports = {name: free_port() for name in (*names, "filer.port", "filer.port.grpc")}
        identity = {
            "name": "tests",
            "credentials": [{"accessKey": "tests", "secretKey": _SECRET}],
            "actions": ["Admin", "Read", "Write", "List"],
        }
        (folder / "data").mkdir()
        (folder / "s3.json").write_text(json.dumps({"identities": [identity]}))

    @property
    def environment(self) -> Mapping[str, str]:
        return {
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{self._ports['s3.port']}",
            "AWS_REGION": "us-east-1",
            "AWS_ACCESS_KEY_ID": "tests",
            "AWS_SECRET_ACCESS_KEY": _SECRET,
        }

    def start(self) -> None:
        flags = {
            **self._ports,
            "dir": self._folder / "data",
            "ip": "127.0.0.1",
            "ip.bind": "127.0.0.1",
            "s3": "true",
            "s3.config": self._folder / "s3.json",
            "s3.autoCreateBucket": "true",
            "s3.port.iceberg": 0,
            "s3.port.lance": 0,
            "master.telemetry": "false",
            "master.volumeSizeLimitMB": _VOLUME,
            "volume.max": -(-self._megabytes // _VOLUME),
            "filer.localSocket": self._folder / "filer.sock",
            "s3.localSocket": self._folder / "s3.sock",
        }
        command = [self._program, "server", *(f"-{name}={value}" for name, value in flags.items())]
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log, cwd=self._folder)
        self._await_ready()

    def _await_ready(self) -> None:
        end = time.monotonic() + _START_SECONDS
        store = self.bucket()
        while time.monotonic() < end and self._process is not None and self._process.poll() is None:
            try:
                obstore.put(store, "ready", b"ready")
                return
            except Exception:
                time.sleep(0.1)
        raise RuntimeError(f"the S3 server did not start:\n{(self._folder / 'log').read_text()[-3000:]}")

    def bucket(self) -> S3Store:
        config = {name.lower(): value for name, value in self.environment.items()}
        options = {"allow_http": True, "timeout": "10s"}
        return S3Store(BUCKET, config=config, client_options=options, retry_config={"max_retries": 0})

    @contextmanager
    def unavailable(self) -> Iterator[None]:
        """Inside the block, it accepts connections and answers nothing."""
        self._process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self._process.send_signal(signal.SIGCONT)

    def close(self) -> None:
        """Kill the server with kill -9: a regular end takes long. Acknowledged objects are not lost."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(timeout=10)
