"""Polls: views of rounds, the cache that answers them, and waiting for changes."""
