"""Parts of bench/oneshot.py."""
