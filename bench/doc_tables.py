"""Write the tables of measured figures in the documentation, from the committed results.

    python -m bench.doc_tables            write them
    python -m bench.doc_tables --check    change nothing; exit code 1 if one of them differs

A table stands between `<!-- table:NAME -->` and `<!-- end -->` in a page of `PAGES`. Rows and published figures of the
cost tables: Nguyen et al., "Towards Efficient Communication and Secure Federated Recommendation System via Low-rank
Training" (WWW 2024), Table 3: MovieLens-1M, item factors of 3706 x 64 values. `bench.overhead` measures the others.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final, Literal

from bench._report import Figure
from bench.figures import Results, read_results
from client_sdk.cli.cost import LIST_PRICES

ROOT: Final = Path(__file__).parents[1]
RESULTS: Final = ROOT / "bench" / "results"
_PAGES_OF_DOCS: Final = ("monitoring.md", "what-encryption-costs.md", "which-recipe.md")
PAGES: Final = (
    *(ROOT / "README.md", ROOT / "bench" / "experiments" / "README.md"),
    *(ROOT / "docs" / name for name in _PAGES_OF_DOCS),
)
KB: Final = 1024
ITEMS: Final = 3706
DIM: Final = 64
MECHANISMS: Final = ("plain", "masked", "oneshot", "ckks", "paillier")
_WORDS: Final = {"oneshot": "one-shot", "ckks": "CKKS", "paillier": "Paillier", "tenseal": "TenSEAL"}
_OF_SIZE: Final = re.compile(r"privirec-k-\d+")
_SECTION: Final = re.compile(r"(<!-- table:(\S+) -->\n).*?(<!-- end -->)", re.DOTALL)


@dataclass(frozen=True)
class Row:
    """One row: `share` sixty-fourths of the item factors, as low-rank rows (CoLR) or as single entries (Top-K).

    The other fields are the paper's: seconds of a client and of the server, sizes in KB of 1,024 bytes, their ratio.
    """

    label: str
    family: Literal["fedmf", "topk", "colr"]
    share: int
    client_seconds: float
    server_seconds: float
    ciphertext_kb: int
    plaintext_kb: int
    ratio: float

    @property
    def key(self) -> str:
        """The first part of the keys of its figures."""
        return self.family if self.family == "fedmf" else f"{self.family}{self.share}"

    @property
    def values(self) -> int:
        """Number of values of one contribution, as the paper counts them: without touch counts."""
        return ITEMS * self.share

    @property
    def plaintext_bytes(self) -> int:
        """Size in bytes: 4 per value, 8 per entry of Top-K (value and index)."""
        return self.values * (8 if self.family == "topk" else 4)

    def published(self, what: str) -> str:
        """The paper's figure, in the unit of the table `what`."""
        values = {"bytes": self.ciphertext_kb, "client_ms": 1e3 * self.client_seconds}
        return _number(values.get(what, 1e3 * self.server_seconds))


ROWS: Final = (
    Row("FedMF", "fedmf", DIM, 0.93, 2.39, 24587, 927, 26.52),
    Row("Top-K@1/64", "topk", 1, 88.20, 88.06, 3028, 29, 103.09),
    Row("Top-K@2/64", "topk", 2, 182.02, 185.59, 6056, 58, 103.83),
    Row("Top-K@4/64", "topk", 4, 353.25, 364.67, 12112, 116, 104.20),
    Row("Top-K@8/64", "topk", 8, 723.45, 750.98, 24225, 232, 104.40),
    Row("Top-K@16/64", "topk", 16, 1449.90, 1483.91, 48448, 464, 104.49),
    Row("CoLR@1", "colr", 1, 0.07, 0.24, 3073, 15, 206.31),
    Row("CoLR@2", "colr", 2, 0.07, 0.25, 3073, 29, 104.63),
    Row("CoLR@4", "colr", 4, 0.07, 0.25, 3073, 58, 52.69),
    Row("CoLR@8", "colr", 8, 0.08, 0.25, 3073, 116, 26.44),
    Row("CoLR@16", "colr", 16, 0.15, 0.51, 6147, 232, 26.49),
    Row("CoLR@32", "colr", 32, 0.30, 1.03, 12293, 464, 26.51),
)
"""In the paper's order."""
_QUESTIONS: Final = ("bytes", "client_ms", "server_ms")


