"""One-shot sums: each client sends one message, a committee takes the masks off, and nobody holds a key."""
