"""The table of what encryption costs: its rows, and its Markdown, written from bench/results/results.json.

    python -m bench.cost_table            write docs/what-encryption-costs.md and the table in README.md
    python -m bench.cost_table --check    change nothing; exit code 1 if one of them differs

Rows and published figures: Nguyen et al., "Towards Efficient Communication and Secure Federated Recommendation System
via Low-rank Training" (WWW 2024), Table 3: MovieLens-1M, item factors of 3706 x 64 values. `bench.overhead` measures.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from bench._report import Figure
from bench.registry import machine, read_results

__all__ = ["MECHANISMS", "ROWS", "Published", "Row", "main", "page", "readme_table"]

ROOT: Final = Path(__file__).parents[1]
RESULTS: Final = ROOT / "bench" / "results"
PAGE: Final = ROOT / "docs" / "what-encryption-costs.md"
README: Final = ROOT / "README.md"
KB: Final = 1024
ITEMS: Final = 3706
DIM: Final = 64
MECHANISMS: Final = ("plain", "masked", "oneshot", "ckks", "paillier")
_SECTION: Final = re.compile(r"(<!-- cost:begin -->\n).*?(<!-- cost:end -->)", re.DOTALL)


@dataclass(frozen=True)
class Published:
    """One row of the paper's table: overheads in seconds, sizes in KB of 1,024 bytes."""

    client_seconds: float
    server_seconds: float
    ciphertext_kb: int
    plaintext_kb: int
    ratio: float


@dataclass(frozen=True)
class Row:
    """One row: `share` sixty-fourths of the item factors, as low-rank rows (CoLR) or as single entries (Top-K)."""

    key: str
    label: str
    family: Literal["fedmf", "topk", "colr"]
    share: int
    published: Published

    @property
    def values(self) -> int:
        """Number of values of one contribution, as the paper counts them: without touch counts."""
        return ITEMS * self.share

    @property
    def plaintext_bytes(self) -> int:
        """Size in bytes: 4 per value, 8 per entry of Top-K (value and index)."""
        return self.values * (8 if self.family == "topk" else 4)


def _row(label: str, family: Literal["fedmf", "topk", "colr"], share: int, *published: float) -> Row:
    client, server, ciphertext, plaintext, ratio = published
    key = family if family == "fedmf" else f"{family}{share}"
    return Row(key, label, family, share, Published(client, server, int(ciphertext), int(plaintext), ratio))


ROWS: Final = (
    _row("FedMF", "fedmf", DIM, 0.93, 2.39, 24587, 927, 26.52),
    _row("Top-K@1/64", "topk", 1, 88.20, 88.06, 3028, 29, 103.09),
    _row("Top-K@2/64", "topk", 2, 182.02, 185.59, 6056, 58, 103.83),
    _row("Top-K@4/64", "topk", 4, 353.25, 364.67, 12112, 116, 104.20),
    _row("Top-K@8/64", "topk", 8, 723.45, 750.98, 24225, 232, 104.40),
    _row("Top-K@16/64", "topk", 16, 1449.90, 1483.91, 48448, 464, 104.49),
    _row("CoLR@1", "colr", 1, 0.07, 0.24, 3073, 15, 206.31),
    _row("CoLR@2", "colr", 2, 0.07, 0.25, 3073, 29, 104.63),
    _row("CoLR@4", "colr", 4, 0.07, 0.25, 3073, 58, 52.69),
    _row("CoLR@8", "colr", 8, 0.08, 0.25, 3073, 116, 26.44),
    _row("CoLR@16", "colr", 16, 0.15, 0.51, 6147, 232, 26.49),
    _row("CoLR@32", "colr", 32, 0.30, 1.03, 12293, 464, 26.51),
)
"""In the paper's order."""
_COMPACT: Final = ("colr4", "fedmf")
"""Rows of the table in the README."""
_PEERS: Final = {"fedmf": "tenseal", "colr": "tenseal", "topk": "phe"}
_WORDS: Final = {
    "plain": "plain",
    "masked": "masked",
    "oneshot": "one-shot",
    "ckks": "CKKS",
    "paillier": "Paillier",
    "tenseal": "TenSEAL",
    "phe": "phe",
}
_QUESTIONS: Final = {
    "bytes": "What a client sends, KB",
    "client_ms": "A client's work in a round, milliseconds",
    "server_ms": "The server's work for one client, milliseconds",
}

_TEXT: Final = """\
# What encryption costs

For everybody who chooses a mechanism. Afterwards you know what a contribution costs a client and the server under
each of the five mechanisms, beside the figures of a paper and of the usual libraries, and how to measure it on your
machine.

This page is written by `python -m bench.cost_table` from [the results](../bench/results/results.json). {made}

{summary}

## How to read the tables

- The rows are those of a published table: the item factors of MovieLens-1M, 3,706 items with 64 values each. FedMF
  sends all of them, Top-K a share, CoLR at rank r as many values as r of the 64 columns. "Paper" is {source}. It
  states neither its machine nor its parameters nor the number of clients.
- "Library" is the usual way: TenSEAL with N=8192, moduli of 60-40-40-60 bits and scale 2^40 for FedMF and CoLR; phe
  with a {bits}-bit key and one value per ciphertext for Top-K, as in the paper, measured on {sample} values and
  multiplied (*).
- The five columns after it are HushRec with the defaults of a task and {clients} clients; Paillier with a {bits}-bit
  key. They cost the same for the same number of values, so Top-K@1/64 equals CoLR@1: over a shared support no indices
  are sent.
- The bytes are all messages of a client in a round: contribution, keys, shares and signatures, without HTTP.
  Plaintext is 4 bytes a value; the paper counts 8 for an entry of Top-K, value and index. KB are 1,024 bytes.
- A client's work is from its vector to the bytes that it sends, and from the bytes of the sum to its values; under
  masked sums all stages of the round, under one-shot sums the check of the committee as well. Training is not
  included. The times of masked and one-shot sums are without certificates.
- The server's work is to check a contribution and add it, and the client's part of the end of the round. Requests,
  signatures and the database are not included; [How far it scales](storage.md#how-far-it-scales) has them.
- One-shot sums need a committee besides. One member works {member} ms for one client and downloads {member_bytes}
  bytes for it, whatever the length of the vector.
- Times are medians of processor time on one core: time in which other programs run does not count, but they share the
  processor's caches.

{tables}## Measure it yourself

From a checkout, after `make setup`. The whole table took {seconds} on that machine:

```sh
python -m bench.overhead --quick      # some rows, once: does it run?
python -m bench.run_all --full --only overhead --output bench/results      # the figures of this page
python -m bench.cost_table            # write this page and the table of README.md
```

`hushrec cost` computes the bytes of your own task without a measurement: [Measure what encryption
costs](tutorials/cost-of-encryption.md).
"""


