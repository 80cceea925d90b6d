"""Encode values as payloads by a schema, and decode payloads to values."""
