"""Storage: rows in a database (SQLAlchemy), bytes in a blob store, and their clean-up."""
