"""Top-K: only the strongest part of the change of the item factors."""
