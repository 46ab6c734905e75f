"""The model on the device: catching up with the rounds, caching it, recommending from it."""
