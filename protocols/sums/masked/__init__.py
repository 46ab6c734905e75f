"""Masked sums (SecAgg+; Bell, Bonawitz, Gascon, Lepoint and Raykova, CCS 2020): only the sum is ever in the clear."""
