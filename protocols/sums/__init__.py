"""HOW vectors are summed: plain, ckks and, later, paillier and masked. A mechanism knows no recipe."""
