"""One run of a fidelity table: a federation trained to the end, measured, and kept as a JSON file."""

from __future__ import annotations

import json
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from client_sdk.data.interactions import LeaveOneOut
from client_sdk.data.loaders import load_dataset
from client_sdk.evaluation.leave_one_out import candidates_of, evaluate
from client_sdk.simulation import Federation, SimulatedRound
from client_sdk.training.mf import MFConfig

__all__ = ["Run", "RunResult", "execute"]


@dataclass(frozen=True)
class Run:
    """What to train and for how long. `published` holds the paper's figures by the same names as ours."""

    key: str
    dataset: str
    recipe: str
    recipe_parameters: Mapping[str, Any]
    mechanism: str
    mechanism_parameters: Mapping[str, Any]
    training: MFConfig
    cohort_size: int
    rounds: int
    protocol: str
    seed: int = 0
    evaluate_every: int = 100
    published: Mapping[str, float] = field(default_factory=dict)

    def path(self, folder: Path) -> Path:
        """Where the result is kept."""
        return folder / f"{self.key}.json"


@dataclass(frozen=True)
class RunResult:
    """A run and its figures."""

    run: Run
    figures: dict[str, Any]


def execute(run: Run, data_dir: Path, folder: Path, ticks: MutableMapping[str, int]) -> None:
    """Train, evaluate every `evaluate_every` rounds and at the end, and write the figures; the last round counts."""
    started = perf_counter()
    data = load_dataset(run.dataset, data_dir)
    candidates, replaced = candidates_of(data, np.random.default_rng(run.seed))
    federation = Federation(
        data, run.recipe, {**run.recipe_parameters, "items": data.train.n_items}, run.mechanism,
        run.mechanism_parameters, run.training, run.cohort_size, run.seed,
        excluded=paper_exclusions(data, candidates) if run.protocol == "paper" else None,
    )  # fmt: skip
    curve, rounds = [], []
    for done in federation.run(run.rounds):
        rounds.append(done)
        ticks[run.key] = done.number
        if done.number % run.evaluate_every == 0 or done.number == run.rounds:
            result = evaluate(federation.user_factors, federation.state.item_factors, data, candidates, k=10)
            curve.append({"round": done.number, "hr10": result.hr, "ndcg10": result.ndcg})
    figures = summary(federation, rounds) | {
        "hr10": curve[-1]["hr10"],
        "ndcg10": curve[-1]["ndcg10"],
        "curve": curve,
        "negatives_replaced": replaced,
        "seconds": perf_counter() - started,
        "seed": run.seed,
        "protocol": run.protocol,
    }
    keep(run.path(folder), figures)


def paper_exclusions(data: LeaveOneOut, candidates: np.ndarray) -> np.ndarray:
    """The released code draws no training negative from a user's 100 test candidates (PAPERS: symmetric, no leak)."""
    return np.hstack([data.test_items[:, None], candidates]).astype(np.int32)


def summary(federation: Federation, rounds: list[SimulatedRound]) -> dict[str, Any]:
    """Costs over all rounds: bytes of a mean contribution, milliseconds a client, clipped values in all."""
    clients = sum(r.survivors for r in rounds)
    return {
        "rounds": len(rounds),
        "bytes_up": float(np.mean([r.bytes_up for r in rounds])),
        "aggregate_bytes": federation.plan.aggregate_bytes,
        "clipped": sum(r.clipped for r in rounds),
        "loss_last": rounds[-1].loss,
        "train_ms": 1e3 * sum(r.train_seconds for r in rounds) / clients,
        "seal_ms": 1e3 * sum(r.seal_seconds for r in rounds) / clients,
        "fold_ms": 1e3 * sum(r.fold_seconds for r in rounds) / clients,
        "open_ms": 1e3 * sum(r.open_seconds for r in rounds) / len(rounds),
    }


def keep(path: Path, figures: dict[str, Any]) -> None:
    """Write whole or not at all, so that an interrupted table never resumes from half a file."""
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps(figures, indent=1))
    partial.replace(path)
