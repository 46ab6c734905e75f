"""Recommendation data: readers of file formats, splits, synthetic data and downloads.

`fetch.fetch` and `synthetic.synthetic` are not exported here, because their names would hide their modules.
"""

from __future__ import annotations

from client_sdk.history import History
from client_sdk.lab.data.columns import Columns, parse_columns
from client_sdk.lab.data.fetch import DOWNLOADS, DownloadableSet
from client_sdk.lab.data.files import DataFile, read_data_file
from client_sdk.lab.data.interactions import DataError, Interactions, LeaveOneOut, leave_one_out
from client_sdk.lab.data.published import DATASETS, load_interactions, read_ncf, read_train_test
from client_sdk.lab.data.splits import Split, hold_out_share, load_split, sample_users, split_rows
from client_sdk.lab.data.synthetic import SyntheticConfig

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
    "load_interactions",
    "load_split",
    "parse_columns",
    "read_data_file",
    "read_ncf",
    "read_train_test",
    "sample_users",
    "split_rows",
]
