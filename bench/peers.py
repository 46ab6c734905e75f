"""The peers of the benchmarks: TenSEAL's usual pipeline, phe, Flower in one process, and Flower as it is deployed."""

from __future__ import annotations

import io
import json
import os
import shutil
import subprocess
import time
from contextlib import ExitStack, redirect_stdout, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import numpy as np
import psutil
import tenseal as ts
from numpy.typing import NDArray
from phe import EncryptedNumber, PaillierPrivateKey

from bench._report import Figure, processor_seconds, wait_for
from client_sdk.lab.local_server import free_ports


class TenSealPeer:
    """TenSEAL's usual pipeline for one vector: N=8192, moduli of 60-40-40-60 bits, scale 2^40."""

    def __init__(self, vector: NDArray[np.float64]) -> None:
        self._context = ts.context(ts.SCHEME_TYPE.CKKS, 8192, coeff_mod_bit_sizes=[60, 40, 40, 60])
        self._context.global_scale = 2**40
        self._vector = vector
        self.body = self.seal()
        self._total = ts.ckks_vector_from(self._context, self.body)

    def seal(self) -> bytes:
        """Encrypt and serialise the vector. TenSEAL prints a warning each time, which is suppressed."""
        with redirect_stdout(io.StringIO()):
            return bytes(ts.ckks_vector(self._context, self._vector).serialize())

    def open(self) -> list[float]:
        """Deserialise and decrypt a sum of one contribution."""
        return list(ts.ckks_vector_from(self._context, self.body).decrypt())

    def fold(self) -> None:
        """Deserialise and add one contribution."""
        self._total += ts.ckks_vector_from(self._context, self.body)


class PhePeer:
    """phe as in its documentation, one value per ciphertext, with the shortest encoding that leaves phe unchanged.

    A ciphertext is sent at its full width (phe's documentation sends JSON, 2.4 times as long). precision: of all
    values; exponents are then equal, so that phe adds without aligning them, and none is sent. Without it, values are
    encoded as floating-point numbers, and each exponent is sent in 4 bytes.
    """

    def __init__(self, key: PaillierPrivateKey, values: NDArray[np.float64], precision: float | None = None) -> None:
        self._secret, self._public, self._precision = key, key.public_key, precision
        self._width, self._values = key.public_key.n.bit_length() // 4, values.tolist()
        self._exponent = self._public.encrypt(self._values[0], precision=precision).exponent
        self.bodies = self.seal()
        self._totals = [self._read(body) for body in self.bodies]

    def seal(self) -> list[bytes]:
        return [self._written(self._public.encrypt(value, precision=self._precision)) for value in self._values]

    def fold(self) -> None:
        self._totals = [total + self._read(body) for total, body in zip(self._totals, self.bodies, strict=True)]

    def open(self) -> list[float]:
        return [self._secret.decrypt(total) for total in self._totals]

    def _written(self, number: EncryptedNumber) -> bytes:
        exponent = number.exponent.to_bytes(4, signed=True) if self._precision is None else b""
        return int(number.ciphertext()).to_bytes(self._width, "big") + exponent

    def _read(self, body: bytes) -> EncryptedNumber:
        exponent = int.from_bytes(body[self._width :], signed=True) if self._precision is None else self._exponent
        return EncryptedNumber(self._public, int.from_bytes(body[: self._width], "big"), exponent)


class FlowerPeer:
    """Flower in a process of its own (`flower_peer.py`); `python` must be able to import flwr."""

    def __init__(self, python: Path) -> None:
        command = [str(python), str(Path(__file__).with_name("flower_peer.py"))]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(self, what: str, **how: int) -> dict[str, Any]:
        """The answer to one command of flower_peer.py; `SystemExit` if the process does not answer."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps({"do": what, "seed": 1, **how}) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            line = ""
        else:
            line = self._process.stdout.readline()
        if not line:
            raise SystemExit("no answer from Flower: set --peer-python to the interpreter of an environment with flwr")
        return dict(json.loads(line))

    def close(self) -> None:
        """Close its input and wait for its end."""
        self._process.communicate()


# --- Flower as it is deployed: a SuperLink, and a SuperNode for each client

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
_ROUNDING: Final = 1e-4
"""More than the error of a value of Flower's mean, whose steps are 4e-6."""


def play_whole(python: Path, how: dict[str, int]) -> dict[str, Figure]:
    """Play one round of SecAgg+ over loopback, unencrypted; keys `wall_s`, `server_cpu_s`, `client_cpu_s` (mean).

    python: interpreter of an environment with flwr 1.42 or later, whose programs are beside it. how: clients, values,
    neighbours, threshold. The processor time of the server is that of the SuperLink and the processes that it starts,
    from the run's start to its end; that of a client is that of its SuperNode and the processes that it starts.
    `SystemExit` if the run fails or its model is wrong.
    """
    programs = python.parent
    with TemporaryDirectory() as root, ExitStack() as stack:
        folder = Path(root)
        answer = folder / "answer"
        environment = {
            **os.environ,
            "HOME": root,
            "FLWR_HOME": f"{root}/flwr",
            "FLWR_TELEMETRY_ENABLED": "0",
            "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
        }
        link_port, *ports = free_ports(how["clients"] + 1)
        _write_app(folder, {**how, "answer": str(answer)}, link_port)

        def start(program: str, *arguments: str, port: int) -> int:
            command = [str(programs / program), "--insecure", *arguments, "--port", str(port)]
            quiet: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
            process = subprocess.Popen(command, env=environment, **quiet)
            stack.callback(_end, process)
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
        while not (answer.exists() and answer.read_text()):
            if time.monotonic() > limit:
                raise SystemExit(f"Flower's run did not end within {_LONGEST:.0f} s")
            time.sleep(1.0)
        spent = [processor_seconds(pid) - first for pid, first in zip((link, *nodes), before, strict=True)]
        told = json.loads(answer.read_text())
        if told["error"] > _ROUNDING:
            raise SystemExit(f"Flower's round gave a model that is wrong by {told['error']}")
        return {"wall_s": told["wall_s"], "server_cpu_s": spent[0], "client_cpu_s": sum(spent[1:]) / len(nodes)}


def _write_app(folder: Path, settings: dict[str, Any], port: int) -> None:
    """Write the app that `flwr run` sends, and the address of the SuperLink."""
    package = folder / "app" / "whole"
    package.mkdir(parents=True)
    shutil.copy(Path(__file__).with_name("flower_app.py"), package / "__init__.py")
    lines = (f"{key} = {value!r}\n".replace("'", '"') for key, value in settings.items())
    (folder / "app" / "pyproject.toml").write_text(_APP + "".join(lines))
    (folder / "flwr").mkdir()
    (folder / "flwr" / "config.toml").write_text(_CONNECTION.format(port))


def _end(started: subprocess.Popen[bytes]) -> None:
    """End a process and the processes that it started."""
    with suppress(psutil.NoSuchProcess):
        process = psutil.Process(started.pid)
        whole = [process, *process.children(recursive=True)]
        for each in whole:
            with suppress(psutil.NoSuchProcess):
                each.terminate()
        for each in psutil.wait_procs(whole, timeout=10)[1]:
            each.kill()
    started.wait()
