"""The page that says which functions a vector passes is true of a round with a real server."""

from __future__ import annotations

from scripts.walk import ROOT, vector_path, walk


def test_a_round_enters_every_function_that_the_page_lists() -> None:
    path = vector_path()
    assert f"These are {len(path)} functions" in (ROOT / "docs/architecture.md").read_text()
    whole, first_round = walk("ckks")
    assert [f"{file}: {name}" for file, name in path if name not in whole.get(file, ())] == []
    assert sum(map(len, first_round.values())) > len(path)
