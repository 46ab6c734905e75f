"""The alerts and the dashboard in docs/deploy: their metrics exist, and each alert fires for its fault alone."""

from __future__ import annotations

import json
import re
import subprocess
from contextlib import closing
from pathlib import Path
from typing import Any

import yaml

from aggregator_service.migrations.migrate import migrate
from aggregator_service.observability.metrics import Metrics
from aggregator_service.round_states import TABLE
from aggregator_service.storage.database import Database
from aggregator_service.storage.directory import DirectoryBlobs
from aggregator_service.tasks.ledger import spent_budgets
from tests.support.needs import required

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "docs" / "deploy"


def documents(path: Path) -> list[dict[str, Any]]:
    return [found for found in yaml.safe_load_all(path.read_text(encoding="utf-8")) if found]


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
