"""Write the measured table of docs/which-recipe.md from bench/results/quality.json.

    python -m bench.experiments.which_recipe            rewrite the section
    python -m bench.experiments.which_recipe --check    change nothing; exit code 1 if the section differs

The section stands between `<!-- quality -->` and `<!-- end -->`. Without the results file it says that there are none.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

__all__ = ["PAGE", "RESULTS", "main", "section", "with_section"]

PAGE: Final = Path(__file__).parents[2] / "docs" / "which-recipe.md"
RESULTS: Final = Path(__file__).parents[1] / "results" / "quality.json"
METRIC: Final = "ndcg20_over_central"
_NARROWER: Final = re.compile(r"privirec-k-\d+")
"""Arms with fewer vectors, which docs/results.md compares."""
_SECTION: Final = re.compile(r"(<!-- quality -->\n).*?(<!-- end -->)", re.DOTALL)
_NONE: Final = """\
No figures of the default settings are published in this version. Measure your own data with `hushrec simulate`. The
papers' settings and figures are on the page [Fidelity to the papers](results.md).
"""


def section(figures: Mapping[str, Any]) -> str:
    """A table of NDCG@20 over all items, recipes by data sets, from keys `<set>.<recipe>.ndcg20_over_central`.

    Text without figures if there is no such key.
    """
    found = {
        tuple(key.removesuffix(f".{METRIC}").split(".", 1)): float(value)
        for key, value in figures.items()
        if key.endswith(f".{METRIC}") and key.count(".") > 1 and not _NARROWER.fullmatch(key.split(".")[1])
    }
    if not found:
        return _NONE
    sets, recipes = (sorted({key[place] for key in found}) for place in (0, 1))
    lines = [["recipe", *sets], ["---"] * (len(sets) + 1)]
    for recipe in recipes:
        values = [found.get((name, recipe)) for name in sets]
        lines.append([f"`{recipe}`", *("-" if value is None else f"{value:.2f}" for value in values)])
    rows = "".join(f"| {' | '.join(cells)} |\n" for cells in lines)
    about = (
        "NDCG@20 over all items that a user does not have, divided by that of the best central model (EASE, GF-CF, ALS "
        "or BPR,\ntuned on validation rows); test rows, default settings, `bench/experiments/quality.py`."
    )
    return f"{about}\n\n{rows}"


def with_section(page: str, figures: Mapping[str, Any]) -> str:
    """`page` with the section written anew. Raises `ValueError` for a page without the section."""
    if len(_SECTION.findall(page)) != 1:
        raise ValueError("docs/which-recipe.md must mark one section by <!-- quality --> and <!-- end -->")
    return _SECTION.sub(lambda found: found[1] + section(figures) + found[2], page)


def main(arguments: list[str] | None = None) -> int:
    """Rewrite or check the section; 0 when it is up to date at the end, 1 when `--check` finds a difference."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="change nothing; exit code 1 if the section differs")
    given = parser.parse_args(arguments)
    figures = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else {}
    page = PAGE.read_text(encoding="utf-8")
    made = with_section(page, figures)
    if given.check:
        if made != page:
            print("the table of docs/which-recipe.md is out of date; run: python -m bench.experiments.which_recipe")
        return int(made != page)
    PAGE.write_text(made, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
