"""Parts of bench/overhead.py: the published table, the measurement of each of its rows, tables and plots."""
