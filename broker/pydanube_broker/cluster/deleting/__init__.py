"""Deletion with a grace period: tombstones, and restoring from them."""
