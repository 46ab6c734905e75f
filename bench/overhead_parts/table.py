"""The table as people read it: the paper's columns side by side, then every step of every way, in Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from bench._report import Figure
from bench.overhead_parts.rows import ROWS, SOURCE, Row
from bench.overhead_parts.steps import KB, Steps, steps_in

__all__ = ["COMPARISONS", "WAYS", "comparison", "in_detail", "markdown", "notes"]

WAYS: Final = {"usual": "ordinary", "ours": "HushRec", "public": "public key", "masked": "masked"}
"""Key in the figures -> heading, in the order of the tables."""

COMPARISONS: Final = {
    "size": "One contribution, KB",
    "ratio": "One contribution, times the plaintext",
    "client": "A client's time a round, seconds",
    "server": "The server's time a client, seconds",
}
"""What is compared -> title."""

_DETAIL = (
    "row",
    "way",
    "encrypt",
    "serialise",
    "decrypt",
    "deserialise",
    "fold",
    "ciphertext KB",
    "plaintext KB",
    "ratio",
)


def comparison(figures: Mapping[str, Figure], what: str) -> tuple[list[str], list[list[str]]]:
    """Headings and rows of one of COMPARISONS: a line a row, a column a way, the paper's figure first."""
    ways = [way for way in WAYS if any(f"{row.key}.{way}.client_seconds" in figures for row in ROWS)]
    headings = ["", *(["plaintext"] if what == "size" else []), "paper", *(WAYS[way] for way in ways)]
    rows = []
    for row in ROWS:
        cells = [row.label, *([_size(row.plaintext_bytes / KB)] if what == "size" else []), _published(row, what)]
        cells += [_cell(row, steps_in(figures, row, way), what) for way in ways]
        rows.append(cells)
    return headings, rows


def _published(row: Row, what: str) -> str:
    paper = row.published
    words = {
        "size": f"{paper.ciphertext_kb:,}",
        "ratio": f"{paper.ratio:.2f}",
        "client": f"{paper.client_seconds:,.2f}",
        "server": f"{paper.server_seconds:,.2f}",
    }
    return words[what]


def _cell(row: Row, steps: Steps | None, what: str) -> str:
    if steps is None:
        return ""
    if what == "size":
        return _size(steps.ciphertext_bytes / KB)
    if what == "ratio":
        return f"{steps.ciphertext_bytes / row.plaintext_bytes:.2f}"
    return _seconds(steps.client if what == "client" else steps.server) + ("*" if steps.scaled else "")


def in_detail(figures: Mapping[str, Figure]) -> tuple[list[str], list[list[str]]]:
    """Headings and rows: every step of every way that was measured, a line each."""
    rows = []
    for row in ROWS:
        for way, words in WAYS.items():
            steps = steps_in(figures, row, way)
            if steps is None:
                continue
            mark = "*" if steps.scaled else ""
            parts = (steps.encrypt, steps.serialise, steps.decrypt, steps.deserialise, steps.fold)
            cells = [row.label, words, *(f"{_seconds(part)}{mark}" for part in parts)]
            cells += [_size(steps.ciphertext_bytes / KB), _size(row.plaintext_bytes / KB)]
            rows.append([*cells, f"{steps.ciphertext_bytes / row.plaintext_bytes:.2f}"])
    return list(_DETAIL), rows


def notes(figures: Mapping[str, Figure]) -> list[str]:
    """What a reader must know, one sentence or two each."""
    found = [
        f"Paper: {SOURCE}. It does not say what machine or parameters it used, or how many clients a figure covers.",
        "Ordinary: TenSEAL with N=8192, moduli of 60-40-40-60 bits and scale 2^40 for FedMF and CoLR; phe with one "
        f"value a ciphertext and a key of {figures.get('phe_key_bits')} bits for Top-K.",
        f"Client: encrypt + serialise + decrypt. Server: deserialise (checks included) + fold, for one of "
        f"{figures.get('clients')} clients. KB are 1,024 bytes. An entry of Top-K is a value and its index, 8 bytes of "
        "plaintext. Seconds are the processor's, of one core.",
        "HushRec: as a task has it by default, clients sharing the secret key: CKKS set `standard`, seeded, for FedMF "
        "and CoLR; Paillier with packed values and the key size of the ordinary way for Top-K, over a shared support, "
        "so that no index travels.",
        "Public key: only one holder opens the sum. CKKS set `precise`, flooded with noise when it is opened; Paillier "
        "with a table of fixed-base powers, made beforehand.",
        "Masked: a ring of 32 bits and a server that may lie; a client's and the server's part of all five stages of a "
        "round without dropouts.",
        "All ways sum the paper's vector. A task sums how many clients touched each item as well: 3,706 values more.",
    ]
    if "repetitions" in figures:
        found.append(f"Medians of {figures['repetitions']} repetitions; of fewer where one takes seconds.")
    if any(name.endswith(".scaled") and value for name, value in figures.items()):
        found.append(f"* measured on {figures.get('phe_sample')} values and multiplied; `--full` measures every value.")
    return found


def markdown(figures: Mapping[str, Figure], plots: Iterable[str] = ()) -> str:
    """The whole page: comparison, plots by file name, steps, notes, machine."""
    parts = ["# What encryption costs: the CoLR paper's HE table, MovieLens-1M", ""]
    for what, title in COMPARISONS.items():
        parts += [f"## {title}", "", *(f"![{title}]({name})\n" for name in plots if name.endswith(f"-{what}.png"))]
        parts += [_table(*comparison(figures, what)), ""]
    parts += ["## How to read it", "", *(f"- {note}" for note in notes(figures)), ""]
    parts += ["## Step by step, seconds", "", _table(*in_detail(figures)), ""]
    machine = {name: value for name, value in figures.items() if name.startswith(("machine.", "version."))}
    parts += ["## Where it ran", "", "; ".join(f"{name} {value}" for name, value in sorted(machine.items())) + ".", ""]
    return "\n".join(parts)


def _table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    numbers = 1 if headings[1] != "way" else 2
    rule = ["---"] * numbers + ["---:"] * (len(headings) - numbers)
    return "\n".join("| " + " | ".join(line) + " |" for line in (headings, rule, *rows))


def _seconds(value: float) -> str:
    """Three digits that count, never in powers of ten."""
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.{max(0, 2 - _magnitude(value))}f}" if value > 0 else "0"


def _magnitude(value: float) -> int:
    return int(f"{value:e}".partition("e")[2])


def _size(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:,.1f}"
