"""Recipe `popularity`, an example of a recipe in a package of its own."""
