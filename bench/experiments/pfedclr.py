"""PFedCLR on MovieLens-100K and FilmTrust, under its own protocol and without the leak.

Every run comes twice: under `paper_protocol`, in which held-out items are never drawn as training negatives, and with
negatives from all items outside the training items. Both the 99 sampled negatives and full ranking are evaluated.
Settings are the paper's (appendix C.3): 100 rounds, 60 % of the clients drawn anew in each, 10 local epochs, Adam,
users with ten interactions or more. FilmTrust has no timestamps; the item introduced last is held out, as in the
authors' FedEM code.

The paper leaves two settings open (docs/results.md has their effect): the rank (the sizes in its Table 6 imply 2; 1
gives its FilmTrust row), and whether all clients start with the same p and B (`own`: each draws its own).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray
from rich.table import Table

from bench.experiments.leaks import NegativeDraws, exclude, hold_out_introduced_last, leak_controls, users_with_at_least
from bench.experiments.runs import JobResult, Ticks, exclusions, keep, path_of, summary
from client_sdk.lab.data.interactions import LeaveOneOut, leave_one_out
from client_sdk.lab.data.published import load_interactions
from client_sdk.lab.evaluation import ControlTable, evaluate_full_scores, evaluate_scores
from client_sdk.lab.evaluation.leave_one_out import FullScorer, candidates_of
from client_sdk.lab.federation import Federation, SimulatedRound
from client_sdk.training.pfedclr import PFedCLRConfig
from protocols.advice import parameters_for

__all__ = ["PFedCLRRun", "pfedclr_controls", "pfedclr_flat", "pfedclr_runs", "pfedclr_split", "pfedclr_table"]

Protocol = Literal["clean", "paper_protocol"]
RANKS: Final = {"filmtrust": 1, "ml-100k": 2}
SHARE: Final = 0.6
LEAST: Final = 10
ROUNDS: Final = 100
METRICS: Final = ("hr10", "ndcg10")
NOISE: Final = {"noise_scale": 0.5}
PUBLISHED: Final = {
    ("filmtrust", "af"): (0.6717, 0.5429),
    ("filmtrust", "cf"): (0.7754, 0.6313),
    ("filmtrust", "clr"): (0.9102, 0.7798),
    ("filmtrust", "fedmf"): (0.6507, 0.5171),
    ("filmtrust", "ldp"): (0.9122, 0.7741),
    ("ml-100k", "af"): (0.6151, 0.4307),
    ("ml-100k", "cf"): (0.8452, 0.6955),
    ("ml-100k", "clr"): (0.9989, 0.9225),
    ("ml-100k", "fedmf"): (0.4846, 0.2723),
    ("ml-100k", "ldp"): (0.9979, 0.9215),
}
"""HR@10 and NDCG@10 of the paper's Tables 1, 2 and 3, all under the leaky protocol."""


@dataclass(frozen=True)
class PFedCLRRun:
    """One variant on one data set under one protocol. published: the paper's figures, with the same names as ours."""

    key: str
    dataset: str
    protocol: Protocol
    parameters: Mapping[str, Any]
    rounds: int = ROUNDS
    seed: int = 0
    training: PFedCLRConfig = field(default_factory=PFedCLRConfig)
    published: Mapping[str, float] = field(default_factory=dict)
    evaluate_every: int = 10

    def execute(self, data_dir: Path, folder: Path, ticks: Ticks) -> None:
        """Train and write the figures of the last round, with a curve against the sampled negatives."""
        started = perf_counter()
        data = pfedclr_split(self.dataset, data_dir)
        candidates, _ = candidates_of(data, np.random.default_rng(self.seed))
        users, items = data.train.n_users, data.train.n_items
        parameters = parameters_for("pfedclr", {**self.parameters, "items": items}, "paper")
        federation = Federation(
            data.train, "pfedclr", parameters, training=self.training,
            cohort_size=int(SHARE * users), seed=self.seed, sampling="uniform",
        )  # fmt: skip
        exclude(federation, exclusions(self.protocol, data, candidates))
        curve: list[dict[str, float]] = []
        rounds: list[SimulatedRound] = []
        for done in federation.run(self.rounds):
            rounds.append(done)
            ticks[self.key] = done.number
            if done.number % self.evaluate_every == 0 or done.number == self.rounds:
                found = sampled(federation, data, candidates)
                curve.append({"round": done.number, "hr10": found[0], "ndcg10": found[1]})
        full = evaluate_full_scores(scorer(federation), data, k=10)
        figures = summary(federation, rounds) | {
            "hr10": curve[-1]["hr10"],
            "ndcg10": curve[-1]["ndcg10"],
            "hr10_full": full.hr,
            "ndcg10_full": full.ndcg,
            "best_hr10": max(point["hr10"] for point in curve),
            "curve": curve,
            "seconds": perf_counter() - started,
            "seed": self.seed,
            "protocol": self.protocol,
        }
        keep(path_of(self, folder), figures)


def pfedclr_split(dataset: str, data_dir: Path) -> LeaveOneOut:
    """The paper's data: users with ten interactions or more; the last one of each user is held out."""
    found = users_with_at_least(load_interactions(dataset, data_dir), LEAST)
    return hold_out_introduced_last(found) if dataset == "filmtrust" else leave_one_out(found, order="time")


