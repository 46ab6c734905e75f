"""The table that the PriviRec demo prints at the end."""

from __future__ import annotations

from rich.table import Table

from client_sdk.demo.privirec.results import PriviRecResult

__all__ = ["ranking_table"]


def ranking_table(result: PriviRecResult) -> Table:
    """Return a table of Recall@20 and NDCG@20, one row for each entry of `result.ranked`."""
    made = Table(title=f"{result.dataset}: {result.users} users, {result.items} items, full ranking")
    made.title_justify = "left"
    made.add_column("filter, components", justify="left")
    for heading in ("Recall@20", "NDCG@20"):
        made.add_column(heading, justify="right")
    for entry in result.ranked:
        made.add_row(entry.name, f"{entry.ranking.recall:.4f}", f"{entry.ranking.ndcg:.4f}")
    return made
