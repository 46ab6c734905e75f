"""The supervisor of API processes, over trivial processes: messages, restarts, giving up."""

from __future__ import annotations

import os
import signal
import socket
import threading
from multiprocessing import get_context
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest

from aggregator_service.commands import supervisor
from aggregator_service.commands.supervisor import Supervisor
from aggregator_service.storage.local_channel import LocalChannel

CONTEXT = get_context("spawn")


def fails(starts: str) -> None:
    with Path(starts).open("a") as file:
        file.write("x")
    os._exit(3)


def talks(number: int, channel: socket.socket, folder: str) -> None:
    """Tell the others this number, write down what they tell, and end when all was heard."""
    mine, heard, everything = LocalChannel(channel), set[str](), threading.Event()

    def on_message(message: str) -> None:
        heard.add(message)
        if len(heard) == 2 and not everything.is_set():  # messages are repeated
            written = Path(folder) / f"{number}.part"
            written.write_text(" ".join(sorted(heard)))
            written.rename(Path(folder) / str(number))
            everything.set()

    mine.listen(on_message)
    while not everything.wait(0.1) or len(list(Path(folder).glob("[0-9]"))) < 3:
        mine.send(f"from {number}")
    if number == 1:
        os.kill(os.getppid(), signal.SIGTERM)
    signal.pause()


def test_processes_that_end_again_and_again_end_the_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "_RESTART_SECONDS", 0.0)
    starts = tmp_path / "starts"

    def start(_number: int, _channel: socket.socket) -> BaseProcess:
        process = CONTEXT.Process(target=fails, args=(str(starts),))
        process.start()
        return process

    assert Supervisor(1, start).run() == 1
    assert starts.read_text() == "x" * 5


def test_a_message_reaches_all_other_processes_and_a_signal_ends_them(tmp_path: Path) -> None:
    processes: list[BaseProcess] = []

    def start(number: int, channel: socket.socket) -> BaseProcess:
        process = CONTEXT.Process(target=talks, args=(number, channel, str(tmp_path)))
        process.start()
        processes.append(process)
        return process

    assert Supervisor(3, start).run() == 0
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {
        "1": "from 2 from 3",
        "2": "from 1 from 3",
        "3": "from 1 from 2",
    }
    assert [process.exitcode for process in processes] == [-signal.SIGTERM] * 3
