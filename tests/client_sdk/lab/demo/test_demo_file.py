"""The demo runs on the user's own file: the cohort suits it, and of many users some are drawn."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from client_sdk.lab.data.columns import Columns
from client_sdk.lab.demo import results as settings
from client_sdk.lab.demo.results import DemoRequest
from client_sdk.lab.demo.run import chosen_settings, shared_setup
from client_sdk.lab.demo.spectrum import prepare
from protocols.errors import ParameterError


@pytest.fixture
def path(tmp_path: Path) -> Path:
    users, items = np.nonzero(np.random.default_rng(0).random((40, 300)) < 0.3)
    rows = [f"{item};member {user};1" for user, item in zip(users, items, strict=True)]
    (tmp_path / "mine.txt").write_text("\n".join(rows) + "\n")
    return tmp_path / "mine.txt"


def test_cohort_is_at_most_all_users(path: Path) -> None:
    said: list[str] = []
    request = DemoRequest(str(path), columns=Columns(1, 0))
    shared, replaced = shared_setup(request, chosen_settings(request), said.append)
    assert (shared.cohort, len(shared.identities), replaced) == (40, 40, 0)
    assert shared.data.train.user_ids[2] == "member 10"
    assert said[0].endswith("separated by semicolons, no header; columns user=1,item=0")
    large = DemoRequest(str(path), columns=Columns(1, 0), cohort=60)
    with pytest.raises(ParameterError, match="cohort of 60 is greater than the 40 users"):
        shared_setup(large, chosen_settings(large))


def test_some_of_many_users_are_clients(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings, "MOST_USERS", 20)
    said: list[str] = []
    request = DemoRequest(str(path), columns=Columns(1, 0))
    shared, _ = shared_setup(request, chosen_settings(request), said.append)
    assert len(shared.identities) == 20
    assert said[1] == "20 of 40 users, drawn with seed 0, are clients of the demo"
    made = prepare(DemoRequest(str(path), recipe="privirec-k", columns=Columns(1, 0)), said.append)
    assert made.users.size == 20
    assert made.recipe.parameters.components <= made.train.n_items
