"""Decode payloads into typed columns: one module for each schema format, and access to the registry."""
