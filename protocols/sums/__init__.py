"""Mechanisms, which define how vectors are summed: plain, ckks, paillier, masked. None depends on a recipe."""
