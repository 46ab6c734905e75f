"""The parts of `bench/overhead.py`: the published table, what is measured for each of its rows, tables and plots."""
