"""The broker's gRPC services."""
