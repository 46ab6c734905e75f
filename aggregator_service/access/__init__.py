"""Access control: principals, tokens, rate limits and the audit trail."""
