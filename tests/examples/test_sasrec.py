"""The SASRec example without PyTorch: its data, plain FedAvg, and the whole comparison with a model in numpy.

`test_sasrec_torch` has the model itself.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from client_sdk.lab.data.interactions import Interactions, LeaveOneOut
from examples.sasrec_torch import histories as data
from examples.sasrec_torch.fedavg import Arrays, Histories, fedavg, mean_update
from examples.sasrec_torch.federation import PARAMETERS
from examples.sasrec_torch.run import compare, main
from tests.support.forked_programs import fork_programs


class Popular:
    """A stand-in for the model: it learns which items are frequent. An item that a client lacks stays as it is."""

    rows = ("table",)

    def __init__(self, items: int) -> None:
        self.items = items

    def initial(self) -> Arrays:
        return {"table": np.zeros((self.items, 2), np.float32), "scale": np.ones(3, np.float32)}

    def train(self, arrays: Arrays, items: NDArray[np.int32], seed: Sequence[int]) -> tuple[Arrays, int]:
        new = {name: array.copy() for name, array in arrays.items()}
        new["table"][items] += np.random.default_rng(seed).uniform(0.1, 0.2, (items.size, 2)).astype(np.float32)
        new["scale"] += np.float32(0.01)
        return new, items.size

    def scores(self, arrays: Arrays, histories: Histories) -> NDArray[np.float32]:
        return np.tile(arrays["table"].sum(axis=1), (len(histories), 1))


def test_histories_are_in_order_of_time_or_in_a_random_order_of_their_own(tmp_path: Path) -> None:
    """Without times, as the NCF files of ML-1M are where their training file has no fourth column."""
    train = data.read("synthetic", None).train
    assert (np.diff(train.timestamps[train.indptr[7] : train.indptr[8]]) > 0).all()
    rows = [f"{user}\t{item}\t5" for user in range(3) for item in range(20)]
    (tmp_path / "ml-1m.train.rating").write_text("\n".join(rows) + "\n")
    (tmp_path / "ml-1m.test.rating").write_text("".join(f"{user}\t{20 + user}\t4\t9\n" for user in range(3)))
    listed = "\t".join(str(item) for item in range(30, 129))
    (tmp_path / "ml-1m.test.negative").write_text("".join(f"({u},{20 + u})\t{listed}\n" for u in range(3)))
    read = [data.read("ml-1m", tmp_path, seed) for seed in (0, 0, 1)]
    first = [split.train.positives(0).tolist() for split in read]
    assert first[0] == first[1] != first[2]
    assert sorted(first[0]) == list(range(20)) != first[0] and first[0] != read[0].train.positives(1).tolist()
    assert read[0].test_items.tolist() == [20, 21, 22]


def split_of(users: int = 12, items: int = 160, seed: int = 3) -> LeaveOneOut:
    rng = np.random.default_rng(seed)
    owned = np.stack([rng.permutation(items)[:11] for _ in range(users)])
    times = np.tile(np.arange(10), users)
    pairs = np.repeat(np.arange(users), 10), owned[:, :10].ravel()
    train = Interactions.from_pairs(*pairs, n_users=users, n_items=items, timestamps=times)
    return LeaveOneOut(train, owned[:, 10].astype(np.int32))


def test_what_is_held_out_is_not_trained_on() -> None:
    split = split_of()
    clients = data.choose(split, 7, others=4)
    assert clients.users.size == 7 and clients.others.size == 4 and not set(clients.users) & set(clients.others)
    for user, history in zip(clients.users, clients.training(), strict=True):
        whole = split.train.positives(int(user))
        assert history.tolist() == whole[:-1].tolist(), "the newest one is for validation"
        assert clients.validation.data.test_items[user] == whole[-1]
        assert clients.test.data.test_items[user] == split.test_items[user]
        assert clients.test.data.train.positives(int(user)).tolist() == whole.tolist()
    away = np.setdiff1d(np.arange(12), [*clients.users, *clients.others])
    assert (clients.test.data.test_items[away] == -1).all()
    assert clients.test.negatives.shape == (12, 99)


def test_the_mean_is_over_weights_and_that_of_a_row_over_those_who_touched_it() -> None:
    class Fixed(Popular):
        def train(self, arrays: Arrays, items: NDArray[np.int32], seed: Sequence[int]) -> tuple[Arrays, int]:
            new = {name: array.copy() for name, array in arrays.items()}
            new["table"][items] += np.float32(0.1 * items.size)
            new["scale"] += np.float32(0.2 * items.size)
            return new, 100 * items.size

    learner = Fixed(4)
    owned = [np.array([0], np.int32), np.array([0, 1, 2], np.int32)]
    mean = mean_update(learner, owned, {"clip": 0.5, "max_weight": 200}, learner.initial(), 1)
    np.testing.assert_allclose(mean["scale"], (100 * 0.2 + 200 * 0.5) / 300, rtol=1e-6)  # 0.6 was clipped, 300 too
    expected = [(100 * 0.1 + 200 * 0.3) / 300, 0.3, 0.3, 0.0]
    np.testing.assert_allclose(mean["table"], np.tile(np.array(expected)[:, np.newaxis], 2), rtol=1e-6)


def test_masked_rounds_over_http_equal_plain_fedavg(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fork_programs(monkeypatch)
    clients = data.choose(split_of(), 6, others=4)
    curve: list[int] = []

    def central(on_epoch: object) -> None:
        assert callable(on_epoch)
        for epoch, value in ((1, 0.0), (2, 1.0), (3, 0.0)):
            arrays = Popular(clients.items).initial()
            arrays["table"][clients.validation.data.test_items[clients.users]] = value
            on_epoch(epoch, arrays)
            curve.append(epoch)

    found = compare(tmp_path, Popular(clients.items), clients, 2, central)
    assert len(found.masked) == len(found.plain) == 3 and curve == [1, 2, 3]
    assert found.masked == pytest.approx(found.plain, abs=1e-9) and max(found.differences) < 1e-5
    assert found.central is not None and found.central[0] == 2
    printed = capsys.readouterr().out
    assert "round 2: NDCG@10" in printed and "6 clients" in printed and "took no part" in printed
    after = next(fedavg(Popular(clients.items), clients.training(), PARAMETERS))
    assert (after["scale"] > 1).all(), "the model moves"


def test_the_program_says_if_torch_is_missing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(SystemExit, match="2"):
        main(["--quick"])
    assert "this example needs PyTorch" in capsys.readouterr().err
