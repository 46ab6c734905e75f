"""RFRec and RFRecF: ratings, item factors of one's own held to everyone's average."""
