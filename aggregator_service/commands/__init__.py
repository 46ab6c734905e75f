"""The commands of `hushrec-server` that work on its database, by noun."""