def pfedclr_controls(dataset: str, data_dir: Path) -> ControlTable:
    """Controls on the same split, against the candidates of seed 0 and against all items."""
    data = pfedclr_split(dataset, data_dir)
    rng = np.random.default_rng(0)
    negatives = candidates_of(data, rng).negatives
    return leak_controls(data, negatives, np.random.default_rng(0), draws=NegativeDraws(ROUNDS, SHARE))


def scorer(federation: Federation) -> FullScorer:
    """A function users -> scores of all items, from the clients' stored state."""

    def scores(users: NDArray[np.intp]) -> NDArray[np.floating]:
        return np.stack(
            [
                federation.half.scores(federation.state, federation.client_states[user], federation.train.history(user))
                for user in users.tolist()
            ]
        )

    return scores


def sampled(federation: Federation, data: LeaveOneOut, candidates: NDArray[np.int32]) -> tuple[float, float]:
    """HR@10 and NDCG@10 against the sampled negatives."""
    whole = scorer(federation)
    found = evaluate_scores(
        lambda users, items: np.take_along_axis(whole(users), items, axis=1), data, candidates, k=10
    )
    return found.hr, found.ndcg


def pfedclr_runs(*, quick: bool, protocol: str, seed: int = 0) -> list[PFedCLRRun]:  # noqa: ARG001
    """All runs, the most informative first. Both protocols are run whatever `protocol` is, to compare them.

    quick: PFedCLR and its backbone on FilmTrust for 2 rounds.
    """
    pairs: list[tuple[str, str, str, dict[str, Any]]] = []
    both = ("ml-100k", "filmtrust")
    pairs += [(dataset, "clr", "clr", {"rank": RANKS[dataset]}) for dataset in both]
    pairs += [(dataset, "fedmf", "fedmf", {"variant": "fedmf"}) for dataset in both]
    pairs += [("ml-100k", variant, variant, {"variant": variant}) for variant in ("cf", "af")]
    made = [
        _run(*pair, shown, seed) for pair in pairs for shown in ("paper_protocol", "clean")
    ]  # each leaky run is followed by its clean one
    if quick:
        return [_shortened(run, 2) for run in made if run.dataset == "filmtrust"]
    only_leaky: list[tuple[str, str, str, dict[str, Any]]] = [
        ("ml-100k", "clr.laplace0.5", "ldp", {"rank": RANKS["ml-100k"], **NOISE}),
        ("filmtrust", "clr.rank2", "clr", {"rank": 2}),
        ("filmtrust", "clr.own-start", "clr", {"rank": 1, "start": "own"}),
        ("filmtrust", "cf", "cf", {"variant": "cf"}),
        ("filmtrust", "af", "af", {"variant": "af"}),
        ("filmtrust", "clr.laplace0.5", "ldp", {"rank": RANKS["filmtrust"], **NOISE}),
        ("ml-100k", "clr.rank4", "clr", {"rank": 4}),
    ]
    return made + [_run(*pair, "paper_protocol", seed) for pair in only_leaky]


def _run(dataset: str, name: str, row: str, parameters: dict[str, Any], protocol: Protocol, seed: int) -> PFedCLRRun:
    hr, ndcg = PUBLISHED[dataset, row]
    published = {"hr10": hr, "ndcg10": ndcg} if protocol == "paper_protocol" else {}
    suffix = f".seed{seed}" if seed else ""
    key = f"{dataset.replace('-', '')}.{name}.{protocol}{suffix}"
    return PFedCLRRun(key, dataset, protocol, parameters, seed=seed, published=published)


def _shortened(run: PFedCLRRun, rounds: int) -> PFedCLRRun:
    """The same run for fewer rounds, without published figures."""
    return PFedCLRRun(f"{run.key}.rounds{rounds}", run.dataset, run.protocol, run.parameters, rounds, run.seed)


def pfedclr_table(results: list[JobResult]) -> Table:
    """A table of our figures and the paper's; the clean run follows each leaky one."""
    made = Table(title="PFedCLR: last round, HR@10 above NDCG@10", show_lines=True)
    for heading in ("run", "99 neg.", "paper", "diff", "all items", "clipped", "minutes"):
        made.add_column(heading, justify="left" if heading == "run" else "right", overflow="fold")
    for result in results:
        figures, published = result.figures, result.run.published
        columns = [
            [f"{figures[metric]:.4f}" for metric in METRICS],
            [f"{published[metric]:.4f}" for metric in METRICS if published],
            [f"{figures[metric] - published[metric]:+.4f}" for metric in METRICS if published],
            [f"{figures[f'{metric}_full']:.4f}" for metric in METRICS],
            [f"{figures['clipped']}"],
            [f"{figures['seconds'] / 60:.1f}"],
        ]
        made.add_row(result.run.key, *("\n".join(lines) for lines in columns))
    return made


def pfedclr_flat(results: list[JobResult]) -> dict[str, Any]:
    """`<run key>.<figure>`, curves as `<run key>.round<n>.hr10`, published figures as `<run key>.paper.<figure>`."""
    figures: dict[str, Any] = {}
    for result in results:
        key = result.run.key
        figures |= {f"{key}.{name}": value for name, value in result.figures.items() if name != "curve"}
        for point in result.figures["curve"]:
            figures |= {f"{key}.round{point['round']}.{name}": point[name] for name in ("hr10", "ndcg10")}
        figures |= {f"{key}.paper.{name}": value for name, value in result.run.published.items()}
    return figures
