"""What a server warns of at its start and what it imports; sources of settings; readiness."""

from __future__ import annotations

import asyncio
import os
import resource
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError
from starlette.testclient import TestClient

from aggregator_service.app import create_app
from aggregator_service.commands.options import CommandError
from aggregator_service.commands.startup_checks import check_semaphores, doubtful_proxies, doubtful_settings
from aggregator_service.compute.workers import FoldPool, WorkersUnavailableError
from aggregator_service.services import Services
from aggregator_service.settings import Settings
from tests.support.api import aggregator_inside, services
from tests.support.server import Authority, free_port


def test_semaphores_that_cannot_be_created_are_named_at_the_start() -> None:
    check_semaphores()
    files = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, files[1]))  # no file can be opened, as with a read-only /dev/shm
    try:
        with pytest.raises(CommandError, match="cannot create a semaphore .*/dev/shm must be a tmpfs"):
            check_semaphores()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, files)


def warnings_of(tmp_path: Path, variables: tuple[str, ...] = (), **given: Any) -> list[str]:
    return list(doubtful_settings(Settings.load(data_dir=tmp_path, **given), variables))


def test_unknown_variables_are_named_with_the_nearest_setting(tmp_path: Path) -> None:
    variables = ("HUSHREC_WORKRES", "HUSHREC_PORT", "HUSHREC_INVITATION", "PATH", "HUSHREC_QQQQQ")
    assert warnings_of(tmp_path, variables) == [
        "unknown setting HUSHREC_QQQQQ is ignored",
        "unknown setting HUSHREC_WORKRES is ignored; did you mean HUSHREC_WORKERS?",
    ]


def test_settings_that_leave_a_server_open_are_warned_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pair = Authority(tmp_path).sign("server", server=True)  # good for a day
    tls = {"tls_cert": pair.certificate, "tls_key": pair.key}
    proxy, no_tls = "listening on {} without a reverse proxy", "listening on {} without TLS"
    for host in ("0.0.0.0", "::"):  # noqa: S104
        for more, missing in (({}, [no_tls, proxy]), ({"behind_proxy": True}, []), (tls, [proxy])):
            for found, start in zip(warnings_of(tmp_path, host=host, **more), missing, strict=True):
                assert found.startswith(start.format(host))
    for host in ("127.0.0.1", "::1"):
        assert warnings_of(tmp_path, host=host) == []
    pair.key.chmod(0o644)
    assert [f"chmod 600 {pair.key}" in one for one in warnings_of(tmp_path, **tls)] == [True]
    pair.key.chmod(0o600)
    monkeypatch.setattr("aggregator_service.commands.startup_checks.time.time", lambda: time.time_ns() / 1e9 + 2e5)
    assert [f"{pair.certificate} has expired" in one for one in warnings_of(tmp_path, **tls)] == [True]


def test_addresses_of_proxies_that_are_none_are_warned_of() -> None:
    for addresses in ("", "*", "127.0.0.1", "10.0.0.0/8, ::1", "/run/proxy.sock"):
        assert not list(doubtful_proxies({"FORWARDED_ALLOW_IPS": addresses})), addresses
    for addresses in ("garbage", "10.0.0.1,proxy.example.org"):
        (warning,) = doubtful_proxies({"FORWARDED_ALLOW_IPS": addresses})
        assert "FORWARDED_ALLOW_IPS" in warning


def test_readiness_is_checked_once_a_second_however_many_ask(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with aggregator_inside(tmp_path) as api:
        checks, ping = [], services(api).database.ping

        def slow() -> None:
            checks.append(1)
            time.sleep(0.2)
            ping()

        monkeypatch.setattr(services(api).database, "ping", slow)
        with ThreadPoolExecutor(8) as pool:
            answers = list(pool.map(lambda _: api.http.get("/readyz"), range(24)))
        assert {answer.status_code for answer in answers} == {200}
        assert len(checks) == 1
        time.sleep(1.1)
        assert api.http.get("/readyz").status_code == 200
        assert len(checks) == 2


def test_settings_come_from_flags_then_environment_then_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"HUSHREC_PORT": "9000", "HUSHREC_TUNING": '{"fold_batch": 7}', "HUSHREC_HOST": ""}.items():
        monkeypatch.setenv(name, value)
    loaded = Settings.load(port=9001, host=None)
    assert (loaded.port, loaded.tuning.fold_batch, loaded.host) == (9001, 7, "127.0.0.1")
    assert Settings().port == 9000


def test_secret_settings_are_not_shown_and_unknown_ones_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HUSHREC_CRASH_AT", "nowhere")  # an unknown variable is ignored
    for variable in ("HUSHREC_OPERATOR_TOKEN", "HUSHREC_DATABASE_URL"):
        monkeypatch.setenv(variable, "postgresql://me:secret@db/name")
    assert "secret" not in repr(Settings()) + Settings().model_dump_json()
    with pytest.raises(ValidationError, match="ports"):
        Settings(ports=8000)
    monkeypatch.setenv("HUSHREC_PORT", "secret")
    with pytest.raises(ValidationError) as caught:
        Settings()
    assert "secret" not in str(caught.value)


NEEDLESS = ["dask", "distributed", "jinja2", "matplotlib", "obstore", "opentelemetry.sdk", "psycopg", "rich", "scipy"]
NEEDLESS += ["tenseal"]
_PROGRAM = """
import os, signal, sys, threading, time, urllib.error, urllib.request

def wait_until_ready():
    while True:
        try:
            urllib.request.urlopen("http://127.0.0.1:{port}/readyz")
            break
        except urllib.error.URLError:
            time.sleep(0.05)
    print("imported:", [name for name in {needless} if name in sys.modules], flush=True)
    os.kill(os.getpid(), signal.SIGTERM)

threading.Thread(target=wait_until_ready, daemon=True).start()
sys.argv[1:] = ["serve", "--data-dir", {folder!r}, "--port", "{port}"]
from aggregator_service.cli import main
main()
"""


def test_a_server_imports_no_package_before_it_needs_it(tmp_path: Path) -> None:
    program = _PROGRAM.format(port=free_port(), needless=NEEDLESS, folder=str(tmp_path / "data"))
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False)
    assert "imported: []" in done.stdout, done.stdout + done.stderr


def test_a_command_of_an_operator_imports_no_web_server(tmp_path: Path) -> None:
    program = (
        "import sys; from aggregator_service.cli import main; "
        f"sys.argv[1:] = ['task', 'list', '--data-dir', {str(tmp_path)!r}]\n"
        "try: main()\nfinally: print('imported:', [name for name in ('fastapi', 'uvicorn') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False)
    assert "imported: []" in done.stdout, done.stdout + done.stderr
    assert "no database in" in done.stderr


def test_a_background_job_that_fails_is_logged_and_started_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    runs, again = list[int](), threading.Event()

    async def fails_once(_services: Services) -> None:
        runs.append(len(runs))
        if len(runs) == 1:
            raise RuntimeError("a fault of the job")
        again.set()

    app = create_app(Settings(data_dir=tmp_path / "data"))
    app.state.beside_server = fails_once
    with TestClient(app):
        assert again.wait(60.0)
    (line,) = [record for record in caplog.records if "a background job stopped" in record.getMessage()]
    assert line.exc_info is not None and "a fault of the job" in str(line.exc_info[1])


def test_a_job_that_ends_its_workers_is_a_fault_of_the_executor() -> None:
    with closing(FoldPool(1)) as pool, pytest.raises(WorkersUnavailableError, match="worker processes"):
        asyncio.run(pool.run(os._exit, 1))
