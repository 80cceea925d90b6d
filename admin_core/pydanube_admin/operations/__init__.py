"""The operations: each is a handler with its request and result, declared by the decorator above it."""
