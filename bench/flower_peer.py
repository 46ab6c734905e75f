"""Run Flower's SecAgg+ in one process, for bench/masked.py. Needs flwr (the extra `peers`).

Reads commands from standard input, one JSON object per line, and answers each with one line of JSON:

    {"do": "round", "clients": 100, "values": 100000, "neighbours": 22, "threshold": 12, "dropouts": 10, "seed": 1}
    {"do": "quantise", "values": 100000, "times": 20, "seed": 1}

A round is Flower's unchanged `SecAggPlusWorkflow` with its client functions, which the grid calls directly. The
server's time is the workflow's time minus the clients' time. The strategy passes the parameters through, and nothing is
sent or serialised. A client that drops out answers with an error instead of its masked vector.
"""

from __future__ import annotations

import json
import logging
import sys
import time
from importlib.metadata import version
from statistics import median
from types import SimpleNamespace
from typing import Any

import flwr.compat.common.recorddict_compat as compat
import numpy as np
from flwr.app import ConfigRecord, Context, Error, Message, RecordDict
from flwr.client.mod.secure_aggregation.secaggplus_mod import secaggplus_mod
from flwr.common import Code, FitIns, FitRes, Status, ndarrays_to_parameters, parameters_to_ndarrays
from flwr.common.secure_aggregation.quantization import quantize
from flwr.common.secure_aggregation.secaggplus_constants import RECORD_KEY_CONFIGS, Key, Stage
from flwr.server.compat.legacy_context import LegacyContext
from flwr.server.workflow import SecAggPlusWorkflow
from flwr.server.workflow.constant import MAIN_CONFIGS_RECORD, MAIN_PARAMS_RECORD
from flwr.supercore.task_identity import TaskIdentity

SERVER = 10**6
CLIP, LEVELS, WEIGHT = 8.0, 1 << 22, 1000
"""Flower's own defaults: clipping_range, quantization_range, max_weight."""


class Grid:
    """Calls the clients one after the other and records their time."""

    def __init__(self, vectors: np.ndarray, dropouts: set[int]) -> None:
        self._vectors, self._dropouts = vectors, dropouts
        self._contexts = {node: _context(node) for node in range(1, len(vectors) + 1)}
        self.client_seconds: dict[str, list[float]] = {}
        self.contribution_bytes: list[int] = []

    def send_and_receive(self, messages: list[Message], *, timeout: float | None = None) -> list[Message]:
        return [self._call(message) for message in messages]

    def _call(self, sent: Message) -> Message:
        stage, node = str(sent.content.config_records[RECORD_KEY_CONFIGS][Key.STAGE]), sent.metadata.dst_node_id
        start = time.process_time()
        if stage == Stage.COLLECT_MASKED_VECTORS and node in self._dropouts:
            return Message(Error(code=0, reason="dropped out"), reply_to=sent)
        copy = Message(_copied(sent.content), dst_node_id=node, message_type=sent.metadata.message_type)
        copy.metadata.__dict__.update(sent.metadata.__dict__)
        reply = secaggplus_mod(copy, self._contexts[node], self._fit)
        self.client_seconds.setdefault(stage, []).append(time.process_time() - start)
        if stage == Stage.COLLECT_MASKED_VECTORS:
            parts = reply.content.config_records[RECORD_KEY_CONFIGS][Key.MASKED_PARAMETERS]
            self.contribution_bytes.append(sum(map(len, parts)))
        return reply

    def _fit(self, message: Message, context: Context) -> Message:
        """A client's result of training: its vector."""
        parameters = ndarrays_to_parameters([self._vectors[context.node_id - 1]])
        result = FitRes(Status(Code.OK, ""), parameters, WEIGHT, {})
        return Message(compat.fitres_to_recorddict(result, keep_input=True), reply_to=message)


def _copied(content: RecordDict) -> RecordDict:
    """A copy of a message's content, because a client removes fields from it."""
    records: dict[str, Any] = dict(content)
    records |= {name: ConfigRecord(dict(record)) for name, record in content.config_records.items()}
    return RecordDict(records)


def _context(node: int) -> Context:
    return Context(1, node, {}, RecordDict(), {})


def play_round(command: dict[str, Any]) -> dict[str, Any]:
    """Play a round: server seconds, a client's median seconds by stage, bytes, and the largest error of the mean.

    Raises `SystemExit` if the workflow ended without a result.
    """
    vectors = np.random.default_rng(command["seed"]).uniform(-0.1, 0.1, (command["clients"], command["values"]))
    grid = Grid(vectors, set(range(1, command["dropouts"] + 1)))
    blank = ndarrays_to_parameters([np.zeros(command["values"])])
    clients = [(SimpleNamespace(node_id=node), FitIns(blank, {})) for node in range(1, command["clients"] + 1)]
    found: list[np.ndarray] = []

    def aggregate(_round: int, results: list[tuple[Any, FitRes]], _failures: object) -> tuple[None, dict[str, Any]]:
        found.extend(parameters_to_ndarrays(results[0][1].parameters))
        return None, {}

    strategy = SimpleNamespace(configure_fit=lambda *_: clients, aggregate_fit=aggregate)
    context = LegacyContext(_context(SERVER), strategy=strategy)
    context.state.array_records[MAIN_PARAMS_RECORD] = compat.parameters_to_arrayrecord(blank, True)
    context.state.config_records[MAIN_CONFIGS_RECORD] = ConfigRecord({"current_round": 1})
    # Flower counts a client among the holders of its own shares
    workflow = SecAggPlusWorkflow(
        command["neighbours"] + 1, command["threshold"], clipping_range=CLIP, max_weight=WEIGHT
    )
    start = time.process_time()
    workflow(grid, context)
    seconds = time.process_time() - start
    if not found:
        raise SystemExit("Flower's round ended without a result")
    truth = vectors[command["dropouts"] :].mean(axis=0)
    return {
        "server_seconds": seconds - sum(map(sum, grid.client_seconds.values())),
        "client_seconds": {stage: median(times) for stage, times in grid.client_seconds.items()},
        "contribution_bytes": median(grid.contribution_bytes),
        "max_error": float(np.abs(found[0] - truth).max()),
        "version": version("flwr"),
    }


def time_quantise(command: dict[str, Any]) -> dict[str, Any]:
    """Median processor seconds of one call of `quantize` for float64, which is faster than for float32."""
    vector = np.random.default_rng(command["seed"]).uniform(-0.1, 0.1, command["values"])
    seconds = []
    for _ in range(command["times"]):
        start = time.process_time()
        quantize([vector], CLIP, LEVELS)
        seconds.append(time.process_time() - start)
    return {"seconds": median(seconds)}


def main() -> None:
    """Answer commands until the end of the input."""
    logging.getLogger("flwr").setLevel(logging.CRITICAL)
    TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 1, SERVER
    answers = {"round": play_round, "quantise": time_quantise}
    for line in sys.stdin:
        command = json.loads(line)
        print(json.dumps(answers[command["do"]](command)), flush=True)


if __name__ == "__main__":
    main()
