"""Metadata store and object store adapters."""
