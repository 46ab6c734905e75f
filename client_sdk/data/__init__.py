"""Recommendation data: readers of file formats, splits, synthetic data and downloads.

`fetch.fetch` and `synthetic.synthetic` are not exported here, because their names would hide their modules.
"""

from __future__ import annotations

from client_sdk.data.csv_file import CsvColumns, read_csv
from client_sdk.data.errors import DataError
from client_sdk.data.fetch import DOWNLOADS, DownloadableSet
from client_sdk.data.holdout import hold_out_share, split_rows
from client_sdk.data.interactions import Interactions, LeaveOneOut, leave_one_out
from client_sdk.data.lightgcn import read_lightgcn
from client_sdk.data.loaders import DATASETS, load_dataset, load_interactions, load_train_test
from client_sdk.data.movielens import read_movielens, read_ratings_table
from client_sdk.data.ncf import read_ncf
from client_sdk.data.subset import users_with_at_least
from client_sdk.data.synthetic import SyntheticConfig
from client_sdk.history import History

__all__ = [
    "DATASETS",
    "DOWNLOADS",
    "CsvColumns",
    "DataError",
    "DownloadableSet",
    "History",
    "Interactions",
    "LeaveOneOut",
    "SyntheticConfig",
    "hold_out_share",
    "leave_one_out",
    "load_dataset",
    "load_interactions",
    "load_train_test",
    "read_csv",
    "read_lightgcn",
    "read_movielens",
    "read_ncf",
    "read_ratings_table",
    "split_rows",
    "users_with_at_least",
]
