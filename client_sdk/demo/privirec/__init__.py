"""The PriviRec demo: masked sums through a server process, the spectrum as it converges, and ranking quality."""
