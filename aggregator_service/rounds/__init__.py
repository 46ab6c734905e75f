"""A round's life: the transition table, the engine that drives it, cohorts and folds."""
