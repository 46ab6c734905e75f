"""The calls of the HTTP API as programs without IO, and the drivers that run them."""
