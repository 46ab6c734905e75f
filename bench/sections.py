"""The sections of the results page: one per results file, with its verdicts and fidelity tables. No IO."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import log10
from typing import Final, Literal

from bench._report import Figure
from bench.targets import TARGETS, Target

__all__ = [
    "FidelityRow",
    "Outcome",
    "Section",
    "Verdict",
    "by_question",
    "fidelity_rows",
    "fidelity_table",
    "in_order",
    "run_words",
    "section_of",
    "shown_value",
]

TITLES: Final = {
    "ckks": (
        "CKKS sums",
        "Encrypted sums of the ML-1M item matrix, compared with TenSEAL's usual pipeline in the same run.",
    ),
    "paillier": ("Paillier sums", "Packed sums, compared with phe at one value per ciphertext in the same run."),
    "masked": ("Masked sums", "Rounds with masks, compared with Flower's secure aggregation in the same run."),
    "masked_round": ("A masked round over HTTP", "1,000 clients, some of which drop out, through a real server."),
    "oneshot": (
        "One-shot sums",
        "One message a client and a committee, compared with a masked client in the same run.",
    ),
    "oneshot_round": (
        "One-shot rounds over HTTP",
        "1,000 clients through a real server, beside masked rounds; 10,000 clients for memory.",
    ),
    "arrays": (
        "A model of one's own",
        "10 million values of named arrays over HTTP, compared with Flower's SecAgg+; 100 million values for memory.",
    ),
    "overhead": (
        "The cost of encryption",
        "The HE table of the CoLR paper for ML-1M: published figures, the usual way, and HushRec.",
    ),
    "federated_evaluation": (
        "Federated evaluation",
        "Bytes and milliseconds that measuring the model adds to a contribution, by recipe and mechanism.",
    ),
    "privirec_service": (
        "PriviRec through the service",
        "Masked sums of all ML-100K users over HTTP, some of whom drop out, compared with the same data in one place.",
    ),
    "quality": (
        "Recommendations",
        "Recommended settings against popularity and central baselines; the held-out item among 99 negatives.",
    ),
    "rating_quality": (
        "Predicted ratings",
        "RFRec's recommended settings against user and item means and a central biased matrix factorisation.",
    ),
    "training": (
        "Local training",
        "A client's round with the CoLR paper's settings on ML-1M, and 1,000 rounds of 60 clients in one process.",
    ),
    "service": (
        "The service under load",
        "Uploads, beside a bare application; 10,000 clients in one round; directly and as behind a proxy.",
    ),
    "demo": (
        "The first minutes",
        "Set-up, the command's start, and the demo as a user runs it: 400 clients, three runs of 40 rounds.",
    ),
    "signatures": ("Request signatures", "Our profile of RFC 9421, a library for the whole RFC, and Ed25519 alone."),
    "memory": ("Server memory", "The same encrypted round with 50 and with 500 clients."),
    "scaling": (
        "Folds and masks on several workers",
        "Processes of one machine and a Dask cluster; number of clients and vector length.",
    ),
}
QUESTIONS: Final = {
    "What does encryption cost a client and the server?": (
        "overhead",
        "ckks",
        "paillier",
        "masked",
        "oneshot",
        "arrays",
        "federated_evaluation",
        "signatures",
    ),
    "How long does a newcomer wait?": ("demo",),
    "How many clients does one server serve?": ("service", "masked_round", "oneshot_round", "scaling", "memory"),
    "Is the quality that of the papers?": ("fidelity-", "privirec_service", "training", "quality", "rating_quality"),
}
"""Questions of a reader, and the results files that answer each; a name that ends with "-" is a prefix."""
_OTHER: Final = "Other results"
_WORDS: Final = {
    "ml1m": "ML-1M",
    "ml100k": "ML-100K",
    "ckks": "CKKS",
    "colr": "CoLR",
    "scolr": "SCoLR",
    "fedmf": "FedMF",
    "svd": "SVD",
    "topk": "Top-K",
    "pfedclr": "PFedCLR",
    "rfrec": "RFRec",
    "rfrecf": "RFRecF",
    "privirec": "PriviRec",
    "fair": "FAIR",
}
_PRIVATE: Final = ("machine.", "version.")
_CURVE_POINT: Final = re.compile(r"\.round\d+$")
"""The end of the run name in the keys of a curve."""
_QUALITY: Final = re.compile(r"(?P<run>.+)\.(?P<metric>(?:hr|ndcg|recall|auc)\d*|mae|rmse)$")


@dataclass(frozen=True)
class Outcome:
    """How a script ended. note: why it was skipped, or the end of the output of a script that failed."""

    script: str
    state: Literal["done", "failed", "skipped"]
    seconds: float = 0.0
    note: str = ""


@dataclass(frozen=True)
class Verdict:
    """A target and the measured value; None if the results have no such figure."""

    target: Target
    value: float | None

    @property
    def status(self) -> str:
        """`met`, `missed` or `not measured`."""
        if self.value is None:
            return "not measured"
        return "met" if self.target.met(self.value) else "missed"

    @property
    def gauge_percent(self) -> float:
        """Position of the value on a logarithmic scale of 0 to 100: the bound is at 30, a tenfold margin at 65."""
        if self.value is None:
            return 0.0
        margin = self.target.margin(self.value)
        return 100.0 if margin == float("inf") else min(100.0, max(0.0, 30.0 + 35.0 * log10(max(margin, 1e-9))))


@dataclass(frozen=True)
class FidelityRow:
    """One quality figure of one run, and the published figure or None."""

    run: str
    metric: str
    ours: float
    paper: float | None

    @property
    def metric_words(self) -> str:
        """The metric as printed, for example HR@10."""
        return re.sub(r"^([a-z]+)(\d+)$", r"\1@\2", self.metric).upper()

    @property
    def difference(self) -> float | None:
        """Our figure minus the published one; None without a published one."""
        return None if self.paper is None else self.ours - self.paper


@dataclass(frozen=True)
class Section:
    """The content of one section of the page."""

    script: str
    title: str
    description: str
    figures: Mapping[str, Figure]
    outcome: Outcome | None
    verdicts: tuple[Verdict, ...]
    fidelity: tuple[FidelityRow, ...]

    @property
    def machine(self) -> str:
        """Processor, cores, load average and Python version as one line; empty without results."""
        f = self.figures
        if "machine.processor" not in f:
            return ""
        load = f.get("machine.load_1m")
        shown = f", load {load:.1f}" if isinstance(load, float) else ""
        return f"{f['machine.processor']}, {f.get('machine.cores')} cores{shown}, Python {f.get('version.python')}"

    @property
    def versions(self) -> dict[str, Figure]:
        """Version by library."""
        return {k.removeprefix("version."): v for k, v in self.figures.items() if k.startswith("version.") and v}

    @property
    def plain_figures(self) -> dict[str, Figure]:
        """The measured figures, without `machine.*` and `version.*`."""
        return {key: value for key, value in self.figures.items() if not key.startswith(_PRIVATE)}


def in_order(scripts: Iterable[str]) -> list[str]:
    """`scripts` in the order of the page: those of TITLES first, then all others by name."""
    known = list(TITLES)
    return sorted(set(scripts), key=lambda s: (known.index(s) if s in TITLES else len(known), s))


def by_question(sections: Iterable[Section]) -> dict[str, list[Section]]:
    """The sections by the question that they answer, in the order of `QUESTIONS`; the rest under "Other results"."""
    found: dict[str, list[Section]] = {question: [] for question in (*QUESTIONS, _OTHER)}
    for section in sections:
        script = section.script
        matches = (
            q
            for q, names in QUESTIONS.items()
            if any(script == n or (n.endswith("-") and script.startswith(n)) for n in names)
        )
        found[next(matches, _OTHER)].append(section)
    return {question: members for question, members in found.items() if members}


def run_words(run: str) -> str:
    """The key of a run in words, such as "ML-1M, CoLR, rank 4, CKKS" for ml1m.colr.rank4.ckks."""
    words = []
    for part in run.split("."):
        number = re.fullmatch(r"([a-z]+?)_?(\d+)", part)
        if part in _WORDS or number is None:
            words.append(_WORDS.get(part, part.replace("_", " ")))
        else:
            words.append(f"{number[1]} {number[2]}")
    return ", ".join(words)


def fidelity_table(rows: Iterable[FidelityRow]) -> tuple[list[str], list[tuple[str, list[FidelityRow | None]]]]:
    """(metrics in words, (run in words, its row for each metric) in the order of `rows`): one line a run."""
    rows = list(rows)
    metrics = list(dict.fromkeys(row.metric_words for row in sorted(rows, key=lambda row: row.metric)))
    runs: dict[str, dict[str, FidelityRow]] = {}
    for row in rows:
        runs.setdefault(row.run, {})[row.metric_words] = row
    return metrics, [(run_words(run), [found.get(metric) for metric in metrics]) for run, found in runs.items()]


def section_of(script: str, figures: Mapping[str, Figure], outcome: Outcome | None = None) -> Section:
    """The section of one results file. figures: empty if the script left no results."""
    title, description = TITLES.get(script, ("", ""))
    if script.startswith("fidelity-"):
        title = f"Fidelity: {run_words(script.removeprefix('fidelity-'))}"
        description = "Trained on real data, compared with the published figures where there are any."
    verdicts = tuple(Verdict(target, _number(figures.get(target.key))) for target in TARGETS.get(script, ()))
    quality = tuple(fidelity_rows(figures)) if script.startswith(("fidelity-", "privirec-")) else ()
    return Section(script, title or script, description, figures, outcome, verdicts, quality)


def fidelity_rows(figures: Mapping[str, Figure]) -> list[FidelityRow]:
    """The quality figures of all runs, sorted by run, each with its published figure (`<run>.paper.<metric>`)."""
    rows = []
    for key, value in figures.items():
        found = _QUALITY.match(key)
        number = _number(value)
        if found is None or number is None or found["run"].endswith(".paper") or _CURVE_POINT.search(found["run"]):
            continue
        run, metric = found["run"], found["metric"]
        rows.append(FidelityRow(run, metric, number, _number(figures.get(f"{run}.paper.{metric}"))))
    return sorted(rows, key=lambda row: (_natural(row.run), row.metric))


def _natural(text: str) -> list[tuple[int, str]]:
    """Sort key with numbers as numbers, so that rank2 comes before rank16."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", text)]


def _number(value: Figure) -> float | None:
    return float(value) if isinstance(value, int | float) else None


def shown_value(value: Figure) -> str:
    """A figure as shown in a table: four significant digits, thousands separated by commas."""
    if isinstance(value, bool) or not isinstance(value, float):
        return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
    if value == 0 or 1e-3 <= abs(value) < 1e6:
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
    return f"{value:.2e}"
