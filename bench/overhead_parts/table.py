"""The readable form of the table: comparisons with the paper, then every step of every way, in Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from bench._report import Figure
from bench.overhead_parts.rows import ROWS, SOURCE, Row
from bench.overhead_parts.steps import KB, Steps, steps_in

__all__ = ["COMPARISONS", "WAYS", "comparison", "in_detail", "markdown", "notes"]

WAYS: Final = {"usual": "usual", "ours": "HushRec", "masked": "masked"}
"""Column heading by way, in the order of the tables."""

COMPARISONS: Final = {
    "size": "One contribution, KB",
    "ratio": "One contribution / plaintext",
    "client": "Client time per round, seconds",
    "server": "Server time per client, seconds",
}
"""Title by compared quantity."""

_DETAIL = ("row", "way", "seal", "open", "fold", "ciphertext KB", "plaintext KB", "ratio")


def comparison(figures: Mapping[str, Figure], what: str) -> tuple[list[str], list[list[str]]]:
    """Headings and rows of one of COMPARISONS, with one column per way after the paper's figure."""
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
    return _seconds(steps.client if what == "client" else steps.fold) + ("*" if steps.scaled else "")


def in_detail(figures: Mapping[str, Figure]) -> tuple[list[str], list[list[str]]]:
    """Headings and rows of the single steps, with one row per measured row and way."""
    rows = []
    for row in ROWS:
        for way, words in WAYS.items():
            steps = steps_in(figures, row, way)
            if steps is None:
                continue
            mark = "*" if steps.scaled else ""
            parts = (steps.seal, steps.open, steps.fold)
            cells = [row.label, words, *(f"{_seconds(part)}{mark}" for part in parts)]
            cells += [_size(steps.ciphertext_bytes / KB), _size(row.plaintext_bytes / KB)]
            rows.append([*cells, f"{steps.ciphertext_bytes / row.plaintext_bytes:.2f}"])
    return list(_DETAIL), rows


def notes(figures: Mapping[str, Figure]) -> list[str]:
    """Notes that explain the tables, one or two sentences each."""
    found = [
        f"Paper: {SOURCE}. It states neither its machine and parameters nor the number of clients of a figure.",
        "Usual: TenSEAL with N=8192, moduli of 60-40-40-60 bits and scale 2^40 for FedMF and CoLR; phe with one "
        f"value per ciphertext and a key of {figures.get('phe_key_bits')} bits for Top-K.",
        "Client: seal (from values to bytes) + open (from the sum's bytes to values). Server: fold, checks included, "
        f"for one of {figures.get('clients')} clients. KB are 1,024 bytes. An entry of Top-K is a value and its index, "
        "8 bytes of plaintext. Times are processor seconds of one core.",
        "HushRec: the defaults of a task, with a secret key that clients share: CKKS set `standard`, seeded, for FedMF "
        "and CoLR; for Top-K packed Paillier with the key size of the usual way, over a shared support, so that no "
        "indices are sent.",
        "Masked: a 32-bit ring in semi-malicious mode; the client's and the server's work in all five stages of a "
        "round without dropouts.",
        "All ways sum the paper's vector, as a task does.",
    ]
    if "repetitions" in figures:
        found.append(f"Medians of {figures['repetitions']} repetitions; fewer if one repetition takes seconds.")
    if any(name.endswith(".scaled") and value for name, value in figures.items()):
        found.append(f"* measured on {figures.get('phe_sample')} values and multiplied; `--full` measures every value.")
    return found


def markdown(figures: Mapping[str, Figure], plots: Iterable[str] = ()) -> str:
    """The whole Markdown page: comparisons, plots by file name, notes, steps, machine."""
    parts = ["# The cost of encryption: the CoLR paper's HE table, MovieLens-1M", ""]
    for what, title in COMPARISONS.items():
        parts += [f"## {title}", "", *(f"![{title}]({name})\n" for name in plots if name.endswith(f"-{what}.png"))]
        parts += [_table(*comparison(figures, what)), ""]
    parts += ["## Notes", "", *(f"- {note}" for note in notes(figures)), ""]
    parts += ["## Step by step, seconds", "", _table(*in_detail(figures)), ""]
    machine = {name: value for name, value in figures.items() if name.startswith(("machine.", "version."))}
    parts += ["## Machine", "", "; ".join(f"{name} {value}" for name, value in sorted(machine.items())) + ".", ""]
    return "\n".join(parts)


def _table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    numbers = 1 if headings[1] != "way" else 2
    rule = ["---"] * numbers + ["---:"] * (len(headings) - numbers)
    return "\n".join("| " + " | ".join(line) + " |" for line in (headings, rule, *rows))


def _seconds(value: float) -> str:
    """Three significant digits, without an exponent."""
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.{max(0, 2 - _magnitude(value))}f}" if value > 0 else "0"


def _magnitude(value: float) -> int:
    return int(f"{value:e}".partition("e")[2])


def _size(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:,.1f}"
