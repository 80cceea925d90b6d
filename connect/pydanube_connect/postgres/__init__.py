"""`postgres-sink` and `postgres-source`."""
