"""`danube bench`: worker processes, their measurements, and the machine's own limits beside them."""
