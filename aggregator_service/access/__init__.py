"""Access control: principals, tokens, request signatures and rate limits."""
