"""Payloads and the values they hold: what a schema makes of a value, and of bytes a value again."""
