"""Payloads as typed columns: one module for each format of a schema, and what asks the registry for them."""
