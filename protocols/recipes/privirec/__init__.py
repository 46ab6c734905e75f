"""PriviRec and PriviRec-k: item degrees, distributed power iteration and the Gram matrix."""
