"""FAIR: NeuMF on devices of unequal memory, each in a hashed share of the item tables."""