def cost_measured(results: Results) -> str:
    """Where the figures come from, and what a member of a committee does for one client."""
    figures = results["overhead"]
    member, size = (_value(figures, f"fedmf.oneshot.member_{what}") for what in ("ms", "bytes"))
    return (
        f"{_measured_on(figures)} One-shot sums need a committee besides: a member needs {_number(member)} ms and "
        f"{_number(size)} bytes for each client, whatever the length of the vector.\n"
    )


def cost_table(what: str, results: Results) -> str:
    """All rows and mechanisms, beside the paper and the usual library. what: `bytes`, `client_ms` or `server_ms`."""
    figures, size = results["overhead"], ["plaintext"] if what == "bytes" else []
    lines = []
    for row in ROWS:
        cells = [_number(row.plaintext_bytes / KB)] if size else []
        peer = "phe" if row.family == "topk" else "tenseal"
        cells += [row.published(what), *(_cell(figures, row, way, what) for way in (peer, *MECHANISMS))]
        lines.append([row.label, *cells])
    return _markdown(["", *size, "paper", "library", *(_WORDS.get(way, way) for way in MECHANISMS)], lines)


def readme_table(results: Results) -> str:
    """The compact table: bytes and milliseconds of two rows, one line per mechanism."""
    figures, chosen = results["overhead"], [row for row in ROWS if row.key in ("colr4", "fedmf")]
    headings = ["", *(f"{row.label}: {what}" for row in chosen for what in ("KB sent", "client ms", "server ms"))]
    lines = [
        [_WORDS.get(way, way), *(_cell(figures, row, way, what) for row in chosen for what in _QUESTIONS)]
        for way in (*MECHANISMS, "tenseal")
    ]
    lines.append(["paper's CKKS", *(row.published(what) for row in chosen for what in _QUESTIONS)])
    sizes = " and ".join(f"{row.values:,}" for row in chosen)
    return (
        f"One contribution of {sizes} values, {figures['clients']} clients. {_measured_on(figures)}\n\n"
        f"{_markdown(headings, lines)}\nAll rows, and what the figures include: "
        "[What encryption costs](docs/what-encryption-costs.md).\n"
    )


def recipes_table(results: Results) -> str:
    """NDCG@20 over all items, recipes by data sets, from keys `<set>.<recipe>.ndcg20_over_central` of `quality`.

    Without arms that have another number of vectors, which docs/results.md compares.
    """
    end = ".ndcg20_over_central"
    found = {tuple(key.removesuffix(end).split(".")): key for key in results["quality"] if key.endswith(end)}
    sets, recipes = (sorted({pair[place] for pair in found}) for place in (0, 1))
    lines = []
    for recipe in recipes:
        if not _OF_SIZE.fullmatch(recipe):
            keys = (found.get((name, recipe), "") for name in sets)
            lines.append([f"`{recipe}`", *(f"{_value(results['quality'], key):.2f}" if key else "-" for key in keys)])
    return _markdown(["recipe", *sets], lines)


def seeds_table(results: Results) -> str:
    """Seeds of each row, from keys `<set>.<row>.seeds` and `<set>.<row>.earlier_draw` of `quality`."""
    figures = results["quality"]
    found = {tuple(key.split(".")[:2]) for key in figures if key.endswith(".seeds")}
    sets, rows = (sorted({pair[place] for pair in found}) for place in (0, 1))

    def cell(data: str, row: str) -> str:
        earlier = "*" if figures.get(f"{data}.{row}.earlier_draw") else ""
        return f"{figures[f'{data}.{row}.seeds']}{earlier}" if (data, row) in found else "-"

    lines = ([f"`{row}`", *(cell(name, row) for name in sets)] for row in rows if not _OF_SIZE.fullmatch(row))
    return _markdown(["row", *sets], lines)


