"""Tasks: their plans, checks and warnings, members, invitations, eligibility, and the ledger of released sums."""
