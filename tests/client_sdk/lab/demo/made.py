"""Results of a demo, made by hand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from client_sdk.lab.demo.results import ArmResult, CurvePoint, DemoResult
from client_sdk.lab.measures import Advised, Measured


def trained(hr: float, *rounds: int) -> ArmResult:
    """An arm with the same quality after each of `rounds`."""
    values = {"HR@10": hr, "NDCG@10": 0.3}
    curve = tuple(CurvePoint(number, values, 1.0) for number in rounds)
    measured = Measured(values, np.array([hr, 0.0, 1.0]))
    return ArmResult("CoLR-4 encrypted", measured, 2048.0, 4096.0, 1.0, curve=curve, contributions=3)


def control(name: str = "popularity", users: int = 3) -> ArmResult:
    """A control with HR@10 0.3."""
    return ArmResult(name, Measured({"HR@10": 0.3, "NDCG@10": 0.1}, np.full(users, 0.3)), note="one list")


def made_result(
    arms: Sequence[ArmResult], plan: Mapping[str, object] | None = None, rounds: int = 1, usual_rounds: int = 0
) -> DemoResult:
    """A demo of CoLR with these arms."""
    return DemoResult(
        "synthetic", 4, 5, 6, "colr", "ckks", rounds, 3, plan or {}, arms, "by hand", Advised(recipe="privirec-k"),
        usual_rounds, machine={},
    )  # fmt: skip