def sizing_table(results: Results) -> str:
    """What a member and a round cost the server, from keys `<mechanism>.n<members>.m<values>.*` of `sizing`."""
    figures, lines, (hour, cores, _) = results["sizing"], [], LIST_PRICES
    found = {tuple(key.split(".")[:3]) for key in figures if key.endswith(".server_cpu_s")}
    for mechanism in sorted({name for name, _, _ in found}):
        for members, values in sorted({(int(n[1:]), int(m[1:])) for name, n, m in found if name == mechanism}):
            of = {
                name: _value(figures, f"{mechanism}.n{members}.m{values}.{name}")
                for name in (
                    *("bytes_up_per_client", "enrol_cpu_ms_per_member", "server_cpu_s", "peak_rss_mib"),
                    *("rows_bytes", "blobs_bytes", "log_bytes"),
                )
            }
            lines.append(
                [
                    _WORDS.get(mechanism, mechanism),
                    f"{members}",
                    f"{values:,}",
                    f"{of['bytes_up_per_client'] / 1000:,.0f}",
                    _number(of["enrol_cpu_ms_per_member"]),
                    _number(of["server_cpu_s"]),
                    _number(1000 * of["server_cpu_s"] / members),
                    f"{of['peak_rss_mib']:.0f}",
                    f"{(of['rows_bytes'] + of['blobs_bytes']) / 1000:,.0f}",
                    _number(of["log_bytes"] / members / 1000),
                    _number(1e5 * hour / cores / 3600 * of["server_cpu_s"] / members),
                ]
            )
    headings = ["", "members", "values", "kB a member sends", "ms to enrol one", "s of a core, a round", "ms a member"]
    headings += ["MiB of memory", "kB kept, a round", "kB of log a member", "US cents, 1,000 members in a round"]
    return f"{_measured_on(figures, 'sizing')}\n\n{_markdown(headings, lines)}"


TABLES: Final[Mapping[str, Callable[[Results], str]]] = {
    "cost-measured": cost_measured,
    **{f"cost-{what}": partial(cost_table, what) for what in _QUESTIONS},
    "cost-readme": readme_table,
    "recipes": recipes_table,
    "seeds": seeds_table,
    "sizing": sizing_table,
}


def _measured_on(figures: Mapping[str, Figure], script: str = "overhead") -> str:
    load, cores = _value(figures, "machine.load_1m"), _value(figures, "machine.cores")
    return (
        f"Measured by `python -m bench.{script}` on a virtual machine with {cores:.0f} cores "
        f"({figures['machine.processor']}, Python {figures['version.python']})"
        + (f", on which other programs ran too (load {load:.0f})." if load > cores else ".")
    )


def _cell(figures: Mapping[str, Figure], row: Row, way: str, what: str) -> str:
    if f"{row.key}.{way}.{what}" not in figures:
        return ""
    value = _value(figures, f"{row.key}.{way}.{what}")
    scaled = "*" if figures[f"{row.key}.{way}.scaled"] and what != "bytes" else ""
    return _number(value / KB if what == "bytes" else value) + scaled


def _value(figures: Mapping[str, Figure], key: str) -> float:
    value = figures[key]
    assert isinstance(value, int | float), key
    return float(value)


def _number(value: float) -> str:
    """Three significant digits, without an exponent."""
    if value >= 100:
        return f"{value:,.0f}"
    magnitude = int(f"{value:e}".partition("e")[2]) if value else 0
    return f"{value:.{max(0, 2 - magnitude)}f}"


def _markdown(headings: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    rule = ["---", *["---:"] * (len(headings) - 1)]
    return "".join("| " + " | ".join(line) + " |\n" for line in (headings, rule, *lines))


def with_tables(page: str, results: Results) -> str:
    """`page` with its tables written anew. Raises `KeyError` for an unknown name, `ValueError` without a table."""
    made, count = _SECTION.subn(lambda found: found[1] + TABLES[found[2]](results) + found[3], page)
    if not count:
        raise ValueError("the page has no <!-- table:NAME --> with <!-- end -->")
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the tables, or compare them with what they should be; 1 if one of them differs."""
    results = read_results(RESULTS)
    pages = {path: path.read_text(encoding="utf-8") for path in PAGES}
    wanted = {path: with_tables(page, results) for path, page in pages.items()}
    differing = [path for path in PAGES if wanted[path] != pages[path]]
    if "--check" in (sys.argv[1:] if arguments is None else arguments):
        print(*(f"{path.name} differs: run python -m bench.doc_tables" for path in differing), sep="\n")
        return 1 if differing else 0
    for path in differing:
        path.write_text(wanted[path], encoding="utf-8")
        print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
