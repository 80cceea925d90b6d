"""Deletion with a grace period: tombstones, and what an undo restores from them."""
