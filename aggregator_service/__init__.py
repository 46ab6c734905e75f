"""The aggregator: an HTTP service that runs rounds and learns only their sums."""
