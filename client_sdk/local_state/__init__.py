"""What a client keeps on its own disk: identity, keys, state, in files for its user alone."""
