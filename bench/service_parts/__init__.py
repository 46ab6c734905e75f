"""Parts of bench/service.py: a load generator, the bare server to compare with, and the measurements."""
