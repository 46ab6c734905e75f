"""CKKS sums over SEAL: one prime, complex packing, fixed-length wire forms, a fold that needs no key."""
