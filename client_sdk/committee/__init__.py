"""The committee of a task with one-shot sums: the programs of one member."""
