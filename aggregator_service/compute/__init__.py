"""Folds and unmasking, in worker processes or on a Dask cluster."""
