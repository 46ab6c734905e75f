"""PriviRec and PriviRec-k (Nicolas et al.) on Gowalla and MovieLens-100K."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Final

from rich.table import Table

from bench.systems.base import JobResult, Ticks, keep, path_of
from bench.systems.privirec_bench import Bench, Figures, Setting, Split
from bench.systems.privirec_measures import MEASURES

__all__ = ["PriviRecJob", "privirec_flat", "privirec_runs", "privirec_table"]

GOWALLA: Final = Setting("gowalla", "gowalla", 256, 448, (256, 512, 1024, 2048), sample=6000)
ML_100K: Final = Setting("ml-100k", "ml100k", 256, 256, (64, 128, 256, 512))
QUICK: Final = Setting("ml-100k", "ml100k", 12, 12, (4, 8), oversampling=8)


@dataclass(frozen=True)
class PriviRecJob:
    """One or more rows of the table that share their components. part: a key of `MEASURES`."""

    part: str
    setting: Setting
    seed: int = 0
    rounds: int = 100
    """Number of ticks; one tick is a percent of the users."""

    @property
    def key(self) -> str:
        """The name of the run, for example gowalla.gf_cf.secure."""
        return f"{self.setting.prefix}.{self.part}" + (f".seed{self.seed}" if self.seed else "")

    @property
    def dataset(self) -> str:
        """The name of the data set."""
        return self.setting.dataset

    def execute(self, data_dir: Path, folder: Path, ticks: Ticks) -> None:
        """Compute the components, rank the users, and write the figures with their full keys."""
        started = perf_counter()
        split = Split(self.setting, data_dir, self.seed)

        def tick(share: float) -> None:
            ticks[self.key] = int(self.rounds * share)

        found = MEASURES[self.part](Bench(self.setting, split, self.seed, folder, self.key, tick))
        figures = {
            f"{self.setting.prefix}.{name}.{metric}": v for name, row in found.items() for metric, v in row.items()
        }
        keep(
            path_of(self, folder), {"figures": figures, "seconds": perf_counter() - started, "users": split.tested.size}
        )


def privirec_runs(*, quick: bool, protocol: str, seed: int = 0) -> list[PriviRecJob]:  # noqa: ARG001
    """All of `MEASURES` on MovieLens-100K and, unless `quick`, on Gowalla. `protocol` has no effect.

    quick: few columns.
    """
    settings = (QUICK,) if quick else (ML_100K, GOWALLA)
    return [PriviRecJob(part, setting, seed) for setting in settings for part in MEASURES]


def privirec_table(results: list[JobResult]) -> Table:
    """A table of Recall@20 and NDCG@20 with the paper's figures."""
    made = Table(title="Fidelity: full ranking, training items left out")
    for heading in ("components", "Recall@20", "NDCG@20", "paper", "diff", "MB up"):
        made.add_column(heading, justify="left" if heading == "components" else "right")
    figures = privirec_flat(results)
    names = {key.removesuffix(".ndcg20") for key in figures if key.endswith(".ndcg20") and ".paper." not in key}
    for name in sorted(names):
        ours, theirs, size = (figures.get(f"{name}.{metric}") for metric in ("ndcg20", "paper.ndcg20", "upload_bytes"))
        cells = [name, f"{figures[f'{name}.recall20']:.4f}", f"{ours:.4f}"]
        cells += ["", ""] if theirs is None else [f"{theirs:.4f}", f"{ours - theirs:+.4f}"]
        made.add_row(*cells, "" if size is None else f"{size / 1e6:,.0f}")
    return made


def privirec_flat(results: list[JobResult]) -> Figures:
    """Figures by their full keys, such as gowalla.gf_cf.secure.ndcg20, and every run's seconds."""
    figures: Figures = {}
    for result in results:
        seed = f".seed{result.run.seed}" if result.run.seed else ""
        figures |= {name + seed: value for name, value in result.figures["figures"].items()}
        figures[f"{result.run.key}.seconds"] = result.figures["seconds"]
        figures[f"{result.run.setting.prefix}.users"] = result.figures["users"]
    return figures
