"""docs/deploy.md, "One server with systemd": every command runs as printed, in a sandbox.

What is replaced: `sudo` and `systemctl` are programs of the sandbox (the second one notes its arguments), and paths
below /opt, /etc and /var are in a folder. pip, and the locked packages of the extras, are links to those of this
interpreter. systemd does not run: the test starts the unit's command with the unit's settings.
"""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import httpx
import pytest

from client_sdk import Client, Identity, MemoryStore
from client_sdk.organiser import Organiser
from client_sdk.rounds.member import request_for
from tests.support.pages import environment, named_blocks, terminal, wait_for
from tests.support.replicas import Cluster, own_cluster, wait_until
from tests.support.server import free_port

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "deploy.md"
PACKAGES = Path(sysconfig.get_path("purelib"))
ADMIN = {"PGHOST": "127.0.0.1", "PGUSER": "postgres"}
"""Where psql connects, and as whom, in place of `sudo -u postgres`."""
COMMIT = ["git", "-c", "user.name=tests", "-c", "user.email=tests@localhost", "commit", "-q"]
PROGRAMS = {
    "sudo": '#!/bin/sh\nwhile [ "$1" = -u ]; do shift 2; done\nexec "$@"\n',
    "python3": f"""#!/bin/sh
if [ "$1 $2" = "-m venv" ]; then  # links to pip take far less time than an installation
    "{sys.executable}" -m venv --without-pip "$3"
    ln -s {PACKAGES}/pip {PACKAGES}/pip-* "$3"/lib/python3*/site-packages
    printf '#!/bin/sh\\nexec "%s/bin/python" -m pip "$@"\\n' "$3" > "$3/bin/pip" && chmod +x "$3/bin/pip"
else
    exec "{sys.executable}" "$@"
fi
""",
    "systemctl": '#!/bin/sh\necho "$@" >> "$SANDBOX/systemctl.log"\n',
    "useradd": '#!/bin/sh\necho "$@" >> "$SANDBOX/useradd.log"\n',
    # whatever the owner: the sandbox has no other users
    "install": """#!/bin/bash
while [ $# -gt 0 ]; do case $1 in -o|-g) shift;; *) kept+=("$1");; esac; shift; done
exec /usr/bin/install "${kept[@]}"
""",
}


