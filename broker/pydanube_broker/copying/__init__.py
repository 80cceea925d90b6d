"""Copies of topics' logs, pulled by another broker: the pieces that travel, their flow control, both ends of the stream."""
