"""`delta-sink`: topics as tables of Delta Lake."""
