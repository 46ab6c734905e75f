"""Tasks and what belongs to them: plans, members, invitations, the ledger, eligibility."""
