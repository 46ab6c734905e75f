"""CoLR and SCoLR (Nguyen et al., WWW 2024): low-rank changes of the item factors."""
