"""Copies of topics' logs that another broker pulls: pieces, flow control, and both ends of the stream."""
