"""JSON Schema: documents, the two profiles of comparing them, and payloads held against them."""
