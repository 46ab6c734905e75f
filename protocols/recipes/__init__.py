"""Recipes, which define what is summed: model state and vector layout. A recipe does not depend on a mechanism."""
