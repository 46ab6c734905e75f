"""The commands of `hushrec-server`, one module per group."""
