"""Avro in the registry: whether one version reads another's data, and the check of payloads."""
