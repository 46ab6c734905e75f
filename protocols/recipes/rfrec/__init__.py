"""RFRec and RFRecF: rating prediction with each client's own item factors, penalised by distance from the average."""
