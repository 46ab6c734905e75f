"""The life of a round: what advances it (`engine`, `advance`), its transactions, cohorts and masked stages."""
