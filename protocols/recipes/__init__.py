"""WHAT is summed: the server half and the vector layout of each recipe. A recipe knows no mechanism."""
