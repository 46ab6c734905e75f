"""Recommendation data: readers of file formats, splits, synthetic data and downloads.

`fetch.fetch` and `synthetic.synthetic` are not exported here, because their names would hide their modules.
"""

from __future__ import annotations

from client_sdk.history import History as History
from client_sdk.lab.data.columns import Columns as Columns
from client_sdk.lab.data.columns import parse_columns as parse_columns
from client_sdk.lab.data.fetch import DOWNLOADS as DOWNLOADS
from client_sdk.lab.data.fetch import DownloadableSet as DownloadableSet
from client_sdk.lab.data.files import DataFile as DataFile
from client_sdk.lab.data.files import read_data_file as read_data_file
from client_sdk.lab.data.files import read_lightgcn as read_lightgcn
from client_sdk.lab.data.interactions import DataError as DataError
from client_sdk.lab.data.interactions import Interactions as Interactions
from client_sdk.lab.data.interactions import LeaveOneOut as LeaveOneOut
from client_sdk.lab.data.interactions import leave_one_out as leave_one_out
from client_sdk.lab.data.published import DATASETS as DATASETS
from client_sdk.lab.data.published import load_dataset as load_dataset
from client_sdk.lab.data.published import load_interactions as load_interactions
from client_sdk.lab.data.published import load_train_test as load_train_test
from client_sdk.lab.data.published import read_ncf as read_ncf
from client_sdk.lab.data.published import read_train_test as read_train_test
from client_sdk.lab.data.splits import Split as Split
from client_sdk.lab.data.splits import hold_out_share as hold_out_share
from client_sdk.lab.data.splits import load_split as load_split
from client_sdk.lab.data.splits import sample_users as sample_users
from client_sdk.lab.data.splits import split_rows as split_rows
from client_sdk.lab.data.synthetic import SyntheticConfig as SyntheticConfig
