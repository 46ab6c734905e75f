"""A server that systemd starts (`Type=notify`) says when it answers, that it has not hung, and that it stops."""

from __future__ import annotations

import os
import signal
import socket
from pathlib import Path

import httpx
import pytest

from aggregator_service.commands.service_manager import notify
from tests.support.server import AggregatorProcess


def test_a_server_tells_systemd_what_it_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.settimeout(60)
        systemd.bind(str(tmp_path / "notify"))
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        server = AggregatorProcess(tmp_path / "data")
        server.launch()
        try:
            assert systemd.recv(100) == b"READY=1"
            assert httpx.get(f"{server.url}/healthz").status_code == 200
            assert [systemd.recv(100) for _ in range(2)] == [b"WATCHDOG=1"] * 2
            os.kill(server.pid, signal.SIGTERM)
            assert server.wait_dead(seconds=30) == 0
            told = [systemd.recv(100)]
            while told[-1] == b"WATCHDOG=1":
                told.append(systemd.recv(100))
            assert told[-1] == b"STOPPING=1"
        finally:
            server.stop()


def test_a_socket_that_nobody_reads_is_logged_and_ends_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "nothing"))
    notify("READY=1")
    assert "cannot tell systemd READY=1: No such file or directory" in caplog.text
    monkeypatch.delenv("NOTIFY_SOCKET")
    caplog.clear()
    notify("READY=1")
    assert caplog.text == ""
