"""Avro for the broker, the SDK and readers: schemas as trees, and readers of their data.

The package follows the Apache Avro specification 1.12, "Schema Declaration", "Names", "Aliases", "Binary Encoding",
"Schema Resolution".
"""
