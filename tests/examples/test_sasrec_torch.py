"""The SASRec example with PyTorch, which is no dependency: skipped where it is not installed.

`test_sasrec` has what needs no PyTorch.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.needs import required

torch: Any = required("torch")

from examples.sasrec_torch.federation import PARAMETERS  # noqa: E402 - after the check for torch
from examples.sasrec_torch.histories import choose, read  # noqa: E402
from examples.sasrec_torch.run import compare  # noqa: E402
from examples.sasrec_torch.sasrec import SASRecLearner, Settings, train_centrally, training_windows  # noqa: E402

SMALL = Settings(dim=8, blocks=1, length=6, epochs=2, rate=1.0)


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


def test_a_state_follows_from_the_items_before_it() -> None:
    model = SASRecLearner(20, SMALL).module(SASRecLearner(20, SMALL).initial())
    items = torch.tensor([[3, 1, 4, 1, 5, 9]])
    changed = torch.tensor([[3, 1, 4, 2, 6, 9]])
    one, other = model(items), model(changed)
    assert torch.allclose(one[:, :3], other[:, :3], atol=1e-6) and not torch.allclose(one[:, 3:], other[:, 3:])


def test_padding_changes_nothing() -> None:
    learner = SASRecLearner(20, SMALL)
    short, long = np.array([3, 1, 4], np.int32), np.arange(9, dtype=np.int32)
    both = learner.scores(learner.initial(), [short, long])
    alone = [learner.scores(learner.initial(), [one])[0] for one in (short, long)]
    np.testing.assert_allclose(both, alone, atol=1e-6)
    model = learner.module(learner.initial())
    with torch.no_grad():
        unpadded = model(torch.tensor([[3, 1, 4]]))[0, -1] @ model.items.weight.T
    np.testing.assert_allclose(both[0], unpadded.numpy(), atol=1e-6)
    assert both.shape == (2, 20)


@pytest.mark.parametrize("size", [2, 3, 6, 7, 8, 25])
def test_windows_hold_the_whole_history_and_negatives_are_not_in_it(size: int) -> None:
    history = np.random.default_rng(0).permutation(40)[:size].astype(np.int32)
    for seed in range(8):
        windows, padded, drawn = training_windows([history], 40, SMALL, np.random.default_rng(seed))
        assert windows.shape == padded.shape == (len(windows), 7) and drawn.shape == (len(windows), 6, 1)
        targets = windows[:, 1:][~padded[:, :-1]].tolist()
        assert set(targets) == set(history[1:].tolist()), "every item but the first is predicted"
        for row, hidden in zip(windows.numpy(), padded.numpy(), strict=True):
            kept = row[~hidden].tolist()
            assert kept == [item for item in history.tolist() if item in kept], "in order, without gaps"
        assert not np.isin(drawn.numpy(), history).any()


def test_ndcg_rises_over_masked_sums_and_equals_plain_fedavg(tmp_path: Path) -> None:
    clients = choose(read("synthetic", None), 16, others=40)
    learner = SASRecLearner(clients.items, Settings(dim=16, blocks=1, length=20))
    found = compare(
        tmp_path, learner, clients, 4, lambda on_epoch: train_centrally(learner, clients.training(), 3, on_epoch)
    )
    assert found.masked[-1] > found.masked[0] + 0.05
    assert found.masked == pytest.approx(found.plain, abs=0.02) and max(found.differences) < 1e-4
    assert found.central is not None and 1 <= found.central[0] <= 3
    assert PARAMETERS["optimiser"] == "adam", "the one that plain FedAvg has"
