"""Domain separation, keys, certificates, envelopes, HTTP signatures, aggregate chains and random numbers."""