class Machine:
    """A machine in a folder: its programs, its directories and a copy of the repository in which the shells start."""

    def __init__(self, folder: Path, cluster: Cluster) -> None:
        self.folder, self.clone = folder, folder / "clone"
        for name in ("aggregator_service", "client_sdk", "protocols", "docs/deploy", "scripts"):
            shutil.copytree(ROOT / name, self.clone / name, ignore=shutil.ignore_patterns("__pycache__"))
        for name in ("pyproject.toml", "requirements.lock", "setup.py", "LICENSE", ".gitignore"):
            shutil.copy(ROOT / name, self.clone / name)
        for command in (["git", "init", "-q"], ["git", "add", "-A"], [*COMMIT, "-m", "clone"]):
            subprocess.run(command, cwd=self.clone, check=True)
        for name in ("opt", "etc/systemd/system", "var/lib/private/hushrec", "srv", "bin"):
            (folder / name).mkdir(parents=True)
        (folder / "var/lib/private/hushrec").chmod(0o700)
        for name, text in PROGRAMS.items():
            (folder / "bin" / name).write_text(text)
            (folder / "bin" / name).chmod(0o755)
        moved = ("opt/hushrec", "etc/hushrec", "etc/systemd", "var/lib", "var/backups", "srv/hushrec")
        self.blocks = named_blocks(PAGE, {f"/{place}": f"{folder}/{place}" for place in moved})
        psql = subprocess.run(
            [ROOT / "scripts" / "postgres.sh", "programs"], capture_output=True, text=True, check=True
        )
        port = cluster.url.rpartition(":")[2].partition("/")[0]
        variables = {name: value for name, value in environment().items() if not name.startswith(("PYTHON", "PG"))}
        self.variables = variables | {
            "PATH": f"{folder / 'bin'}:{variables['PATH']}:{psql.stdout.strip()}",
            "SANDBOX": str(folder),
            "PIP_NO_COMPILE": "1",
            "PIP_NO_INDEX": "1",
            "PGPORT": port,
        }

    def run(self, *names: str, **more: str) -> str:
        """Run the blocks in one shell; return what they printed."""
        script = "".join(self.blocks[name] for name in names)
        done = subprocess.run(
            ["bash", "-euc", script], cwd=self.clone, env=self.variables | more, capture_output=True, text=True,
            timeout=300, check=False,
        )  # fmt: skip
        assert done.returncode == 0, f"{script}\n{done.stdout}{done.stderr}"
        return done.stdout

    def on_server(self, command: str, *names: str, **more: str) -> str:
        """Run a command of the server, and blocks that use the function `on_server`; return what they printed."""
        start = self.blocks["task"].index("on_server()")
        own = self.blocks["task"][start : self.blocks["task"].index("on_server task create")]
        self.blocks["on_server"] = f"{own}{command and 'on_server'} {command}\n"
        return self.run("on_server", *names, **more)

    def systemctl(self) -> list[str]:
        """Return the arguments with which systemctl was called."""
        return (self.folder / "systemctl.log").read_text().splitlines()

    def fill_environment(self, *extras: str) -> None:
        """Link to the locked dependencies of the extras alone, which the page's `pip install` then finds there."""
        command = [sys.executable, ROOT / "docs" / "deploy" / "pins.py", *extras]
        text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        (installed,) = (self.folder / "opt" / "hushrec" / "lib").glob("python3*/site-packages")
        for name in set(re.findall("^([A-Za-z0-9][^ ]*)==", text, re.MULTILINE)):
            with suppress(PackageNotFoundError):  # a package of another system
                tops = {Path(file).parts[0] for file in distribution(name).files or ()}
                for top in tops - {"..", "__pycache__"}:
                    (installed / top).symlink_to(PACKAGES / top)

    def unit_script(self, name: str = "hushrec.service", instance: str = "") -> str:
        """What systemd does when it starts the unit: its variables, the file of its settings, its command."""
        unit = (self.folder / "etc/systemd/system" / name).read_text().replace("%i", instance)
        lines = [line for line in unit.splitlines() if "=" in line and not line.startswith("#")]
        settings = [line.partition("=")[::2] for line in lines]
        (command,) = [value for name, value in settings if name == "ExecStart"]
        (file,) = [value.lstrip("-") for name, value in settings if name == "EnvironmentFile"]
        own = [value for name, value in settings if name == "Environment"]
        # where systemd puts the directory of a dynamic user, or another's
        state = str(self.folder / ("var/lib/hushrec" if instance else "var/lib/private/hushrec"))
        exported = " ".join(shlex.quote(value.replace("/var/lib/hushrec", state)) for value in own)
        return f"umask 077; export {exported}; set -a; . {self.folder}{file}; exec {self.folder}{command}"


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    with own_cluster() as cluster:
        yield Machine(tmp_path, cluster)


