"""FAIR and its baselines on Goodreads-100 (Desai et al., tables 2 and 3)."""

from __future__ import annotations

import tracemalloc
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import log2
from pathlib import Path
from time import perf_counter
from typing import Any, Final, Literal

import numpy as np
from rich.table import Table

from bench.experiments.fair_federation import FairFederation, FedHMFederation, equal_groups
from bench.experiments.runs import JobResult, Ticks, keep, path_of
from client_sdk.lab.data.interactions import Interactions
from client_sdk.lab.data.published import load_train_test
from client_sdk.training.fair import FairConfig, FairHalf
from protocols.crypto.domain import derive_seed
from protocols.recipes.fair import Fair, FairParameters

__all__ = ["FairRow", "MemoryRow", "fair_flat", "fair_runs", "fair_table"]

DATASET: Final = "goodreads-100"
TURNS: Final = 20
QUICK_TURNS: Final = 2
CLIENTS: Final = 10
"""K: devices per turn, in all groups together."""
TRAINING: Final = FairConfig(learning_rate=2e-3, epochs=5, batch_size=512)
MAX_INTERACTIONS: Final = 5_000
"""Cap of the weight, about the mean. The paper's weights have no cap: one user of 99 has 27,218 interactions and 0.42
of the weight of a turn of ten, and NDCG@20 varies by 0.03 within ten turns (at 2e-3: 0.260, 0.236, 0.266 after 10, 15,
20)."""
UNCAPPED: Final = 30_000
"""A cap that no user reaches, so weights are |D_u| / sum, as in the paper."""
LAST_TURNS: Final = 10
"""Turns in which every user takes part once. Figures are means over them; one turn depends on its last clients."""

FEDAVG_PAPER: Final = 0.278
TABLE_2: Final = {2: (0.276, 0.269, 0.274), 4: (0.276, 0.254, 0.275), 8: (0.274, 0.246, None), 16: (0.276, 0.208, None)}
"""FAIR-HET, FAIR-HOM and FedHM by the smaller capacity of the scheme; None if FedHM cannot be run."""
TABLE_3: Final = {1: (0.037, 0.271), 20: (0.247, 0.258), 30: (0.238, 0.27), 50: (0.261, 0.258)}
"""FULL-TRN and FAIR-HET by percent of full devices, the others at half the memory."""

COMPARED: Final = ("fedavg", "het", "hom")
"""Kinds that are run with the paper's weights too."""

Kind = Literal["fedavg", "het", "het_add", "hom", "fedhm", "full_trn", "het_share"]


