"""Domain separation, envelopes, the keyring, HTTP signatures and public randomness."""
