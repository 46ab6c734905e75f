"""CKKS sums with SEAL: one prime, complex packing, fixed-length wire forms, folding without a key."""
