"""The page that says which functions a vector passes is true of a round with a real server."""

from __future__ import annotations

import pytest

from scripts.walk import ROOT, vector_path, walk

SAID = {"ckks": "These are {} functions", "masked": "so that it passes {};"}


@pytest.mark.parametrize("mechanism", SAID)
def test_a_round_enters_every_function_that_the_page_lists(mechanism: str) -> None:
    path = vector_path(mechanism)
    assert SAID[mechanism].format(len(path)) in (ROOT / "docs/architecture.md").read_text()
    whole, first_round = walk(mechanism)
    assert [f"{file}: {name}" for file, name in path if name not in whole.get(file, ())] == []
    assert sum(map(len, first_round.values())) > len(path)
