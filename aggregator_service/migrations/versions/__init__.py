"""One module a step, oldest first."""
