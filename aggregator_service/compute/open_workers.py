"""Which workers a setting means."""

from __future__ import annotations

from concurrent.futures import Executor

from aggregator_service.compute.process_pool import FoldPool, Workers
from aggregator_service.storage.blobs import BlobStore
from protocols.errors import ParameterError

__all__ = ["open_workers"]


def open_workers(location: str, workers: int, blobs: BlobStore, executor: Executor | None = None) -> Workers:
    """The workers at `local` or `dask://host:port`; `ParameterError` when what it takes is not installed.

    `workers`: processes of a local pool. `executor`: one of the caller's own, in place of that pool.
    """
    if location == "local" or executor is not None:
        return FoldPool(workers, executor)
    try:
        from aggregator_service.compute.dask_pool import ClusterPool
    except ModuleNotFoundError:
        raise ParameterError(
            "HUSHREC_EXECUTOR=dask://... needs the extra `cluster`: pip install 'hushrec[cluster]'"
        ) from None
    return ClusterPool(location, blobs)
