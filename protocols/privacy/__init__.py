"""Privacy beyond a single sum: local noise and its cost, and what several sums reveal together."""
