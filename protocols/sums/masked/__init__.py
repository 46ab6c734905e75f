"""Masked sums (SecAgg+; Bell, Bonawitz, Gascon, Lepoint and Raykova, CCS 2020), which reveal only the sum."""
