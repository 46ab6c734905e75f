"""Recommendation data: readers of file formats, splits, synthetic data and downloads.

`fetch.fetch` and `synthetic.synthetic` are not exported here, because their names would hide their modules.
"""

from __future__ import annotations

from client_sdk.data.columns import Columns, parse_columns
from client_sdk.data.data_file import DataFile, read_data_file
from client_sdk.data.errors import DataError
from client_sdk.data.fetch import DOWNLOADS, DownloadableSet
from client_sdk.data.holdout import hold_out_share, split_rows
from client_sdk.data.interactions import Interactions, LeaveOneOut, leave_one_out
from client_sdk.data.lightgcn import read_lightgcn
from client_sdk.data.loaders import DATASETS, load_dataset, load_interactions, load_train_test
from client_sdk.data.ncf import read_ncf
from client_sdk.data.splits import Split, load_split
from client_sdk.data.subset import sample_users, users_with_at_least
from client_sdk.data.synthetic import SyntheticConfig
from client_sdk.data.train_test import read_train_test
from client_sdk.history import History

__all__ = [
    "DATASETS",
    "DOWNLOADS",
    "Columns",
    "DataError",
    "DataFile",
    "DownloadableSet",
    "History",
    "Interactions",
    "LeaveOneOut",
    "Split",
    "SyntheticConfig",
    "hold_out_share",
    "leave_one_out",
    "load_dataset",
    "load_interactions",
    "load_split",
    "load_train_test",
    "parse_columns",
    "read_data_file",
    "read_lightgcn",
    "read_ncf",
    "read_train_test",
    "sample_users",
    "split_rows",
    "users_with_at_least",
]
