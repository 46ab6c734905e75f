"""Parts of bench/arrays.py."""
