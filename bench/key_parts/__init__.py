"""The tables of `bench.key_tables`, by subject."""
