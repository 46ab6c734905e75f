"""One round of Flower as it is deployed: a SuperLink, a SuperNode for each client, SecAgg+, all over loopback.

`bench.arrays` plays it beside a round of our server and clients. Needs an environment with flwr 1.42 or later, whose
programs are beside its interpreter. Nothing is encrypted in transit, as with our server in the benchmarks.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import psutil

from bench._report import Figure, processor_seconds, wait_for

__all__ = ["play_whole"]

_APP: Final = """\
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "whole"
version = "1.0.0"
description = "one round of SecAgg+"
license = "Apache-2.0"
dependencies = []

[tool.flwr.app]
publisher = "bench"

[tool.flwr.app.components]
serverapp = "whole:server"
clientapp = "whole:client"

[tool.flwr.app.config]
"""
_CONNECTION: Final = '[superlink]\ndefault = "bench"\n\n[superlink.bench]\naddress = "127.0.0.1:{}"\ninsecure = true\n'
_LONGEST: Final = 900.0
"""Seconds after which a run counts as failed."""


def play_whole(python: Path, how: dict[str, int]) -> dict[str, Figure]:
    """Play one round; keys `wall_s`, `server_cpu_s` and `client_cpu_s`, the mean of a client.

    python: interpreter of the environment with flwr. how: clients, values, neighbours, threshold. The processor time of
    the server is that of the SuperLink and the processes that it starts, from the run's start to its end; that of a
    client is that of its SuperNode and the processes that it starts. Raises `SystemExit` if the run fails.
    """
    programs = python.parent
    with TemporaryDirectory() as root, ExitStack() as stack:
        folder = Path(root)
        seconds = folder / "seconds"
        environment = {
            **os.environ,
            "HOME": root,
            "FLWR_HOME": f"{root}/flwr",
            "FLWR_TELEMETRY_ENABLED": "0",
            "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
        }
        link_port, *ports = _free_ports(how["clients"] + 1)
        _write_app(folder, {**how, "seconds": str(seconds)}, link_port)

        def start(program: str, *arguments: str, port: int) -> int:
            command = [str(programs / program), "--insecure", *arguments, "--port", str(port)]
            quiet: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
            process = subprocess.Popen(command, env=environment, **quiet)
            stack.callback(_end, process.pid)
            return process.pid

        link = start("flower-superlink", "--host", "127.0.0.1", port=link_port)
        wait_for(link_port)
        nodes = [start("flower-supernode", "--superlink", f"127.0.0.1:{link_port}", port=port) for port in ports]
        for port in ports:
            wait_for(port)
        before = [processor_seconds(pid) for pid in (link, *nodes)]
        command = [str(programs / "flwr"), "run", str(folder / "app"), "bench"]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(f"flwr run failed:\n{done.stdout}{done.stderr}")
        limit = time.monotonic() + _LONGEST
        while not (seconds.exists() and seconds.read_text()):
            if time.monotonic() > limit:
                raise SystemExit(f"Flower's run did not end within {_LONGEST:.0f} s")
            time.sleep(1.0)
        spent = [processor_seconds(pid) - first for pid, first in zip((link, *nodes), before, strict=True)]
        return {
            "wall_s": float(seconds.read_text()),
            "server_cpu_s": spent[0],
            "client_cpu_s": sum(spent[1:]) / len(nodes),
        }


def _write_app(folder: Path, settings: dict[str, Any], port: int) -> None:
    """Write the app that `flwr run` sends, and the address of the SuperLink."""
    package = folder / "app" / "whole"
    package.mkdir(parents=True)
    shutil.copy(Path(__file__).with_name("flower_app.py"), package / "__init__.py")
    lines = (f"{key} = {value!r}\n".replace("'", '"') for key, value in settings.items())
    (folder / "app" / "pyproject.toml").write_text(_APP + "".join(lines))
    (folder / "flwr").mkdir()
    (folder / "flwr" / "config.toml").write_text(_CONNECTION.format(port))


def _free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        probes = [stack.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [int(probe.getsockname()[1]) for probe in probes]


def _end(pid: int) -> None:
    """End a process and the processes that it started."""
    try:
        process = psutil.Process(pid)
        whole = [process, *process.children(recursive=True)]
    except psutil.NoSuchProcess:
        return
    for each in whole:
        try:
            each.terminate()
        except psutil.NoSuchProcess:
            continue
    for each in psutil.wait_procs(whole, timeout=10)[1]:
        each.kill()
