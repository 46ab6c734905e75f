"""FAIR: NeuMF on devices of unequal memory, each with a hashed part of the item tables."""
