"""Avro: schemas as a tree with names resolved, what one can read of another, and payloads held against them.

Everything follows the Apache Avro specification 1.12, "Schema Declaration", "Names", "Aliases", "Schema Resolution".
"""