def page(figures: Mapping[str, Figure]) -> str:
    """The page docs/what-encryption-costs.md."""
    tables = "".join(f"## {title}\n\n{_table(figures, what)}\n" for what, title in _QUESTIONS.items())
    return _TEXT.format(
        made=_made(figures),
        summary=_summary(figures),
        source="Nguyen et al., WWW 2024, Table 3",
        bits=figures["key_bits"],
        sample=figures["phe_sample"] or "all",
        clients=figures["clients"],
        member=_number(_value(figures, "fedmf.oneshot.member_ms")),
        member_bytes=_number(_value(figures, "fedmf.oneshot.member_bytes")),
        seconds=f"about {max(1, round(_value(figures, 'seconds') / 60))} minutes",
        tables=tables,
    )


def readme_table(figures: Mapping[str, Figure]) -> str:
    """The compact table: bytes and milliseconds of some rows, one line per mechanism."""
    chosen = [row for row in ROWS if row.key in _COMPACT]
    headings = ["", *(f"{row.label}: {what}" for row in chosen for what in ("KB sent", "client ms", "server ms"))]
    lines = []
    for way in (*MECHANISMS, "tenseal"):
        cells = [_cell(figures, row, way, what) for row in chosen for what in _QUESTIONS]
        lines.append([_WORDS[way], *cells])
    paper = [cell for row in chosen for cell in (_published(row, what) for what in _QUESTIONS)]
    lines.append(["paper's CKKS", *paper])
    sizes = " and ".join(f"{row.values:,}" for row in chosen)
    return (
        f"One contribution of {sizes} values, {figures['clients']} clients. {_made(figures)}\n\n"
        f"{_markdown(headings, lines)}\nAll rows, and what the figures include: "
        "[What encryption costs](docs/what-encryption-costs.md).\n"
    )


def _made(figures: Mapping[str, Figure]) -> str:
    facts = machine(figures)
    return (
        f"Measured by `python -m bench.overhead` on a virtual machine with {facts['machine.cores']} cores "
        f"({facts['machine.processor']}, Python {facts['version.python']}), on which other programs ran too (load "
        f"{_value(figures, 'machine.load_1m'):.0f})."
    )


def _summary(figures: Mapping[str, Figure]) -> str:
    """What follows from the largest row, in words."""
    row = next(row for row in ROWS if row.key == "fedmf")
    lines = ["For a contribution of 237,184 values (926 KB in float32):", ""]
    for way in MECHANISMS:
        sent, client, server = (_value(figures, f"{row.key}.{way}.{what}") for what in _QUESTIONS)
        lines.append(
            f"- **{_WORDS[way]}**: {sent / row.plaintext_bytes:.2f} times the bytes of the plaintext, "
            f"{_number(client)} ms of a client, {_number(server)} ms of the server."
        )
    return "\n".join(lines)


def _table(figures: Mapping[str, Figure], what: str) -> str:
    size = ["plaintext"] if what == "bytes" else []
    headings = ["", *size, "paper", "library", *(_WORDS[way] for way in MECHANISMS)]
    lines = []
    for row in ROWS:
        cells = [_number(row.plaintext_bytes / KB)] if what == "bytes" else []
        cells += [_published(row, what), _cell(figures, row, _PEERS[row.family], what)]
        lines.append([row.label, *cells, *(_cell(figures, row, way, what) for way in MECHANISMS)])
    return _markdown(headings, lines)


def _published(row: Row, what: str) -> str:
    paper = row.published
    values = {"bytes": paper.ciphertext_kb, "client_ms": 1e3 * paper.client_seconds}
    return _number(values.get(what, 1e3 * paper.server_seconds))


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


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the page and the table, or compare them with what they should be; 1 if one of them differs."""
    figures = read_results(RESULTS)["overhead"]
    table = readme_table(figures)
    readme = _SECTION.sub(lambda found: found[1] + table + found[2], README.read_text(encoding="utf-8"))
    wanted = {PAGE: page(figures), README: readme}
    differing = [path for path, text in wanted.items() if not path.exists() or path.read_text(encoding="utf-8") != text]
    if "--check" in (sys.argv[1:] if arguments is None else arguments):
        print(*(f"{path.name} differs: run python -m bench.cost_table" for path in differing), sep="\n")
        return 1 if differing else 0
    for path in differing:
        path.write_text(wanted[path], encoding="utf-8")
        print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
