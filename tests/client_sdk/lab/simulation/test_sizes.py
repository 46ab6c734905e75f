"""What `privirec-k` of several sizes is worth on one's own data."""

from __future__ import annotations

import pytest

from client_sdk.lab.data.splits import Split, hold_out_share
from client_sdk.lab.data.synthetic import SyntheticConfig, synthetic
from client_sdk.lab.simulated_task import SimulationRequest
from client_sdk.lab.sizes import compare_sizes
from protocols.errors import ParameterError


def split(users: int, items: int, positives: int) -> Split:
    data = synthetic(SyntheticConfig(users=users, items=items, positives=positives, skew=0.4))
    train, test = hold_out_share(data, 0.2, 0)
    return Split(train, test, "a fifth")


def test_sizes_go_from_few_vectors_to_the_whole_matrix() -> None:
    said: list[str] = []
    found = compare_sizes(split(600, 260, 20), SimulationRequest(), said.append)
    words = [one.words for one in found]
    assert words[0] == "4 vectors" and words[-2:] == ["the whole matrix", "256 vectors of all items"]
    assert [one.consent for one in found] == [False] * (len(found) - 2) + [True] * 2
    sent = [one.sent_bytes for one in found if not one.consent]
    assert sent == sorted(sent) and sent[-1] < found[-2].sent_bytes
    assert [one for one in words if one.endswith(", as chosen")] == [words[-3]]
    assert "as chosen" in said and len(said) == len(found)
    assert all(next(iter(one.values.values())) > 0 for one in found)


def test_few_members_have_what_needs_consent_only_and_noise_nothing_else() -> None:
    few = split(20, 30, 6)
    assert [one.words for one in compare_sizes(few, SimulationRequest())] == ["the whole matrix"]
    with pytest.raises(ParameterError):
        compare_sizes(few, SimulationRequest(recipe="auto", most_users=0))
