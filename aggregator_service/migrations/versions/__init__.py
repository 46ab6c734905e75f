"""One module for each migration, oldest first."""
