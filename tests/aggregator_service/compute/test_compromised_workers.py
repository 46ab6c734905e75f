"""A compromised worker or scheduler runs no code in the server, and a false report fails the job, by name."""

from __future__ import annotations

import asyncio
import logging
import os
import pickle
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import msgpack
import pytest
from distributed import Client
from distributed.comm import listen
from distributed.protocol.serialize import Serialize, ToPickle

from aggregator_service.compute.plain_comm import PLAIN_SCHEMES, plain_value, register_plain_schemes
from tests.support.api import Api
from tests.support.cluster import running_cluster, wait_until
from tests.support.server import running_aggregator
from tests.support.sums import KeyedRound

pytestmark = pytest.mark.timeout(600)  # schedulers, workers and servers start, each a process with much to import

KEY = "job"


class Evil:
    """A value whose pickle, when it is loaded, writes the loading process's id to a file."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self) -> tuple[Any, ...]:
        return eval, (f"open({str(self.file)!r}, 'w').write(str(__import__('os').getpid()))",)


def task_erred(evil: Evil) -> Any:
    return {"op": "task-erred", "key": KEY, "exception": pickle.dumps(evil), "traceback": None}


def erred_traceback(evil: Evil) -> Any:
    return {"op": "task-erred", "key": KEY, "exception": "text", "traceback": pickle.dumps(evil)}


def type_of_result(evil: Evil) -> Any:
    return {"op": "key-in-memory", "key": KEY, "type": pickle.dumps(evil)}


def failed_stream(evil: Evil) -> Any:
    return {"op": "any", "status": "error", "exception": pickle.dumps(evil)}


def warning(evil: Evil) -> Any:
    event = {"message": pickle.dumps("text"), "category": pickle.dumps(evil)}
    return {"op": "event", "topic": "warn", "event": (0.0, event)}


def pickled_part(evil: Evil) -> Any:
    return {"op": "key-in-memory", "key": KEY, "type": ToPickle(evil)}


def serialized_part(evil: Evil) -> Any:
    return {"op": "key-in-memory", "key": KEY, "type": Serialize(evil)}


STREAM = [task_erred, erred_traceback, type_of_result, failed_stream, warning, pickled_part, serialized_part]


def failed_call(evil: Evil) -> Any:
    return {"status": "uncaught-error", "exception": pickle.dumps(evil), "traceback": None}


def pickled_answer(evil: Evil) -> Any:
    return {"type": "Scheduler", "workers": ToPickle(evil)}


ANSWERS = [failed_call, pickled_answer]


@contextmanager
def hostile_scheduler(stream: Any, answer: Any) -> Iterator[str]:
    """A scheduler at the address `host:port`: it sends `stream` to a client with a task, `answer` to every call."""
    loop, address, started = asyncio.new_event_loop(), [], threading.Event()

    async def serve(comm: Any) -> None:
        with suppress(OSError):
            while True:
                messages = await comm.read()
                for message in messages if isinstance(messages, list | tuple) else [messages]:
                    match message.get("op"):
                        case "identity" if answer is None:
                            await comm.write({"type": "Scheduler", "id": "s", "workers": {}})
                        case "register-client":
                            await comm.write([{"op": "stream-start"}])
                        case "update-graph":
                            await comm.write([stream])
                        case _ if message.get("reply", False):
                            await comm.write(answer)

    async def run() -> None:
        listener = await listen("tcp://127.0.0.1:0", serve, deserialize=False)
        address.append(listener.contact_address.partition("://")[2])
        started.set()
        await stopped.wait()
        listener.stop()

    stopped = asyncio.Event()
    thread = threading.Thread(target=lambda: loop.run_until_complete(run()))
    thread.start()
    assert started.wait(30)
    try:
        yield address[0]
    finally:
        loop.call_soon_threadsafe(stopped.set)
        thread.join(30)


def use(scheme: str, address: str) -> None:
    """Connect as the server does, submit a task and wait until it has ended or the scheduler says no more."""
    register_plain_schemes()
    with suppress(Exception):  # a hostile answer may end the connection
        client = Client(f"{scheme}://{address}", timeout=3, set_as_default=False)
        try:
            task = client.submit(int, key=KEY, pure=False)
            ended = threading.Event()
            task.add_done_callback(lambda _: ended.set())
            ended.wait(1)
        finally:
            client.close(timeout=1)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("message", STREAM + ANSWERS, ids=lambda message: message.__name__)
def test_attack_frames_of_a_scheduler_that_dasks_client_loads(message: Callable[[Evil], Any], tmp_path: Path) -> None:
    """With Dask's own connections each of these frames runs code in the process of the client; with ours none does."""
    logging.getLogger("distributed").setLevel(logging.CRITICAL)
    for scheme in ("tcp", PLAIN_SCHEMES["tcp"]):
        file = tmp_path / scheme.replace("+", "-")
        stream = message(Evil(file)) if message in STREAM else None
        answer = message(Evil(file)) if message in ANSWERS else None
        with hostile_scheduler(stream, answer) as address:
            use(scheme, address)
        if scheme == "tcp":
            assert file.read_text() == str(os.getpid())
        else:
            assert not file.exists()


