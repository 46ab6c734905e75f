"""Bodies from the connection to disk: contributions, chunks and the messages of masked stages."""
