"""Delivery: the shells that do what the pure `subscription` core decides. They read the log and write to streams."""
