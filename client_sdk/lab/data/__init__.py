"""Recommendation data: readers of file formats, splits, synthetic data and downloads. Its modules have all names."""

from __future__ import annotations

from client_sdk.lab.data.interactions import DataError, Interactions, LeaveOneOut
from client_sdk.lab.data.published import load_dataset, load_interactions
from client_sdk.lab.data.splits import Split, load_split

__all__ = ["DataError", "Interactions", "LeaveOneOut", "Split", "load_dataset", "load_interactions", "load_split"]
