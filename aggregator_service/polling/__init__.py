"""Answers to clients that wait: the notifier, the cache of tasks and clients, and rounds as clients see them."""
