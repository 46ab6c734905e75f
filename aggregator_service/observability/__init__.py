"""Metrics, request logs and spans of a running aggregator. They hold ids, sizes and times, never values."""
