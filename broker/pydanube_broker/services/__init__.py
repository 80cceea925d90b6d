"""The broker's gRPC services: for official clients, for our SDK's streams, and for the schema registry."""
