"""`danube bench`: worker processes, what they measure, and the machine's own limits beside it."""
