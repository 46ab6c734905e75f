"""Flower's side of a whole round, for bench/peers.py: a ServerApp with SecAgg+ and a ClientApp. Needs flwr.

Flower loads this file as a package of its own, so it imports nothing of this project. The model is one array of zeros,
and every client answers with the same update; all take part. The server writes the round's wall time to a file, and how
far the new model is from that update: Flower's workflow ends without an error if it halts the round.
"""

from __future__ import annotations

import json
import time
from pathlib import Path

import numpy as np
from flwr.app import Context
from flwr.client import ClientApp, NumPyClient
from flwr.client.mod import secaggplus_mod
from flwr.common import ndarrays_to_parameters
from flwr.server import Grid, LegacyContext, ServerApp, ServerConfig
from flwr.server.strategy import FedAvg
from flwr.server.workflow import DefaultWorkflow, SecAggPlusWorkflow

UPDATE, WEIGHT = 0.01, 1000
"""What a client adds to each value, and its weight, which is Flower's default max_weight."""

server = ServerApp()


@server.main()
def run_server(grid: Grid, context: Context) -> None:
    """Wait for all clients, and play one round."""
    settings = context.run_config
    clients, values = int(settings["clients"]), int(settings["values"])
    while len(list(grid.get_node_ids())) < clients:
        time.sleep(0.2)
    strategy = FedAvg(
        fraction_evaluate=0.0,
        min_fit_clients=clients,
        min_available_clients=clients,
        initial_parameters=ndarrays_to_parameters([np.zeros(values, np.float32)]),
    )
    legacy = LegacyContext(context=context, config=ServerConfig(num_rounds=1), strategy=strategy)
    shares, threshold = int(settings["neighbours"]) + 1, int(settings["threshold"])
    started = time.time()
    DefaultWorkflow(fit_workflow=SecAggPlusWorkflow(shares, threshold))(grid, legacy)
    seconds = time.time() - started
    (model,) = legacy.state.array_records["parameters"].to_numpy_ndarrays()
    answer = {"wall_s": seconds, "error": float(np.abs(model - UPDATE).max())}
    Path(str(settings["answer"])).write_text(json.dumps(answer))


class Updater(NumPyClient):
    """Answers with the model plus UPDATE."""

    def fit(self, parameters: list[np.ndarray], config: object) -> tuple[list[np.ndarray], int, dict[str, float]]:
        """The new values, the weight, no metrics."""
        return [values + np.float32(UPDATE) for values in parameters], WEIGHT, {}


client = ClientApp(client_fn=lambda _: Updater().to_client(), mods=[secaggplus_mod])
