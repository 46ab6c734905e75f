"""What the service keeps: rows (SQLAlchemy) and blobs."""
