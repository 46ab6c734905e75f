"""Privacy beyond a single sum: what several sums would say together."""
