"""Avro in the registry: compatibility of versions, and the check of payloads."""
