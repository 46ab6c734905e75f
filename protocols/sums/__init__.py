"""Mechanisms, which define how vectors are summed: plain, ckks, paillier, masked, oneshot. None depends on a recipe."""