@pytest.mark.slow
@pytest.mark.timeout(1200)  # it builds and installs the project twice
def test_the_page_runs_from_the_clone_to_a_revoked_member_and_to_replicas(tmp_path: Path, machine: Machine) -> None:
    port = free_port()
    first = ["environment", "install", "settings", "start", "task", "holder", "revoke"]
    later = ["backup", "drill", "upgrade", "restart", "rollback"]
    assert list(machine.blocks) == [*first, "replicas", "tls", *later]
    machine.run("environment")
    machine.fill_environment("server", "postgres")
    machine.fill_environment("--only", "setuptools")
    version = machine.run("install").splitlines()[-1]
    commit = ["git", "rev-parse", "HEAD"]
    head = subprocess.run(commit, cwd=machine.clone, capture_output=True, text=True, check=True).stdout
    assert re.fullmatch(rf"hushrec-server [0-9.]+\.dev[0-9]{{14}}\+g{head[:12]}", version)
    machine.run("settings", **ADMIN)
    settings = tmp_path / "etc" / "hushrec.env"
    assert settings.stat().st_mode & 0o777 == 0o600
    edited = settings.read_text().replace("https://hushrec.example.org", f"http://127.0.0.1:{port}")
    settings.write_text(edited.replace("HUSHREC_PORT=8000", f"HUSHREC_PORT={port}"))
    url = f"http://127.0.0.1:{port}"
    machine.blocks["holder"] = machine.blocks["holder"].replace("https://hushrec.example.org", url)
    with terminal(machine.unit_script(), tmp_path, "server.log", machine.variables):
        wait_for(port, tmp_path)
        token = machine.run("start").splitlines()[-1]
        assert machine.systemctl() == ["daemon-reload", "enable --now hushrec"]
        assert machine.run("task").splitlines()[-1].strip().startswith('"waiting_for": "the key holder: none')
        answer = httpx.get(f"{url}/v1/tasks", headers={"Authorization": f"Bearer {token}"})
        assert [task["name"] for task in answer.json()["tasks"]] == ["movies"]
        assert "database: PostgreSQL hushrec on 127.0.0.1" in (tmp_path / "server.log").read_text()
        with terminal(f"{machine.blocks['holder']}wait", machine.clone, "holder.log", machine.variables):
            ann = Identity.generate()
            certificate = Organiser.open(machine.clone / "organiser").issue(request_for(ann, "movies", "member"), "ann")
            with Client(url, ann, MemoryStore()) as client:
                invitation = (machine.clone / "movies.invitation").read_text().strip()
                client.join("movies", invitation=invitation, certificate=certificate)
            wait_until(
                lambda: '"keyed_members": 1' in machine.on_server("task show movies"), "the holder seals her keys"
            )
        assert "  member  revoked\n" in machine.on_server("", "revoke")
        _check_backups(machine, port)
    _check_rollback(machine, tmp_path, url, token)
    _check_replicas(machine, tmp_path, token)


def _check_backups(machine: Machine, port: int) -> None:
    """While the server runs: a backup, a drill that leaves nothing behind, and the blocks of an upgrade."""
    assert "the database and " in machine.on_server("", "backup")
    assert machine.systemctl()[-1] == "enable --now hushrec-backup.timer"
    assert "movies" in machine.run("drill", **ADMIN)
    assert not (machine.folder / "var/lib/hushrec-drill").exists()
    machine.on_server("", "upgrade")
    subprocess.run([*COMMIT, "--allow-empty", "-m", "a newer version"], cwd=machine.clone, check=True)
    newer = machine.run("install").splitlines()[-1]
    assert newer != (machine.clone / "version-before").read_text().strip()
    machine.blocks["restart"] = machine.blocks["restart"].replace(
        "https://hushrec.example.org", f"http://127.0.0.1:{port}"
    )
    assert '"status":"ready"' in machine.run("restart")
    assert machine.systemctl()[-1] == "restart hushrec"


def _check_rollback(machine: Machine, folder: Path, url: str, token: str) -> None:
    """A restore into a new database, from which the server starts."""
    assert "restored " in machine.on_server("", "rollback", **ADMIN)
    assert machine.systemctl()[-2:] == ["stop hushrec", "start hushrec"]
    with terminal(machine.unit_script(), folder, "restored.log", machine.variables):
        wait_for(int(url.rpartition(":")[2]), folder)
        answer = httpx.get(f"{url}/v1/tasks", headers={"Authorization": f"Bearer {token}"})
        assert [task["name"] for task in answer.json()["tasks"]] == ["movies"]


def _check_replicas(machine: Machine, folder: Path, token: str) -> None:
    """The block moves the blobs and starts two units, which share them."""
    machine.on_server("", "replicas")
    assert machine.systemctl()[-3:] == [
        "disable --now hushrec",
        "daemon-reload",
        "enable --now hushrec@8000 hushrec@8001",
    ]
    ports = [free_port(), free_port()]
    with ExitStack() as running:
        for port in ports:
            script = machine.unit_script("hushrec@.service", str(port))
            running.enter_context(terminal(script, folder, f"replica-{port}.log", machine.variables))
        for port in ports:
            wait_for(port, folder)
            answer = httpx.get(f"http://127.0.0.1:{port}/v1/tasks", headers={"Authorization": f"Bearer {token}"})
            assert [task["name"] for task in answer.json()["tasks"]] == ["movies"]
            log = (folder / f"replica-{port}.log").read_text()
            assert f"blobs: dir:{folder}/srv/hushrec/blobs" in log, log
