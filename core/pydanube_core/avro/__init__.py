"""Avro for broker, SDK and readers: the tree of a schema, and the reader of its data.

Everything follows the Apache Avro specification 1.12, "Schema Declaration", "Names", "Aliases", "Binary Encoding",
"Schema Resolution".
"""
