"""Open the workers that the setting HUSHREC_EXECUTOR names. Dask is imported only if they are a cluster."""

from __future__ import annotations

from concurrent.futures import Executor

from aggregator_service.compute.workers import FoldPool, Workers
from aggregator_service.storage.blobs import BlobStore
from protocols.errors import ParameterError

__all__ = ["open_workers"]


def open_workers(location: str, workers: int, blobs: BlobStore, executor: Executor | None = None) -> Workers:
    """Return the workers at `local` or `dask://host:port`.

    workers: processes of a local pool. executor: used instead of a local pool.

    Raises `ParameterError` when the extra `cluster` is needed and not installed.
    """
    if location == "local" or executor is not None:
        return FoldPool(workers, executor)
    try:
        from aggregator_service.compute.cluster import ClusterPool
    except ModuleNotFoundError:
        raise ParameterError(
            "HUSHREC_EXECUTOR=dask://... needs the extra `cluster`: pip install 'hushrec[cluster]'"
        ) from None
    return ClusterPool(location, blobs)