@dataclass(frozen=True)
class FairRow:
    """One federation, trained for `rounds` turns.

    compression: small devices hold 1/compression of the tables. full_percent: percent of full devices, 0 for a capacity
    scheme. most: cap of the weight.
    """

    kind: Kind
    compression: int = 1
    full_percent: int = 0
    most: int = MAX_INTERACTIONS
    rounds: int = TURNS
    seed: int = 0
    published: Mapping[str, float] = field(default_factory=dict)

    @property
    def key(self) -> str:
        """The name of the run, for example fair.1x-2x.het."""
        scheme = f"{self.full_percent}pct" if self.full_percent else f"1x-{self.compression}x"
        name = "fair.fedavg" if self.kind == "fedavg" else f"fair.{scheme}.{self.kind}"
        return name + (".uncapped" if self.most == UNCAPPED else "") + (f".seed{self.seed}" if self.seed else "")

    @property
    def dataset(self) -> str:
        """The name of the data set."""
        return DATASET

    @property
    def halvings(self) -> int:
        """p of the small devices: log2 of their compression."""
        return int(log2(self.compression))

    def execute(self, data_dir: Path, folder: Path, ticks: Ticks) -> None:
        """Train, rank after every second of the last turns, and write the means and the curve."""
        started = perf_counter()
        train, test = load_train_test(DATASET, data_dir)
        federation, device_groups = self.federation(train)
        curve = []
        for turn in federation.run(self.rounds):
            ticks[self.key] = turn
            if turn > self.rounds - LAST_TURNS and (self.rounds - turn) % 2 == 0:
                found = federation.rank(test)
                curve.append({"turn": turn, "ndcg20": found.ndcg, "recall20": found.recall, "loss": federation.loss})
        figures: dict[str, Any] = {
            "ndcg20": float(np.mean([point["ndcg20"] for point in curve])),
            "recall20": float(np.mean([point["recall20"] for point in curve])),
            "last_turn": curve[-1]["ndcg20"],
            "best_turn": max(point["ndcg20"] for point in curve),
            "turns": self.rounds,
            "clipped": federation.clipped,
        }
        if self.kind in ("het", "het_add", "hom"):
            for group, ndcg in federation.rank_on_devices(test, device_groups).items():
                figures[f"on_devices_{2 ** federation.recipe.parameters.capacities[int(group)]}x"] = ndcg
        keep(path_of(self, folder), figures | {"curve": curve, "seconds": perf_counter() - started})

    def federation(self, train: Interactions) -> tuple[FairFederation, np.ndarray]:
        """The federation of this row, and the device group of every user, int (users,)."""
        users, both = train.n_users, (CLIENTS // 2, CLIENTS // 2)
        halves, together = equal_groups(users, 2), np.zeros(users, dtype=np.int64)
        some = self._full_devices(users)
        match self.kind:
            case "fedavg":
                return self._of(train, (0,), together, (CLIENTS,)), together
            case "het":
                return self._of(train, (0, self.halvings), halves, both), halves
            case "het_add":
                return self._of(train, (0, self.halvings), halves, both, "add"), halves
            case "hom":
                return self._of(train, (self.halvings,), together, (CLIENTS,)), together
            case "fedhm":
                given = (train, parameters(train, (0,), self.most), TRAINING, halves, both)
                return FedHMFederation(*given, self.halvings, self.seed), halves
            case "full_trn":
                alone = np.where(some, 0, -1)
                return self._of(train, (0,), alone, (CLIENTS,)), alone
            case "het_share":
                device_groups, full = np.where(some, 0, 1), round(CLIENTS * self.full_percent / 100)
                return self._of(train, (0, 1), device_groups, (full, CLIENTS - full)), device_groups

    def _full_devices(self, users: int) -> np.ndarray:
        """Users with full devices, bool (users,); drawn as in the released code, with numpy's legacy generator."""
        chosen = np.zeros(users, dtype=bool)
        order = np.random.RandomState(101).permutation(users)
        chosen[order[: round(users * self.full_percent / 100)]] = True
        return chosen

    def _of(
        self,
        train: Interactions,
        capacities: tuple[int, ...],
        device_groups: np.ndarray,
        cohorts: tuple[int, ...],
        mixing: Literal["replace", "add"] = "replace",
    ) -> FairFederation:
        given = parameters(train, capacities, self.most, mixing)
        return FairFederation(train, given, TRAINING, device_groups, cohorts, self.seed)


def parameters(
    train: Interactions,
    capacities: tuple[int, ...],
    most: int = MAX_INTERACTIONS,
    mixing: Literal["replace", "add"] = "replace",
) -> FairParameters:
    """The recipe's parameters for a task on this data."""
    return FairParameters(
        items=train.n_items, capacities=capacities, max_interactions=most, reveal_weights=True, mixing=mixing
    )


@dataclass(frozen=True)
class MemoryRow:
    """Measures the peak memory of one client's round by capacity, for the user with the median number of items.

    The round goes from the bytes of the view to the contribution; all allocations of Python and numpy count.
    """

    compressions: tuple[int, ...] = (1, 2, 4, 8, 16, 64)
    published: Mapping[str, float] = field(default_factory=dict)

    @property
    def key(self) -> str:
        """The name of the run."""
        return "fair.memory"

    @property
    def dataset(self) -> str:
        """The name of the data set."""
        return DATASET

    @property
    def rounds(self) -> int:
        """The number of ticks: one per capacity."""
        return len(self.compressions)

    def execute(self, data_dir: Path, folder: Path, ticks: Ticks) -> None:
        """Measure every capacity and write the figures, named by the scheme whose small devices have it."""
        started = perf_counter()
        train, _ = load_train_test(DATASET, data_dir)
        user = int(np.argsort(train.user_degrees(), kind="stable")[train.n_users // 2])
        figures: dict[str, Any] = {}
        for done, compression in enumerate(self.compressions, 1):
            scheme = f"1x-{compression}x" if compression > 1 else "1x"
            recipe = Fair(parameters(train, (int(log2(compression)),)))
            figures[f"{scheme}.client_peak_mb"] = client_peak(recipe, train, user) / 1e6
            figures[f"{scheme}.view_mb"] = recipe.view_bytes(0, 0) / 1e6
            ticks[self.key] = done
        keep(path_of(self, folder), figures | {"seconds": perf_counter() - started})


def client_peak(recipe: Fair, train: Interactions, user: int) -> int:
    """Peak bytes allocated during a round of `user`, a client of the recipe's only device group."""
    half, rng = FairHalf(recipe, TRAINING), np.random.default_rng(0)
    seed = derive_seed(b"memory", "simulation task")
    body = recipe.encode_view(recipe.initial_view(seed, 0), 0)
    history, client_state = train.history(user), half.initial_client_state(rng)
    tracemalloc.start()
    try:
        view = recipe.decode_view(0, body, 0)
        half.contribute(recipe.round_spec(seed, 1), "client", view, history, client_state, rng)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def fair_runs(*, quick: bool, protocol: str, seed: int = 0) -> list[FairRow | MemoryRow]:  # noqa: ARG001
    """Rows of table 2 with one more scheme, of table 3, and of memory. Negatives are always the clean ones."""
    turns = QUICK_TURNS if quick else TURNS

    def row(kind: Kind, published: float | None = None, **chosen: int) -> FairRow:
        known = {} if quick or published is None else {"ndcg20": published}
        return FairRow(kind, rounds=turns, seed=seed, published=known, **chosen)

    rows: list[FairRow | MemoryRow] = [] if seed else [MemoryRow((1, 4) if quick else (1, 2, 4, 8, 16, 64))]
    rows.append(row("fedavg", FEDAVG_PAPER))
    for compression in (4,) if quick else (2, 4, 8, 16, 64):
        het, hom, fedhm = TABLE_2.get(compression, (None, None, None))
        rows += [row("het", het, compression=compression), row("hom", hom, compression=compression)]
        rows.append(row("het_add", compression=compression))  # our own rule, not in the paper
        if fedhm is not None:
            rows.append(row("fedhm", fedhm, compression=compression))
    for percent, (full_trn, het) in {} if quick else TABLE_3.items():
        rows.append(row("full_trn", full_trn, full_percent=percent))
        if percent > 1:  # 1 % would be a group of one device, which cannot have a secure sum
            rows.append(row("het_share", het, full_percent=percent))
    if not quick:
        rows += [replace(run, most=UNCAPPED) for run in rows if isinstance(run, FairRow) and run.kind in COMPARED]
    return rows


def fair_table(results: list[JobResult]) -> Table:
    """A table of NDCG@20 with the paper's figures; the caption has the peak memory of a client."""
    made = Table(title="Fidelity: FAIR on Goodreads-100, full ranking, mean over the last ten turns")
    for heading in ("run", "NDCG@20", "paper", "diff", "last", "minutes"):
        made.add_column(heading, justify="left" if heading == "run" else "right", no_wrap=True)
    peaks = []
    for result in results:
        ours, theirs = result.figures.get("ndcg20"), result.run.published.get("ndcg20")
        if ours is None:
            found = {
                name.partition(".client_peak")[0]: v for name, v in result.figures.items() if "client_peak" in name
            }
            peaks += [f"{scheme.split('-')[-1]}: {value:.1f} MB" for scheme, value in found.items()]
            continue
        made.add_row(
            result.run.key, f"{ours:.4f}", "" if theirs is None else f"{theirs:.3f}",
            "" if theirs is None else f"{ours - theirs:+.4f}", f"{result.figures['last_turn']:.4f}",
            f"{result.figures['seconds'] / 60:.1f}",
        )  # fmt: skip
    made.caption = f"peak memory of a client's round: {', '.join(peaks)}" if peaks else None
    return made


def fair_flat(results: list[JobResult]) -> dict[str, Any]:
    """`<run key>.<figure>`, `fair.<scheme>.client_peak_mb`, and published figures as `<run key>.paper.<figure>`."""
    figures: dict[str, Any] = {}
    for result in results:
        prefix = "fair" if isinstance(result.run, MemoryRow) else result.run.key
        figures |= {
            f"{prefix}.{name}": value for name, value in result.figures.items() if name not in ("curve", "seconds")
        }
        figures[f"{result.run.key}.seconds"] = result.figures["seconds"]
        figures |= {f"{result.run.key}.paper.{name}": value for name, value in result.run.published.items()}
    return figures