def test_plain_values_hold_nothing_that_can_be_unpickled() -> None:
    evil = b"\x80\x04."
    message = {
        "text": "é",
        "nested": [1, 2.5, True, None, {"binary": evil}],
        "extension": msgpack.ExtType(1, evil),
        "time": msgpack.Timestamp(1),
        "part": {"__Pickled__": 1},
        evil: "a binary name",
    }
    plain = plain_value(msgpack.packb(message))
    assert plain == {
        "text": "é",
        "nested": (1, 2.5, True, None, {"binary": None}),
        "extension": None,
        "time": None,
        "part": None,
    }


@pytest.mark.parametrize("frame", [b"", b"\xc1", b"\x81\x80\x01", b"\x91" * 5000, msgpack.packb(1) + b"\x00"])
def test_frames_that_are_not_msgpack_are_refused(frame: bytes) -> None:
    with pytest.raises(ValueError, match="not msgpack"):
        plain_value(frame)


PATCH = """
import os, pickle
import aggregator_service.compute.dask_pool as pool

class Evil:
    def __reduce__(self):
        return eval, ("open({file!r}, 'w').write(str(__import__('os').getpid()))",)

def run(version, work, job, report):
    job.blobs.put(report, pickle.dumps(Evil()))
    return Evil()

pool._run_job = run
"""


def compromised(folder: Path, file: Path) -> str:
    """Return a PYTHONPATH with which a worker's results and reports are pickles that run code."""
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(PATCH.format(file=str(file)))
    return f"{folder}:{Path.cwd()}"


@pytest.mark.filterwarnings("ignore")
def test_attack_result_of_a_compromised_worker(tmp_path: Path) -> None:
    """The server reports whose outcome it refused, and continues with an honest worker; fetching a result runs code."""
    file = tmp_path / "attacked"
    with running_cluster(tmp_path / "cluster", workers=0) as cluster:
        cluster.start_worker(PYTHONPATH=compromised(tmp_path / "patch", file))
        with running_aggregator(tmp_path / "data", executor=cluster.executor) as server:
            api = Api(server.url, server.operator_token)
            round_ = KeyedRound(api, "plain")
            round_.contribute()
            wait_until("a refusal", lambda: "cannot run a job: a job failed 3 times" in server.log())
            assert "the report of the worker tcp://127.0.0.1:" in server.log()
            assert "is refused: the report is neither an outcome nor a failure" in server.log()
            assert not file.exists()
            fetch_result(cluster.executor)
            assert file.read_text() == str(os.getpid())
            file.unlink()
            cluster.workers[0].kill()
            cluster.start_worker()
            round_.assert_exact()
            assert not file.exists()
            api.close()


def fetch_result(executor: str) -> None:
    """What the server did before: it fetched the result of the task."""
    with Client(executor.replace("dask://", "tcp://"), set_as_default=False) as client, suppress(Exception):
        client.submit(eval, "__import__('sitecustomize').Evil()", pure=False).result(timeout=20)
