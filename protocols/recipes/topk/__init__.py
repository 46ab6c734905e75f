"""Top-K: a contribution holds only K entries of the change of the item factors."""
