"""JSON Schema: references and their targets."""
