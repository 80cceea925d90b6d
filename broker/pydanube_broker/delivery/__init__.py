"""Delivery: the shells of the pure `subscription` core. They read the log and write to streams."""
