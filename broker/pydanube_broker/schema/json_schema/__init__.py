"""JSON Schema: documents, the two profiles for comparing them, and the check of payloads."""
