"""Parts of bench/quality.py: the data, the federated recipes and the central baselines."""
