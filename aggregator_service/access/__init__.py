"""Who may ask: principals, tokens, request signatures and rate limits."""
