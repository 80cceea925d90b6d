"""`vectors-sink`: records as points of a vector database."""
